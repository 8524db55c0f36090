"""Pieces of work side by side, each in a process of its own: it ends with its memory, and its peak is its own."""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from onceonly.model.errors import OnceOnlyError

Task = TypeVar("Task")
Result = TypeVar("Result")
Tell = Callable[..., None]
"""Called in the working process; what it is given is told in the parent."""


_COMPILED = "onceonly_verify.preloaded"


class WorkFailed(OnceOnlyError):
    """A piece of work raised, or its process died: its result is unknown."""


class _ProcessMessage(NamedTuple):
    """What a process sends to its parent: news, its result, or why there is none: in `error` or, as text, in `failure`."""

    news: tuple[Any, ...] = ()
    result: Any = None
    over: bool = False
    error: OnceOnlyError | None = None
    failure: str = ""


class _Running(NamedTuple):
    task: int
    process: BaseProcess


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(
    work: Callable[[Task, Tell], Result],
    tasks: Sequence[Task],
    *,
    jobs: int = 0,
    told: Tell | None = None,
    done: Callable[[Result], None] | None = None,
) -> tuple[Result, ...]:
    """Do all tasks, `jobs` at a time (0: as many as there are cores); returns the results in the tasks' order.

    `done` is called with each result as it comes. However it ends, no process is left. Raises WorkFailed, or
    what the work raises if it is an error of this library.
    """
    results: dict[int, Result] = {}
    waiting = list(reversed(list(enumerate(tasks))))
    with _processes() as running:
        while waiting or running:
            while waiting and len(running) < (jobs or cores()):
                index, task = waiting.pop()
                _begin(running, index, (work, task))
            ready = set(wait(list(running)))
            for connection in [each for each in running if each in ready]:
                said = _receive_message(connection, running[connection].process)
                if said.over:
                    results[running.pop(connection).task] = said.result
                    if done:
                        done(said.result)
                elif told:
                    told(*said.news)
    return tuple(results[index] for index in range(len(tasks)))


@contextmanager
def _processes() -> Iterator[dict[Connection, _Running]]:
    """Keep the running processes, and end those that are left: after an interruption nobody wants their results."""
    running: dict[Connection, _Running] = {}
    try:
        yield running
    finally:
        for connection, (_, process) in running.items():
            if process.pid:
                process.terminate()
                process.join()
            connection.close()


def _begin(running: dict[Connection, _Running], index: int, job: tuple[Any, Any]) -> None:
    # Never a plain fork: the parent may draw its progress in a thread. The server that forks has none, and nothing explored.
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    context.set_forkserver_preload([getattr(job[0], "func", job[0]).__module__, _COMPILED])  # of a partial, its function's
    mine, yours = context.Pipe()
    process = context.Process(target=_work, args=(yours, *job), daemon=True)
    running[mine] = _Running(index, process)  # before it starts: an interruption finds it here
    process.start()
    yours.close()


def _receive_message(connection: Connection, process: BaseProcess) -> _ProcessMessage:
    try:
        said: _ProcessMessage = connection.recv()
    except EOFError:
        process.join()
        raise WorkFailed(f"a process died with exit code {process.exitcode}: out of memory, or ended from outside") from None
    if said.error:
        raise said.error
    if said.failure:
        raise WorkFailed(said.failure)
    if said.over:
        process.join()
        connection.close()
    return said


def _work(connection: Connection, work: Callable[[Any, Tell], Any], task: Any) -> None:
    """Do one task in this process, whose parent decides about interruptions."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        said = _ProcessMessage(result=work(task, lambda *news: connection.send(_ProcessMessage(news=news))), over=True)
    except OnceOnlyError as error:
        said = _ProcessMessage(error=error)
    except Exception:  # noqa: BLE001 - the parent raises it
        said = _ProcessMessage(failure=traceback.format_exc())
    with suppress(BrokenPipeError):  # the parent is gone, and nobody wants it any more
        connection.send(said)
    connection.close()


MEGABYTE = 2**20
_STATM = Path("/proc/self/statm")


def resident() -> int:
    """Return what it has now; on macOS the most it ever had, and 0 on Windows, which does not tell."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak()


def peak() -> int:
    """Return the most that it ever had, and 0 on Windows, which does not tell."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
