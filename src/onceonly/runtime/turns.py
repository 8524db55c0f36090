"""Turns: batches are handled one after another, and dispatched and finished side by side.

A batch is received, handled in a unit, dispatched and finished. Only so many loops of a worker may hold what is not handled
yet; once a loop's unit is committed, the next loop receives and handles, while this one dispatches and finishes. So a slow
broker or a slow disk delays messages and costs no throughput, and the batches of one worker do not fight for the same rows. A
batch of several units, one for each entity, keeps its turn until all are committed: the next is likely about the same ones.
"""

import asyncio
from collections.abc import Sequence

from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Store, Unit
from onceonly.runtime.enclosed import EnclosedStore


class Turn:
    """One loop's turn to receive and handle: taken before it receives, given up when its unit is committed."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        """Share the turns with the other loops: first come, first served."""
        self._turns = turns
        self._has_it = False
        self._one = asyncio.Lock()
        self._left = 1

    def expect(self, units: int) -> None:
        """Be told how many units the batch has; the turn ends with their last commit, or else with the batch."""
        self._left = units

    def committed(self) -> None:
        """Count a commit. Units that were divided count more than once, and end the turn early: it is taken again."""
        self._left -= 1
        if self._left <= 0:
            self.give_up()

    async def take(self) -> None:
        """Wait for the turn, unless it is had."""
        async with self._one:  # units of one batch may begin side by side
            if not self._has_it:
                await self._turns.acquire()
                self._has_it = True

    def give_up(self) -> None:
        """Let the next loop receive; harmless when repeated."""
        if self._has_it:
            self._has_it = False
            self._turns.release()


class TurningStore(EnclosedStore):
    """A store whose commits, as many as the batch has units, end the turn."""

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
        """Commit; after the last one the next batch may be received."""
        await self._unit.commit(records)
        self._turn.committed()

    def abandon(self) -> None:
        """Abandon as ever."""
        self._unit.abandon()
