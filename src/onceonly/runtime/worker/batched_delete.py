"""Forgetting together: one statement drops the records of all batches that are done at about the same time.

Deleting a record late loses nothing: its messages have been sent. But a process that is killed leaves the records that it has
not deleted, and their messages are sent again. So a call waits a little for others, until enough callers or `FEW` records have
come. At low rates, when each batch is one message, most of the cost of forgetting is gone. While one statement is under way all
later ones wait for one next.

A relay has one loop, which has more to send: it does not wait.
"""

import asyncio
from collections.abc import Callable, Sequence

from onceonly.model.errors import OutcomeUnknown
from onceonly.model.record import Record
from onceonly.ports.store import Records
from onceonly.runtime.environment import Timer, pause

WINDOW_SECONDS = 0.03
"""Seconds that a statement waits for others to join."""
FEW = 6
"""Records for which no statement waits any longer."""


class DeleteBatch:
    """What one statement forgets, for how many callers, and its outcome: `error` is None when all is forgotten."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.callers = 0
        self.is_full = asyncio.Event()
        self.begun = False
        self.error: BaseException | None = None

    def join(self, records: Sequence[Record], enough: int) -> None:
        self.records.extend(records)
        self.callers += 1
        if self.callers >= enough or len(self.records) >= FEW:
            self.is_full.set()


class BatchedDelete:
    """Forgets the records of several batches in one call. Each caller learns how the call ended."""

    def __init__(
        self, store: Records, timer: Timer, enough: int, forgotten: Callable[[Sequence[Record]], object] = lambda _: None
    ) -> None:
        """Call this store for all loops of a worker; for `enough` callers a statement waits no longer.

        `forgotten` is called with the records of each statement that succeeded.
        """
        self.timer = timer
        self._store = store
        self._forgotten = forgotten
        self._enough = enough
        self._one = asyncio.Lock()
        self._next = DeleteBatch()

    async def forget(self, records: Sequence[Record]) -> None:
        """Delete these, with what other callers delete by then. Raises what the one call raised."""
        mine = self._next
        mine.join(records, self._enough)
        async with self._one:
            if not mine.begun:
                await pause(WINDOW_SECONDS, self.timer, mine.is_full)
                self._next = DeleteBatch()
                await self._forget(mine)
        if mine.error is not None:
            raise OutcomeUnknown(f"cannot delete a batch of records: {mine.error}") from mine.error

    async def _forget(self, mine: DeleteBatch) -> None:
        mine.begun = True
        try:
            await self._store.forget(mine.records)
        except BaseException as error:
            mine.error = error
            raise
        self._forgotten(mine.records)


class BackgroundDelete:
    """Forgets, raising nothing and waiting for nothing: what several calls want forgotten goes a little later, in one.

    Once there are `enough` records that call waits no longer. `failed` is given the records of one that failed, which are
    there, or may be, and its error.
    """

    def __init__(
        self, store: Records, timer: Timer, *, enough: int, failed: Callable[[Sequence[Record], BaseException], None]
    ) -> None:
        self._store = store
        self._timer = timer
        self._enough = enough
        self._failed = failed
        self._left: list[Record] = []
        self._in_progress = 0
        self._is_full = asyncio.Event()
        self._forgetting: asyncio.Task[None] | None = None

    @property
    def is_settled(self) -> bool:
        return self._forgetting is None

    @property
    def count(self) -> int:
        """How many records are dispatched and not deleted: what a process that dies now leaves to be sent again."""
        return len(self._left) + self._in_progress

    async def forget(self, records: Sequence[Record]) -> None:
        self._left.extend(records)
        if len(self._left) >= self._enough:
            self._is_full.set()
        if self._forgetting is None:
            self._forgetting = asyncio.create_task(self._forget_left())

    async def settle(self, most: int = 0) -> None:
        """Delete what is left now. Returns when at most `most` records are left, or a call has failed."""
        while self._forgetting is not None and self.count > most:
            self._is_full.set()
            await asyncio.wait({self._forgetting})

    async def close(self) -> None:
        """Cut off what is under way, and leave the rest to whoever finds it."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.wait({self._forgetting})

    async def _forget_left(self) -> None:
        try:
            while self._left:
                await pause(WINDOW_SECONDS, self._timer, self._is_full)
                some, self._left = self._left, []
                self._is_full.clear()
                self._in_progress = len(some)
                await self._forget(some)
                self._in_progress = 0
        finally:
            self._in_progress = 0
            self._forgetting = None

    async def _forget(self, records: Sequence[Record]) -> None:
        try:
            await self._store.forget(records)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, whoever is told raises it
            self._failed(records, error)
