"""Threads in which handlers use Django. Each has connections of its own, as Django gives them to every thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from django.db import connections, reset_queries
from django.db.utils import Error

IDLE_SECONDS = 5.0
"""Seconds without a message after which a thread closes connections that have CONN_MAX_AGE = 0, and those that are too old."""
END_SECONDS = 10.0
"""Seconds that the end of a worker waits for functions of `on_commit`."""
_Result = TypeVar("_Result")
Job = Callable[[], object]


class Guard(Protocol):
    """Decides about the statements of the handler that runs in a thread."""

    def before(self, statement: str, django: Any) -> None:
        """Look at a statement on one of Django's connections. Raises an error for one that must not be executed."""

    def failed(self, error: Exception, django: Any) -> None:
        """Note that a statement has failed."""


class UnitThread:
    """One thread. It does one thing after another."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._guarded: set[str] = set()
        self.guard: Guard | None = None
        """What decides about statements now. None: they are the library's own."""
        self.in_statement = False
        """Whether the database executes a statement of this thread."""
        self._thread = threading.Thread(target=self._run, name="onceonly django", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in the thread, in a copy of the caller's context. Raises what it raises.

        If the caller is cancelled, the function goes on, and what is started later comes after it.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Result] = loop.create_future()
        run = copy_context().run

        def work() -> None:
            error: BaseException | None = None
            left: Any = None
            try:
                left = run(function)
            except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
                error = raised
            with suppress(RuntimeError):  # the event loop is closed: nothing waits any more
                loop.call_soon_threadsafe(_settle, answer, left, error)

        self._jobs.put(work)
        return await answer

    def start(self, work: Callable[[], Callable[[], object]]) -> None:
        """Do a work, and what it returns."""
        self._jobs.put(lambda: work()())  # noqa: PLW0108 - two calls

    def post(self, job: Job) -> None:
        """Have something done, and wait for nothing."""
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread when it has done all that it was given."""
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    @contextmanager
    def guarded(self, guard: Guard) -> Iterator[None]:
        """Have a guard decide about statements in a block; in the thread."""
        self.guard = guard
        try:
            yield
        finally:
            self.guard = None

    def refresh(self) -> None:
        """Prepare the connections for the next message, as Django does for a request; in the thread.

        One with CONN_MAX_AGE = 0 is kept while messages come. Django's web handlers would close it after each request.
        """
        reset_queries()
        for django in connections.all(initialized_only=True):
            _renew(django)
        for alias in connections:
            if alias not in self._guarded:
                self._guarded.add(alias)
                connections[alias].execute_wrappers.insert(0, self._execute)

    def _execute(self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:  # noqa: PLR0917 - Django's
        guard = self.guard
        if guard is not None:
            guard.before(text_of_sql(sql), context["connection"])
        self.in_statement = True
        try:
            return execute(sql, params, many, context)
        except Exception as error:
            if guard is not None:
                guard.failed(error, context["connection"])
            raise
        finally:
            self.in_statement = False

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                _close_idle()
                continue
            if job is None:
                connections.close_all()
                return
            job()
            del job


class UnitThreads:
    """The threads of one open endpoint: as many as it has open transactions."""

    def __init__(self) -> None:
        self._idle: list[UnitThread] = []
        self._all: set[UnitThread] = set()
        self._is_closed = False

    def take(self) -> UnitThread:
        """Return a thread that has nothing to do. In the event loop."""
        if self._idle:
            return self._idle.pop()
        thread = UnitThread()
        self._all.add(thread)
        return thread

    def give_back(self, thread: UnitThread) -> None:
        """Take back a thread. In the event loop."""
        if self._is_closed:
            thread.end()
        else:
            self._idle.append(thread)

    async def close(self) -> None:
        """End all threads, and wait for them, but not for a handler that does not return."""
        self._is_closed = True
        for thread in self._all:
            thread.end()

        def join() -> None:
            for thread in self._all:
                thread.join(END_SECONDS / max(1, len(self._all)))

        await asyncio.to_thread(join)


def text_of_sql(sql: Any) -> str:
    """Return the text of a statement. psycopg has objects for composed ones."""
    if isinstance(sql, str):
        return sql
    if isinstance(sql, bytes):
        return sql.decode(errors="replace")
    compose = getattr(sql, "as_string", None)
    return str(compose(None)) if compose is not None else str(sql)


def _settle(answer: "asyncio.Future[Any]", left: object, error: BaseException | None) -> None:
    if answer.done():  # the caller was cancelled
        return
    if error is None:
        answer.set_result(left)
    else:
        answer.set_exception(error)


def _renew(django: Any) -> None:
    if django.settings_dict["CONN_MAX_AGE"] == 0:
        django.close_at = None
    with suppress(Error):  # what is broken shows again, where it is used
        django.close_if_unusable_or_obsolete()


def _close_idle() -> None:
    for django in connections.all(initialized_only=True):
        if django.in_atomic_block:  # a unit that waits for something else
            continue
        with suppress(Error):
            if django.settings_dict["CONN_MAX_AGE"] == 0:
                django.close()
            else:
                django.close_if_unusable_or_obsolete()
