"""Connections to PostgreSQL on which no wait is endless; see `silence`.

The connections of an engine are checked once a second. Statements cost nothing for this.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from onceonly.sql import silence

POLL_SECONDS = 1.0
"""Seconds between two looks at the connections of an engine."""
EXECUTING = r"""
SELECT state = 'active' AND (wait_event IS DISTINCT FROM 'ClientRead' OR query ~* '^\s*copy\s')
    OR state_change > clock_timestamp() - interval '1 s'
FROM pg_stat_activity WHERE pid = {}
"""
"""Reports whether a session executes a statement, or did just now; no row for a session that is gone.

A session that has parsed a statement and waits for its arguments is `active` as well, but reads from the client. Only COPY
does that while the client waits.
"""
END = "SELECT pg_terminate_backend({})"


class WatchableDriver(Protocol):
    """What a driver offers to have its connections watched."""

    errors: tuple[type[Exception], ...]

    def awaits(self, adapted: Any) -> object:
        """Return a value that identifies the current wait for the server; None while the connection does not wait."""

    def session(self, adapted: Any) -> int:
        """Return the process id of the connection's session on the server, unless a pooler is between."""

    async def ask(self, arguments: Mapping[str, Any], words: str) -> object:
        """Return the value of a query, on a connection of its own; None for no row. Raises the driver's errors."""

    def drop(self, adapted: Any) -> None:
        """Close the connection's socket at once: what waits for it fails, and nothing more is sent."""

    def is_closed(self, adapted: Any) -> bool:
        """Report whether the connection is closed."""

    def answered(self, error: Exception) -> bool:
        """Report whether an error is a server's answer."""


class ConnectionWatch:
    """Watches the connections of one engine. `is_pooled` reports whether a pooler is between, `longest` a legal statement."""

    def __init__(self, driver: WatchableDriver, is_pooled: Callable[[], bool], longest: Callable[[], float]) -> None:
        self._driver = driver
        self._is_pooled = is_pooled
        self._longest = longest
        self._arguments: dict[str, Any] = {}
        self._connections: dict[int, Any] = {}
        self._waits: dict[int, tuple[object, float]] = {}
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connecting(self, arguments: Mapping[str, Any]) -> None:
        """Keep what the driver connects with at first, before anything is added for SQLAlchemy."""
        self._arguments = self._arguments or dict(arguments)

    def connected(self, adapted: Any, _record: object) -> None:
        self._connections[id(adapted)] = adapted
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._look)

    def leave(self, adapted: Any) -> None:
        self._connections.pop(id(adapted), None)

    def drop_all(self) -> None:
        for adapted in self._connections.values():
            if not self._driver.is_closed(adapted):
                self._driver.drop(adapted)

    def forget_closed(self) -> None:
        self._connections = {key: it for key, it in self._connections.items() if not self._driver.is_closed(it)}

    def _look(self) -> None:
        """Start a check of each connection that has been silent for too long."""
        loop, self._timer = asyncio.get_running_loop(), None
        self.forget_closed()
        before, self._waits = self._waits, {}
        for key, adapted in self._connections.items():
            awaited = self._driver.awaits(adapted)
            if awaited is None:
                continue
            same = key in before and before[key][0] == awaited
            self._waits[key] = wait = before[key] if same else (awaited, loop.time())
            if loop.time() - wait[1] >= silence.SILENCE_SECONDS and key not in self._checks:
                self._checks[key] = task = asyncio.ensure_future(self._check(adapted, *wait))
                task.add_done_callback(lambda _, key=key: self._checks.pop(key))  # type: ignore[misc]  # it is an int
        if self._connections:
            self._timer = loop.call_later(POLL_SECONDS, self._look)

    async def _check(self, adapted: Any, awaited: object, since: float) -> None:
        """Check while this wait lasts, until the connection is found to be lost."""
        longest = max(silence.LONGEST_STATEMENT_SECONDS, self._longest())

        def is_answered() -> bool:
            return self._driver.is_closed(adapted) or self._driver.awaits(adapted) != awaited

        def limit() -> float | None:
            return since + longest if self._is_pooled() else None

        if not await silence.is_lost(lambda: self._is_busy(adapted), limit, is_answered=is_answered):
            return
        session = self._driver.session(adapted)
        self._driver.drop(adapted)
        if not self._is_pooled():
            with suppress(Exception):  # whatever it is, the server's own time-outs do the same later
                async with asyncio.timeout(silence.CHECK_SECONDS):
                    await self._driver.ask(self._arguments, END.format(session))

    async def _is_busy(self, adapted: Any) -> bool:
        """Ask the server whether it executes the statement of a silent connection."""
        query = "SELECT true" if self._is_pooled() else EXECUTING.format(self._driver.session(adapted))
        try:
            async with asyncio.timeout(silence.CHECK_SECONDS):
                return bool(await self._driver.ask(self._arguments, query))
        except Exception as error:  # noqa: BLE001 - whatever it is, the server did not answer, or it refused
            return self._driver.answered(error)
