"""The background thread that sends what tasks and views of one process have committed, and what other processes left.

It is an event loop in which the endpoint is open to send. It starts when the first message is about to be committed, so
nothing is opened at import. A process that was forked starts its own.
"""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from time import monotonic
from weakref import WeakSet

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from onceonly.assembly import open_finishing
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of, instruments_of
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.session_transactions import Sessions
from onceonly.model.errors import SetupError, error_text
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.observe.telemetry import NO_TASK_SPANS, with_telemetry
from onceonly.runtime.processes.notifier import CommittedRecord, Notifier
from onceonly.runtime.relay.relay import Relay
from onceonly.runtime.worker.startup import StartupWait
from onceonly.runtime.worker.worker import side_by_side

GATHER_SECONDS = 0.05
"""Seconds for which commits are gathered while others have just been announced. The first one is announced at once."""
RESTART_SECONDS = 5.0
"""Seconds after which a thread that has failed is started again, by the next commit."""
_log = EventLogger(logging.getLogger("onceonly.relay"))


class SendingThread:
    """The thread of one endpoint in this process. Its methods may be called from any thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._started_at = 0.0
        self._expected = ExitStack()
        self._gathered: Gathered | None = None
        self.failure: BaseException | None = None
        """What has ended the thread."""

    def start(self, *, maintains: bool = False, wait: float = 0.0) -> None:
        """Start it if it does not run, and wait `wait` seconds at most until it is open. Does nothing soon after a failure.

        What is committed meanwhile is sent as soon as it is open. `maintains` means that it does the maintenance of the
        endpoint, as one process of a worker should.
        """
        with self._lock:
            is_running = self._thread is not None and self._thread.is_alive()
            if is_running or (self.failure is not None and monotonic() - self._started_at < RESTART_SECONDS):
                return
            self.failure, self._started_at = None, monotonic()
            self._ready.clear()
            self._expected.enter_context(host_of(self._endpoint).notifier.expected())
            name = f"onceonly {self._endpoint.name} sending"
            self._thread = threading.Thread(target=self._run, args=(maintains,), name=name, daemon=True)
            self._thread.start()
        self._ready.wait(wait)

    def stop(self, wait: float = 10.0) -> None:
        """Send what was committed, then end. What does not fit into `wait` seconds is left to other processes."""
        thread, loop = self._thread, self._loop
        if thread is None or not thread.is_alive():
            return
        if loop is not None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._end)
        thread.join(wait)

    def _end(self) -> None:
        if self._gathered is not None:
            self._gathered.flush()
        if self._stop is not None:
            self._stop.set()

    def _run(self, maintains: bool) -> None:  # noqa: FBT001 - the argument of a thread
        try:
            asyncio.run(self._send(maintains=maintains))
        except Exception as error:  # noqa: BLE001 - a thread has no caller. The next start, or the worker, sees it
            self.failure = error
            reason = error_text(error)
            _log.error("sending thread ended", extra={"endpoint": self._endpoint.name, "reason": reason})
        finally:
            self._ready.set()
            self._expected.close()

    async def _send(self, *, maintains: bool) -> None:
        """Open what a relay needs, and run it until it is stopped. Servers that are away are waited for."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._gathered = Gathered(self._loop)
        stop, away, settings, host = self._stop, asyncio.Event(), self._endpoint.settings, host_of(self._endpoint)
        instruments = None if settings.telemetry is None else instruments_of(settings)
        opening = partial(open_finishing, settings, observer=with_telemetry(instruments, Logs()))
        wait = StartupWait(stop, endpoint=settings.name, away=away, notifier=host.notifier)
        async with AsyncExitStack() as stack:
            watching = asyncio.create_task(self._note(away))
            stack.callback(watching.cancel)
            ports = await wait.enter(stack, opening)
            if ports is None:
                return
            if (searched := ports.for_relay()) is None:
                raise SetupError(f"the store of endpoint {settings.name!r} has no tables: use a SQL store")
            grace, spans, gathered = settings.worker.grace, instruments or NO_TASK_SPANS, self._gathered
            relay = Relay(by_relay(searched), after=settings.relay_after, grace=grace, notifier=gathered.notifier, spans=spans)
            runs = [relay.run(stop)]
            if maintains and ports.maintenance.has_tasks:
                runs.append(MaintenanceLoop(ports, grace=grace, spans=spans).run(stop))
            with gathered.notifier.expected(), host.notifier.listen(gathered.add, is_threadsafe=True):
                self._expected.close()
                self._ready.set()
                await side_by_side(runs)

    async def _note(self, away: asyncio.Event) -> None:
        """Let the caller of `start` go on if a server is away."""
        await away.wait()
        self._ready.set()


