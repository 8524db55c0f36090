"""What one process receives from a queue with sessions.

A process holds several sessions, each on a connection of its own. It takes more messages of a session only when those before
are settled, so messages of a session are handled in their order. A session that has no more messages is closed, and the service
gives it to any process when the next message comes. After some seconds it is closed anyway, so that other sessions get a turn.

What is released is not settled. When nothing of its session is in work, the session is closed, and the service delivers what is
left again, in the old order.

The service counts no delivery of a session that was closed, and the connection of a dead process closes its sessions. So the
count does not show that a message was held by a process that died. The state of the session does: before messages are handed
out, it is set to the highest of their sequence numbers, and it is cleared when the session is closed in order. Crash between
the two: 1 state set, 2 process dies, 3 another accepts the session, 4 messages up to that number are suspects.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any
from uuid import UUID

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import MessageLockLostError, OperationTimeoutError, SessionLockLostError

from onceonly.adapters.azure.servicebus.address import is_shared_session
from onceonly.adapters.azure.servicebus.inbox import (
    Puller,
    ServiceBusReceipt,
    Stop,
    Taken,
    delivery_of,
    receive_error,
    token_of,
)
from onceonly.adapters.azure.servicebus.link import LOST, ServiceBusLink, is_cancelled, translated
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown
from onceonly.queues.deliveries import BackgroundCalls

MOST_SESSIONS = 32
"""Sessions that one process holds."""
MOST_ACCEPTING = 4
"""Connections that wait for a session."""
ACCEPT_SECONDS, ACCEPT_PAUSE_SECONDS = 30.0, 0.1
POLL_SECONDS = 0.25
"""Between two looks at a session of messages without a key, while others of it are in work."""
IDLE_SECONDS = 0.5
"""Seconds after which a session is closed that is not read, and after which no further session is awaited."""
TURN_SECONDS = 5.0
"""After which a session is closed when nothing of it is in work."""
MARK = "onceonly:"
LOST_OR_TRANSLATED: tuple[type[Exception], ...] = (*LOST, OnceOnlyError)


class SessionInbox:
    """Deliveries of one queue, for all receivers of one process."""

    def __init__(self, link: ServiceBusLink, queue: str) -> None:
        self._link = link
        self._queue = queue
        self._sessions: dict[str, HeldSession] = {}
        self._accepting: set[asyncio.Task[None]] = set()
        self._background = BackgroundCalls()
        self._idle_task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._trouble: OnceOnlyError | None = None
        self._is_known = self._is_closed = False
        self._takers = 0
        self._taken_at = 0.0

    async def take(self, limit: int, wait: float) -> list[Taken]:
        """Take what waits, at most `limit`, none after `wait` seconds. Raises RetryableError, QueueMissing.

        Cancelled, it ends in the background, and releases what has come.
        """
        stop = Stop()
        taking = asyncio.create_task(self._take(limit, wait, stop))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            stop.is_set = True
            self._notify()
            self._background.start(self._undo(taking), *LOST)
            raise

    async def complete(self, receipts: Sequence[ServiceBusReceipt]) -> None:
        """Delete messages; those whose session was lost are ignored. Raises OutcomeUnknown."""
        found = [(session, tokens) for session, tokens in self._by_session(receipts) if not session.is_lost]
        results = await asyncio.gather(*(session.complete(tokens) for session, tokens in found), return_exceptions=True)
        await self._after([session for session, _ in found])
        self._notify()
        for result in results:
            if isinstance(result, BaseException):
                raise _settle_error(result, self._queue)

    async def release(self, receipts: Sequence[ServiceBusReceipt]) -> None:
        """Release messages. They come again when nothing of their session is in work. Raises OutcomeUnknown."""
        found = list(self._by_session(receipts))
        for session, tokens in found:
            session.give_back(tokens)
        if not await self._after([session for session, _ in found]):
            raise OutcomeUnknown(f"cannot release messages: the connection to queue {self._queue!r} was lost")

    async def renew(self, receipts: Sequence[ServiceBusReceipt]) -> None:
        """Renew locks of sessions; one that was lost is not revived. Raises OutcomeUnknown."""
        found = [session for session, _ in self._by_session(receipts) if not session.is_lost]
        results = await asyncio.gather(*(session.renew() for session in found), return_exceptions=True)
        await self._after(found)
        for result in results:
            if isinstance(result, BaseException):
                raise _settle_error(result, self._queue)

    async def exists(self) -> None:
        """Connect to the queue. Raises QueueMissing, CommitFailed, SetupError."""
        await self._link.find(self._queue)
        self._is_known = True

    async def close(self) -> None:
        """Close all sessions. What is in work comes again at once, as suspects."""
        self._is_closed = True
        for task in (*self._accepting, *filter(None, [self._idle_task])):
            task.cancel()
        if waiting := {*self._accepting, *filter(None, [self._idle_task])}:
            await asyncio.wait(waiting)
        await self._background.close()
        await asyncio.gather(*(session.close() for session in self._sessions.values()))
        self._sessions.clear()

    async def _take(self, limit: int, wait: float, stop: Stop) -> list[Taken]:
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        self._takers += 1
        try:
            if not self._is_known:
                await self.exists()  # to wait for a session would look like an empty queue
            while True:
                changed = self._changed  # what happens from here on ends the wait below
                self._accept_more()
                got = await self._collect(limit, stop)
                if stop.is_set:
                    await self.release([receipt for _, receipt, _ in got])
                    return []
                if got:
                    return got
                if (trouble := self._trouble) is not None:
                    self._trouble = None
                    self._is_known = False
                    raise trouble
                if (left := end - clock()) <= 0:
                    return []
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_SECONDS) if self._are_any_ready else left):
                        await changed.wait()
        finally:
            self._takers -= 1
            self._taken_at = clock()

    async def _undo(self, taking: "asyncio.Task[list[Taken]]") -> None:
        """Release what has been taken although the caller no longer waits."""
        await self.release([receipt for _, receipt, _ in await taking])

    async def _collect(self, limit: int, stop: Stop) -> list[Taken]:
        """Take from all sessions at the same time, an equal share of each, until there is enough or no more."""
        got: list[Taken] = []
        mine: set[HeldSession] = set()
        waiting = list(self._sessions.values())
        while (left := limit - len(got)) and not stop.is_set:
            chosen: list[HeldSession] = []
            while waiting and len(chosen) < left:
                session = waiting.pop(0)
                if session.claim(again=session in mine):  # at once: other receivers look at the same sessions
                    chosen.append(session)
            if not chosen:
                break
            share, more = divmod(left, len(chosen))
            counts = [share + (number < more) for number in range(len(chosen))]
            results = await asyncio.gather(*map(HeldSession.take, chosen, counts))
            got += [message for result in results for message in result]
            self._background.start(self._after(chosen), *LOST)
            mine.update(chosen)
            waiting += [session for session, count, found in zip(chosen, counts, results, strict=True) if len(found) == count]
        return got

    async def _after(self, sessions: Iterable["HeldSession"]) -> bool:
        """Close those that are over, after something was taken or settled, and let receivers look again.

        Return whether all were closed in order.
        """
        over = [session for session in sessions if session.is_over and self._sessions.get(session.id) is session]
        for session in over:
            del self._sessions[session.id]
        if not over:
            return True
        await asyncio.gather(*(session.close() for session in over))
        self._notify()
        return not any(session.is_lost for session in over)

    @property
    def _are_any_ready(self) -> bool:
        return any(session.is_ready for session in self._sessions.values())

    def _by_session(self, receipts: Sequence[ServiceBusReceipt]) -> Iterable[tuple["HeldSession", list[UUID]]]:
        tokens: dict[str, list[UUID]] = {}
        for receipt in receipts:
            tokens.setdefault(receipt.session, []).append(receipt.token)
        for name, several in tokens.items():
            session = self._sessions.get(name)
            mine = [] if session is None else [token for token in several if token in session.out]
            if session is not None and mine:
                yield session, mine

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Sessions

    def _accept_more(self) -> None:
        if self._is_closed:
            return
        room = MOST_SESSIONS - len(self._sessions)
        while len(self._accepting) < min(MOST_ACCEPTING, room):
            task = asyncio.create_task(self._accept())
            self._accepting.add(task)
            task.add_done_callback(self._accepted)
        if self._idle_task is None or self._idle_task.done():
            self._idle_task = asyncio.create_task(self._close_idle())

    async def _accept(self) -> None:
        """Accept sessions while receivers wait for messages and there is room."""
        while len(self._sessions) + len(self._accepting) <= MOST_SESSIONS:
            try:
                session = await self._open(ACCEPT_SECONDS)
            except OperationTimeoutError:
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            except LOST as error:
                self._trouble = receive_error(error, self._queue)
                self._notify()
                return
            if is_cancelled():
                await session.close()
                return
            if (before := self._sessions.pop(session.id, None)) is not None:
                self._background.start(before.lose(), *LOST)  # the service has given it away, so its lock was lost
            self._sessions[session.id] = session
            self._notify()

    def _accepted(self, task: "asyncio.Task[None]") -> None:
        self._accepting.discard(task)
        self._notify()  # a receiver that has come meanwhile needs another one

    async def _open(self, seconds: float) -> "HeldSession":
        """Accept the next session. Raises the SDK's errors."""
        options: dict[str, Any] = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": seconds}
        session = HeldSession(self._link.receiver(self._queue, **options), self._link.address.timeout)
        try:
            async with asyncio.timeout(seconds + self._link.address.timeout):
                await session.accept()
        except BaseException:
            await session.close()
            raise
        return session

    async def _close_idle(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._sessions or self._accepting:
            await asyncio.sleep(IDLE_SECONDS / 2)
            idle = clock() - IDLE_SECONDS
            if not self._takers and self._taken_at < idle:
                for task in self._accepting:
                    task.cancel()
                for session in self._sessions.values():
                    session.is_over = session.is_over or (not session.out and session.used_at < idle)
            await self._after(tuple(self._sessions.values()))


class HeldSession(Puller):
    """One session, on a link of its own.

    `out` are messages in work, by lock token: the number of the delivery and its tag. `is_over` is whether to close it.
    """

    def __init__(self, receiver: Any, timeout: float) -> None:
        super().__init__(receiver, by_token=False)
        self.id = ""
        self.out: dict[UUID, tuple[int, bytes]] = {}
        self.is_lost = False
        self.used_at = 0.0
        self._over = False
        self._pulling = False
        self._suspects = 0
        self._written = 0
        self._highest = 0
        self._opened_at = 0.0
        self._timeout = timeout
        self._using = asyncio.Lock()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is in work and no more is to be taken, or it was lost."""
        return self.is_lost or (self._over and not self.out and not self._pulling)

    @is_over.setter
    def is_over(self, value: bool) -> None:
        self._over = value

    @property
    def is_ready(self) -> bool:
        """Whether messages may be taken. Those of a key are in work one batch at a time."""
        return self._has_more and (not self.out or is_shared_session(self.id))

    def claim(self, *, again: bool) -> bool:
        """Claim it for `take`; return whether that is possible. `again` is for the rest of a batch."""
        if not (self._has_more if again else self.is_ready):
            return False
        self._pulling = True
        return True

    @property
    def _has_more(self) -> bool:
        return self.is_open and not (self._over or self.is_lost or self._pulling)

    async def accept(self) -> None:
        """Open it, and read which messages were held by a process that died. Raises the SDK's errors."""
        await self.open()
        self.id = self.session_id
        self._opened_at = self.used_at = asyncio.get_running_loop().time()
        state = await self.ask(lambda session: session.get_state(timeout=self._timeout))
        self._suspects = self._written = _read_mark(state)

    async def take(self, limit: int) -> list[Taken]:
        """Take what waits, after `claim`. A session that was lost has nothing."""
        try:
            async with self._using:
                got = await self.pull(limit, 0.0, Stop())
                if not got:
                    self._over = self._over or not self.out
                    self._highest = max(self._highest, self._suspects)  # all of those are gone, or in work
                    return []
                self._highest = max(self._highest, *(message.sequence_number or 0 for message in got))
                if self._highest > self._written:
                    await self._set_state(self._highest)
        except LOST_OR_TRANSLATED:
            await self.lose()
            return []
        finally:
            self._pulling = False
        self.out |= {token_of(message): delivery_of(message) for message in got}
        return [
            (message, ServiceBusReceipt(token_of(message), self.id), (message.sequence_number or 0) <= self._suspects)
            for message in got
        ]

    async def complete(self, tokens: Sequence[UUID]) -> None:
        """Delete messages. Raises the SDK's errors, unless the lock was lost."""
        settled = sorted(self.out.pop(token) for token in tokens if token in self.out)
        self._used()
        try:
            async with self._using:
                for first, last, tags in _runs(settled):
                    await self.settle(first, last, tags, self._timeout)
        except (SessionLockLostError, MessageLockLostError):
            await self.lose()
        except LOST:
            await self.lose()
            raise

    def give_back(self, tokens: Sequence[UUID]) -> None:
        """Take messages out of work. They are delivered again when the session is closed."""
        for token in tokens:
            self.out.pop(token, None)
        self._over = True

    async def renew(self) -> None:
        """Renew its lock. Raises the SDK's errors, unless the lock was lost."""
        try:
            async with self._using:
                await self.ask(lambda session: session.renew_lock(timeout=self._timeout))
        except SessionLockLostError:
            await self.lose()
        except LOST:
            await self.lose()
            raise

    async def lose(self) -> None:
        """Close a session whose connection or lock was lost. What was in work comes again."""
        self.is_lost = True
        self.out.clear()
        await super().close()

    async def close(self) -> None:
        """Close it in order, so that what is left is not a suspect, unless something is in work."""
        if self.is_open and not self.is_lost and not self.out and self._written:
            left = self._suspects if self._highest < self._suspects else 0
            try:
                if left != self._written:
                    await self._set_state(left)
            except LOST:
                self.is_lost = True
        await super().close()

    async def _set_state(self, mark: int) -> None:
        state = f"{MARK}{mark}" if mark else None
        await self.ask(lambda session: session.set_state(state, timeout=self._timeout))
        self._written = mark

    def _used(self) -> None:
        self.used_at = asyncio.get_running_loop().time()
        self._over = self._over or self.used_at > self._opened_at + TURN_SECONDS


def _runs(deliveries: Sequence[tuple[int, bytes]]) -> Iterable[tuple[int, int, list[bytes]]]:
    """Join numbers of deliveries that follow each other: one frame settles a run."""
    starts = [0, *(at + 1 for at, (one, other) in enumerate(pairwise(deliveries)) if other[0] != one[0] + 1), len(deliveries)]
    for start, end in pairwise(starts):
        if run := deliveries[start:end]:
            yield run[0][0], run[-1][0], [tag for _, tag in run]


def _read_mark(state: Any) -> int:
    text = bytes(state).decode(errors="replace") if state else ""
    digits = text.removeprefix(MARK)
    return int(digits) if text.startswith(MARK) and digits.isascii() and digits.isdigit() else 0


def _settle_error(error: BaseException, queue: str) -> BaseException:
    if not isinstance(error, Exception):
        return error
    found = translated(error, f"settle messages of queue {queue!r}")
    return OutcomeUnknown(str(found)) if isinstance(found, CommitFailed) else found
