"""The debugger of `onceonly run --debug`: pdb in a process whose event loop handles the signals."""

import asyncio
import pdb  # noqa: T100 - it is what this module is about
import signal
import sys
import threading
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from onceonly.cli.child import ChildPlan, check
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.processes.child import run_here
from onceonly.runtime.processes.early_start import answer_breakpoints
from onceonly.runtime.worker.worker import side_by_side


class Debugger:
    """What `breakpoint()` calls. `q` sets `stop`, and after it no breakpoint opens a prompt."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self._has_quit = False

    def __call__(self, *, header: str = "") -> None:
        """Open the prompt in the calling frame, below this header."""
        if self._has_quit:
            raise BdbQuit
        prompt = Prompt(self._quit)
        if header:
            prompt.message(header)
        prompt.set_trace(sys._getframe(1))  # noqa: SLF001 - as pdb itself does

    def _quit(self) -> None:
        self._has_quit = True
        self._loop.call_soon_threadsafe(self._stop.set)  # a breakpoint may be in another thread


class Prompt(pdb.Pdb):
    """pdb that leaves signals to the event loop while the program runs.

    At the prompt the event loop is blocked. There Ctrl-C cancels the command, as in any pdb, and SIGTERM quits.
    """

    def __init__(self, on_quit: Callable[[], object]) -> None:
        """Call `on_quit` when the debugger is left by `q`, by the end of the input, or by SIGTERM."""
        super().__init__(nosigint=True)
        self._on_quit = on_quit

    def interaction(self, *arguments: Any, **options: Any) -> None:
        with _handled({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: self._terminate}):
            super().interaction(*arguments, **options)

    def postcmd(self, stop: bool, line: str) -> bool:  # noqa: FBT001 - as `cmd` calls it
        """End the prompt as well when SIGTERM came within a command, some of which suppress every exception."""
        return self.quitting or super().postcmd(stop, line)

    def set_quit(self) -> None:
        """Quit: BdbQuit is raised where the program stands."""
        self._on_quit()
        super().set_quit()

    def _terminate(self, *_: object) -> NoReturn:
        self.set_quit()
        raise BdbQuit


@contextmanager
def _handled(handlers: dict[signal.Signals, Callable[..., object]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return
    wakeup = signal.set_wakeup_fd(-1)  # the event loop would read from it later, and handle them as well
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
            signal.siginterrupt(number, False)  # noqa: FBT003 - as event loops have it
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


def run_debugged(plan: ChildPlan) -> int:
    """Run what a plan names in the main thread of this process, which has the terminal. Return the exit code."""
    run_here(partial(_run_with_debugger, plan))
    return 0


async def _run_with_debugger(plan: ChildPlan, stop: asyncio.Event) -> None:
    """Run until `stop` is set. A breakpoint may block the event loop for any time."""
    answer_breakpoints(Debugger(stop))
    loaded = plan.load()
    if await check(loaded, stop):
        await side_by_side([host_of(each).run(stop, settings=settings, observer=Logs()) for each, settings in loaded])
