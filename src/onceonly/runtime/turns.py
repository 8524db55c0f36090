"""Turns: units follow one another, and what comes before and after them overlaps with the units of other batches.

A batch is received, handled in a unit, dispatched and finished. Only so many loops of a worker may hold what is not handled
yet, and only so many units are open at once; once a unit is committed, the next batch is received and handled while this one is
dispatched and finished. So a slow broker or a slow disk delays messages and costs no throughput, and batches do not fight
for the same rows.
"""

import asyncio
from collections.abc import Hashable, Sequence

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Store, Unit


class Turns:
    """How many loops may hold unhandled deliveries, and how many units may be open: first come, first served."""

    def __init__(self, units: int) -> None:
        """Let `units` loops at a time receive and handle."""
        self.receiving = asyncio.Semaphore(units)
        self.handling = asyncio.Semaphore(units)


class Turn:
    """One loop's turn to receive: taken before it receives, given up when its unit is committed."""

    def __init__(self, turns: Turns) -> None:
        """Begin without the turn."""
        self._turns = turns
        self._has_it = False

    async def take(self) -> None:
        """Wait for the turn."""
        await self._turns.receiving.acquire()
        self._has_it = True

    def give_up(self) -> None:
        """Let the next loop receive; harmless when repeated."""
        if self._has_it:
            self._has_it = False
            self._turns.receiving.release()

    def over(self, store: Store) -> "TurningStore":
        """Give a store whose units take turns, and end this one."""
        return TurningStore(store, self, self._turns.handling)


class TurningStore:
    """A store whose units wait until fewer are open."""

    def __init__(self, store: Store, turn: Turn, handling: asyncio.Semaphore) -> None:
        """Enclose this store."""
        self._store = store
        self._turn = turn
        self._handling = handling

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Wait for the turn, then begin."""
        await self._handling.acquire()
        try:
            return TurningUnit(await self._store.begin(messages, isolated=isolated), self._turn, self._handling)
        except BaseException:
            self._handling.release()
            raise

    async def forget(self, identities: Sequence[Identity]) -> None:
        """Forget as ever."""
        await self._store.forget(identities)

    async def undispatched(self, older_than: int, limit: int, *, after: Identity | None = None) -> tuple[Record, ...]:
        """List as ever."""
        return await self._store.undispatched(older_than, limit, after=after)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find as ever."""
        return await self._store.find(identities)

    def unit_key(self, message: Message) -> Hashable:
        """Tell as ever."""
        return self._store.unit_key(message)


class TurningUnit:
    """A unit whose end lets the next one begin."""

    def __init__(self, unit: Unit, turn: Turn, handling: asyncio.Semaphore) -> None:
        """Enclose this unit."""
        self._unit = unit
        self._turn = turn
        self._handling = handling
        self._is_open = True
        self.new: tuple[Message, ...] = unit.new
        self.owed: tuple[Record, ...] = unit.owed
        self.done: tuple[Message, ...] = unit.done
        self.clashing: tuple[Message, ...] = unit.clashing
        self.resources: Resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit; then the next batch may be received. After a failure the unit is abandoned, as every unit is."""
        await self._unit.commit(records)
        self._end()
        self._turn.give_up()

    def abandon(self) -> None:
        """Abandon; its messages may be handled again, so the turn to receive is kept."""
        self._unit.abandon()
        self._end()

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._handling.release()
