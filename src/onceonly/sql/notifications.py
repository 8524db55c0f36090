"""Wakes receivers that wait for something in a database: in this process at once, in others by the database's notifications.

A notification saves looks at the database and is never needed: it may be lost, late or superfluous. It is sent outside of the
transaction that it is about, after its commit. PostgreSQL commits transactions with NOTIFY one after another, so a sender
sends at most one for a name in `FIRST_INTERVAL_SECONDS`, and fewer while it has something to tell all the time.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import error_text

__all__ = ["Listening", "Notifications", "NotifyingDialect"]

FIRST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.01, 0.5
"""Seconds between two notifications of one process for one name: the interval grows while notifications follow each other.

A receiver with many notifications does not sleep: it has been busy just before, and looks on its own after 5 to 100 ms.
"""
GROWTH = 4
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.5, 30.0
NOTIFY_SECONDS = 5.0
CLOSE_SECONDS = 1.0
NAME_BYTES = 8
POOLED = "a connection pooler does not forward notifications"

_log = EventLogger(logging.getLogger("onceonly.queue"))


class Listening(Protocol):
    """A connection that receives notifications."""

    ended: asyncio.Event
    """Set when the connection is lost."""

    async def close(self) -> None:
        """Close the connection. Raises nothing."""


class NotifyingDialect(Protocol):
    """What a dialect offers; see `Dialect`."""

    @property
    def notifies(self) -> bool:
        """See `Dialect.notifies`."""

    @property
    def listens(self) -> bool:
        """See `Dialect.listens`."""

    async def notify(self, engine: AsyncEngine, channel: str, words: Iterable[str]) -> None:
        """See `Dialect.notify`."""

    async def listen(self, engine: AsyncEngine, channel: str, heard: Callable[[str], None]) -> Listening:
        """See `Dialect.listen`."""


class NotificationPace(NamedTuple):
    """When the next notification for a name may be sent, and how long after the last one that is."""

    not_before: float
    interval: float

    def after(self, now: float) -> "NotificationPace":
        """Wait for longer if another one was sent just before, else for the first interval."""
        is_busy = now < self.not_before + self.interval
        interval = min(GROWTH * self.interval, LONGEST_INTERVAL_SECONDS) if is_busy else FIRST_INTERVAL_SECONDS
        return NotificationPace(now + interval, interval)


class Notifications:
    """Those of one database and prefix in one process. `ready` connects to the server for the first time."""

    def __init__(
        self,
        dialect: NotifyingDialect,
        engine: AsyncEngine,
        place: tuple[str | None, str],
        ready: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._dialect = dialect
        self._engine = engine
        self._ready = ready
        self._channel = f"onceonly_{_short('.'.join(map(str, place)))}"
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._counts: Counter[str] = Counter()
        self._by_word: dict[str, str] = {}
        self._unsent: set[str] = set()
        self._paces: dict[str, NotificationPace] = {}
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.is_live = False
        """Whether notifications of other processes are received."""

    @contextmanager
    def waiting(self, name: str, *, remote: bool) -> Iterator[asyncio.Event]:
        """Return an event that is set when the name rings. With `remote`, listen for other processes from now on."""
        if remote:
            self._by_word.setdefault(_short(name), name)
            if self._listening is None and self._dialect.notifies and not self._closing.is_set():
                self._listening = asyncio.create_task(self._listen())
        rung = asyncio.Event()
        self._waiting[name].add(rung)
        try:
            yield rung
        finally:
            self._waiting[name].discard(rung)

    def count(self, name: str) -> int:
        return self._counts[name]

    def ring(self, names: Iterable[str]) -> None:
        """Wake the receivers of these names in this process."""
        for name in names:
            self._counts[name] += 1
            for rung in self._waiting.get(name, ()):
                rung.set()

    def tell(self, names: Iterable[str]) -> None:
        """Wake the receivers of these names in all processes. Waits for nothing, raises nothing."""
        told = set(names)
        self.ring(told)
        if told and self._dialect.notifies and not self._closing.is_set():
            self._unsent |= told
            if self._sending is None or self._sending.done():
                self._sending = asyncio.create_task(self._send_notifications())

    async def close(self) -> None:
        """Send what is not sent yet, and stop listening."""
        self._closing.set()
        if tasks := [task for task in (self._sending, self._listening) if task is not None]:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)  # a connection that is cut off while it opens would leak
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)

    async def _send_notifications(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._unsent:
            due = {name for name in self._unsent if self._closing.is_set() or self._pace(name).not_before <= clock()}
            if not due:
                await self._pause(min(self._pace(name).not_before for name in self._unsent) - clock())
                continue
            self._unsent -= due
            with suppress(Exception):  # whoever is not told looks after its polling interval
                async with asyncio.timeout(NOTIFY_SECONDS):
                    await self._dialect.notify(self._engine, self._channel, sorted(map(_short, due)))
            for name in due:
                self._paces[name] = self._pace(name).after(clock())

    def _pace(self, name: str) -> "NotificationPace":
        return self._paces.get(name, NotificationPace(0.0, 0.0))

    async def _listen(self) -> None:
        seconds, reason = FIRST_RETRY_SECONDS, ""
        while not self._closing.is_set():
            try:
                await self._ready()
                if not self._dialect.listens:
                    _log.info("queue polls the database", extra=self._extra(reason=POOLED))
                    return
                listening = await self._dialect.listen(self._engine, self._channel, self._wake)
            except Exception as error:  # noqa: BLE001 - an outage, however a driver words it: the queue is polled meanwhile
                self._report_loss(reason, error_text(error))
                reason = reason or "cannot listen"
            else:
                if reason:
                    _log.info("queue notifications restored", extra=self._extra())
                else:
                    _log.info("queue waits for notifications", extra=self._extra())
                seconds, reason = FIRST_RETRY_SECONDS, ""
                await self._listen_until_lost(listening)
                if self._closing.is_set():
                    return
                reason = "the listening connection was lost"
                self._report_loss("", reason)
            await self._pause(seconds)
            seconds = min(2 * seconds, LONGEST_RETRY_SECONDS)

    async def _listen_until_lost(self, listening: Listening) -> None:
        self.is_live = True
        try:
            self.ring(self._by_word.values())  # for what was sent before
            waiting = [asyncio.ensure_future(event.wait()) for event in (listening.ended, self._closing)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()
        finally:
            self.is_live = False
            await asyncio.shield(listening.close())
            self.ring(self._by_word.values())  # from now on they poll

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _wake(self, word: str) -> None:
        name = self._by_word.get(word)
        if name is not None:
            self.ring([name])

    def _report_loss(self, before: str, reason: str) -> None:
        if not before:
            _log.warning("queue notifications lost, polling the database", extra=self._extra(reason=reason))

    def _extra(self, **fields: object) -> dict[str, object]:
        return {"endpoint": ", ".join(sorted(self._by_word.values())), **fields}


def _short(name: str) -> str:
    """Return a word that needs no quotes for a name of any length and characters."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=NAME_BYTES).hexdigest()
