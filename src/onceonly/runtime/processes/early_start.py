"""The start of a worker process: it imports modules, and waits for what to run. A first one can start before that is known."""

import os
import signal
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple, Self

SETUP = 2
"""The exit code of a child that finds that its set-up is wrong. Another start would not help."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that keeps Python from searching the current folder first."""
LIBRARY = str(Path(os.__file__).parent)
ORPHAN_SECONDS = 1.0
"""How often a child that waits checks that its parent is alive. A process that the parent forked may keep the pipe open."""

_spawn = get_context("spawn")
_OWN_PATH = tuple(sys.path)  # without the folders that are added for the user's program


class SearchPath(NamedTuple):
    """Where a process searches for modules: `sys.path`, behind the modules of the standard library that it has loaded."""

    path: list[str]
    library: tuple[str, ...]
    safe: str | None
    """The value of the variable `SAFE_PATH`."""

    @classmethod
    def here(cls) -> Self:
        loaded = filter(_is_in_library, sys.stdlib_module_names & sys.modules.keys())
        return cls(sys.path, tuple(loaded), os.environ.get(SAFE_PATH))

    def apply(self) -> None:
        for name in self.library:
            import_module(name)
        sys.path = self.path
        if self.safe is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = self.safe


class StartingProcess:
    """A child that has no work yet: it imports the modules that it is sent, until `run` sends its work.

    It ends when the parent ends. SIGTERM and SIGINT are blocked until the work unblocks them, so none is missed.
    """

    def __init__(self, index: int) -> None:
        orders, self._orders = _spawn.Pipe(duplex=False)
        self.process: SpawnProcess = _spawn.Process(target=_await_work, args=(orders,), name=f"onceonly-{index}")
        try:
            with _own_modules_first(SearchPath.here()), _signals_blocked():
                self.process.start()
        except BaseException:
            self._orders.close()
            raise
        finally:
            orders.close()

    def import_modules(self, names: Sequence[str]) -> None:
        """Make the child import modules of this library, or those that it needs."""
        self._send(tuple(names))

    def run(self, target: Callable[..., None], arguments: Sequence[Any]) -> SpawnProcess:
        """Make the child search for modules where this process does, and call a function of a module. Returns the process."""
        self._send(_Work(SearchPath.here(), target, tuple(arguments)))
        self._orders.close()
        return self.process

    def end(self) -> None:
        """Kill it, as it has done nothing yet, and wait for its end."""
        self._orders.close()
        self.process.kill()
        self.process.join()
        self.process.close()

    def _send(self, order: object) -> None:
        with suppress(BrokenPipeError):  # it has died: the supervisor watches for that
            self._orders.send(order)


class EarlyStart:
    """Children that were started before it was known what they run, by index. Each is taken once."""

    def __init__(self, processes: dict[int, StartingProcess]) -> None:
        self._processes = processes

    def import_modules(self, names: Sequence[str]) -> None:
        """Make each child import these modules. Without names nothing is done."""
        for process in self._processes.values() if names else ():
            process.import_modules(names)

    def take(self, index: int) -> StartingProcess:
        """Return the child of this index, or start one."""
        return self._processes.pop(index, None) or StartingProcess(index)


@contextmanager
def early_start(processes: int, modules: Sequence[str]) -> Iterator[EarlyStart]:
    """Start the first of this number of children. They import `modules` while the parent prepares their work.

    The parent uses one core, so one child starts for each other core, and at least one. Unused children end with the block.
    """
    starting = {index: StartingProcess(index) for index in range(max(1, min(processes, _cores() - 1)))}
    early = EarlyStart(starting)
    try:
        early.import_modules(modules)
        yield early
    finally:
        for process in starting.values():
            process.end()


def answer_breakpoints(hook: Callable[..., object]) -> None:
    """Make `breakpoint()` call this, unless the user has chosen a debugger."""
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = hook


class _Work(NamedTuple):
    search: SearchPath
    target: Callable[..., None]
    arguments: tuple[Any, ...]


def _await_work(orders: Connection) -> None:
    """Where each child begins: imports modules until it receives its work, and does that."""
    parent = parent_process()
    while True:
        while not orders.poll(ORPHAN_SECONDS):
            if parent is None or os.getppid() != parent.pid:
                return
        try:
            order = orders.recv()
        except EOFError:  # the parent has ended, or needs no child
            return
        if isinstance(order, _Work):
            break
        for name in order:
            import_module(name)
    orders.close()
    _call_target(order)


def _call_target(work: _Work) -> None:
    """Call the target. An interrupt or a wrong set-up makes no traceback."""
    from onceonly.model.errors import SetupError  # noqa: PLC0415 - imported beside the parent, not before it

    work.search.apply()
    answer_breakpoints(_no_terminal)
    try:
        work.target(*work.arguments)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except SetupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(SETUP)


def _no_terminal(*_: object, **__: object) -> None:
    """Raise what pdb raises where it can read no command, and name the cure."""
    raise BdbQuit("breakpoint() needs `onceonly run --debug`")


@contextmanager
def _own_modules_first(search: SearchPath) -> Iterator[None]:
    """Make a new child find its own modules before the user's: a `queue.py` of the user's is not one of them.

    The child gets the path of this process with its work, before the user's program is imported.
    """
    sys.path = [*_OWN_PATH, *(folder for folder in search.path if folder not in _OWN_PATH)]  # multiprocessing copies it
    os.environ[SAFE_PATH] = "1"  # otherwise `python -c`, which starts a child, searches the current folder first
    try:
        yield
    finally:
        search.apply()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start a new child with SIGTERM and SIGINT blocked: it unblocks them once it can answer, and none is missed."""
    resource_tracker.ensure_running()  # else its own start, inside ours, would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_in_library(name: str) -> bool:
    """Return whether a loaded module is that of the standard library, and not one of the user's with the same name."""
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or file.startswith(LIBRARY)  # without a file it is built in


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
