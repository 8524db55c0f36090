"""Turns: batches are handled one after another, and dispatched and finished side by side.

A batch is received, handled in a unit, dispatched and finished. Only so many loops of a worker may hold what is not handled
yet; once a loop's unit is committed, the next loop receives and handles, while this one dispatches and finishes. So a slow
broker or a slow disk delays messages and costs no throughput, and the batches of one worker do not fight for the same rows.
"""

import asyncio
from collections.abc import Sequence

from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Store, Unit
from onceonly.runtime.enclosed import EnclosedStore


class Turn:
    """One loop's turn to receive and handle: taken before it receives, given up when its unit is committed.

    Where a batch is several units side by side it is given up when the last of them is committed, or has ended. Until they
    have all ended none of them waits for it again: they hold room that whoever has the turn may need, and neither would ever
    get what it waits for.
    """

    def __init__(self, turns: asyncio.Semaphore) -> None:
        """Share the turns with the other loops: first come, first served."""
        self._turns = turns
        self._has_it = False
        self._side_by_side: frozenset[object] = frozenset()
        self._uncommitted: set[object] = set()

    async def take(self) -> None:
        """Wait for the turn, unless it is had or was shared."""
        if not self._has_it and asyncio.current_task() not in self._side_by_side:
            await self._turns.acquire()
            self._has_it = True

    def share(self, tasks: Sequence[object]) -> None:
        """Let these tasks run their units in this turn, side by side; nobody, once they have ended."""
        self._side_by_side, self._uncommitted = frozenset(tasks), set(tasks)

    def done(self) -> None:
        """Take note that the unit of the current task is committed, or ended without; the last one gives the turn up."""
        self._uncommitted.discard(asyncio.current_task())
        if not self._uncommitted:
            self.give_up()

    def give_up(self) -> None:
        """Let the next loop receive; harmless when repeated."""
        if self._has_it:
            self._has_it = False
            self._turns.release()


class TurningStore(EnclosedStore):
    """A store whose commits end the turn."""

    def __init__(self, store: Store, turn: Turn) -> None:
        """Enclose this store."""
        super().__init__(store)
        self._turn = turn

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin; a second unit of the same batch, after the first was committed, takes the turn again."""
        await self._turn.take()
        return TurningUnit(await self._store.begin(messages, isolated=isolated), self._turn)


class TurningUnit:
    """A unit whose commit ends the turn; one that is abandoned may be followed by another with the same messages."""

    def __init__(self, unit: Unit, turn: Turn) -> None:
        """Enclose this unit."""
        self._unit = unit
        self._turn = turn
        self.key: str = unit.key
        self.new: tuple[Message, ...] = unit.new
        self.owed: tuple[Record, ...] = unit.owed
        self.done: tuple[Message, ...] = unit.done
        self.clashing: tuple[Message, ...] = unit.clashing
        self.resources: Resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit; then the next batch may be received."""
        await self._unit.commit(records)
        self._turn.done()

    def abandon(self) -> None:
        """Abandon as ever."""
        self._unit.abandon()
