"""Turns: batches are handled one after another, and dispatched and finished side by side.

A batch is received, handled in a unit, dispatched and finished. Only some loops of a worker may hold what is not handled
yet; once a loop's unit is committed, the next loop receives and handles, while this one dispatches and finishes. So a slow
broker or a slow disk delays messages and costs no throughput, and the batches of one worker do not fight for the same rows.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult, Records, Resources, Store, Unit
from onceonly.runtime.worker.alone import GateMember


class LoopTurn:
    """One loop's turn to receive and handle: taken before it receives, given up when its unit is committed."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        """Share the turns with the other loops: first come, first served."""
        self._turns = turns
        self._has_it = False
        self._is_shared = False
        self._without_room = 0

    async def take(self) -> None:
        """Wait for the turn, unless it is had, or was had by units that run side by side."""
        if not self._has_it and not self._is_shared:
            await self._turns.acquire()
            self._has_it = True

    @contextmanager
    def shared(self, units: int) -> Iterator[None]:
        """Enclose units of one batch that run side by side: the first commit behind the last `begin` gives the turn up.

        None of them waits for it again: they hold room that units of the batch whose turn it is may be waiting for.
        """
        self._is_shared, self._without_room = True, units
        try:
            yield
        finally:
            self._is_shared, self._without_room = False, 0

    def begin(self) -> None:
        """Note that one more of these units has its room."""
        self._without_room -= 1

    def give_up(self) -> None:
        """Let the next loop receive, unless some of this one's units have no room yet; harmless when repeated."""
        if self._has_it and not self._without_room:
            self._has_it = False
            self._turns.release()


class TurningStore:
    """The store as one loop uses it: the only wrapper between the algorithm and the adapter, or its observer.

    Its commits end the turn, its units never run while another unit has the process to itself, and `forget` is that of all
    loops of the worker. Every other call is the store's own.
    """

    def __init__(self, store: Store, turn: LoopTurn, presence: GateMember, *, forgets: Records) -> None:
        """Enclose `begin` of this store."""
        self._store = store
        self._turn = turn
        self._presence = presence
        self.keeps, self.unit_key, self.forget = store.keeps, store.unit_key, forgets.forget

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin; a second unit of the same batch, after the first was committed, takes the turn again.

        A unit that has the process to itself takes no turn: the loop with the turn may be waiting until that unit has ended.
        """
        if not self._presence.is_alone:
            await self._turn.take()
        left = self._presence if await self._presence.enter() else None
        try:
            unit = await self._store.begin(messages, isolated=isolated)
        except BaseException:
            if left is not None:
                left.leave()
            raise
        return TurningUnit(unit, self._turn, left)


class TurningUnit:
    """A unit whose commit ends the turn; one that is abandoned may be followed by another with the same messages."""

    def __init__(self, unit: Unit, turn: LoopTurn, presence: GateMember | None) -> None:
        """Enclose this unit; `presence` is left at its end."""
        self._unit = unit
        self._turn = turn
        self._presence = presence
        self.key: str = unit.key
        self.found: BeginResult = unit.found
        self.resources: Resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit; then the next batch may be received."""
        await self._unit.commit(records)
        self._leave()
        self._turn.give_up()

    def abandon(self) -> None:
        """Abandon the unit; also what follows a commit that raised."""
        self._leave()
        self._unit.abandon()

    def _leave(self) -> None:
        if self._presence is not None:
            self._presence.leave()
            self._presence = None