class Gathered:
    """Passes what was committed on to the relay of an event loop: at once, and in batches while there is more.

    A batch costs little more than one, and the loop shares the interpreter with the tasks of its process. While it gathers,
    nothing wakes it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = Notifier()
        self._loop = loop
        self._told: deque[Sequence[CommittedRecord]] = deque()
        self._is_busy = False

    def add(self, told: Sequence[CommittedRecord]) -> None:
        """Pass it on, or gather it. May be called in any thread."""
        self._told.append(told)
        if not self._is_busy:
            self._is_busy = True
            with suppress(RuntimeError):  # the loop has just been closed: others find the records
                self._loop.call_soon_threadsafe(self._next)

    def flush(self) -> None:
        """Pass on what was gathered. To be called in the loop."""
        told: list[CommittedRecord] = []
        while self._told:
            told += self._told.popleft()
        if told:
            self.notifier.notify(told)

    def _next(self) -> None:
        if self._told:
            self.flush()
            self._loop.call_later(GATHER_SECONDS, self._next)
            return
        self._is_busy = False
        if self._told:  # another thread has added it just before, and left it to this call
            self._is_busy = True
            self._loop.call_soon(self._next)


_THREADS: dict[Endpoint, SendingThread] = {}
_SESSIONS: dict[Endpoint, list[Sessions]] = {}
_ENGINES: "WeakSet[Engine]" = WeakSet()
_OF_PARENTS: list[object] = []
"""What belongs to the process that this one was forked from. It is kept, so that nothing closes its connections here."""


def sending_of(endpoint: Endpoint) -> SendingThread:
    """Return the thread of an endpoint in this process."""
    found = _THREADS.get(endpoint)
    return found if found is not None else _THREADS.setdefault(endpoint, SendingThread(endpoint))


def stop_sending(wait: float = 10.0) -> None:
    """End all threads of this process, and wait for `wait` seconds at most for each."""
    for each in tuple(_THREADS.values()):
        each.stop(wait)


def note_sessions(endpoint: Endpoint, sessions: Sessions) -> None:
    """Have processes that are forked from this one open connections, and a thread, of their own."""
    _THREADS.setdefault(endpoint, SendingThread(endpoint))
    _SESSIONS.setdefault(endpoint, []).append(sessions)
    bind = sessions.kw.get("bind") if isinstance(sessions, sessionmaker) else None
    if isinstance(bind, Engine):
        _ENGINES.add(bind)


def check_sessions_of(endpoint: Endpoint) -> None:
    """Check that tasks can commit messages of this endpoint. Opens no connection. Raises SetupError."""
    for each in _SESSIONS.get(endpoint, ()):
        if isinstance(each, sessionmaker):
            with each() as session:
                endpoint.enlist(session)


def _forget_parent() -> None:
    """Leave what was opened before the fork to the parent process."""
    for engine in tuple(_ENGINES):
        engine.dispose(close=False)
    for endpoint, thread in tuple(_THREADS.items()):
        _OF_PARENTS.append((thread, endpoint.__dict__.pop("_host", None)))
        _THREADS[endpoint] = SendingThread(endpoint)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(_forget_parent))
