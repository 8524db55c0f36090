"""Slots: batches are handled one after another, and dispatched and finished side by side.

A batch is received, handled in a unit, dispatched and finished. Only some loops of a worker may hold what is not handled
yet; once a loop's unit is committed, the next loop receives and handles, while this one dispatches and finishes. So a slow
broker or a slow disk delays messages and costs no throughput, and the batches of one worker do not fight for the same rows.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onceonly.algorithms.delivery import Work, Works, one_after_another
from onceonly.algorithms.settlement import BatchReport
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Store, Unit
from onceonly.runtime.worker.batched_delete import BatchedDelete
from onceonly.runtime.worker.dispatches import CopyAwareStore, CopyAwareUnit, Dispatches
from onceonly.runtime.worker.isolated_runs import GateMember


class HandlerSlot:
    """A loop's slot to receive and handle. It is taken before the loop receives, and given up when its unit is committed."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._has_it = False
        self._is_shared = False
        self._without_room = 0

    async def take(self) -> None:
        """Wait for the slot, unless the loop has it, or its units run side by side."""
        if not self._has_it and not self._is_shared:
            await self._slots.acquire()
            self._has_it = True

    @contextmanager
    def shared(self, units: int) -> Iterator[None]:
        """Enclose units of one batch that run side by side: the first commit behind the last `begin` gives the slot up.

        None of them waits for it again: they hold room that units of the batch whose slot it is may be waiting for.
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
        """Pass the slot to the next loop, unless some of this one's units have no room yet. Harmless when repeated."""
        if self._has_it and not self._without_room:
            self._has_it = False
            self._slots.release()


class SlottedStore(CopyAwareStore):
    """The store as one loop uses it: the only wrapper between the algorithm and the adapter, or its observer.

    Its commits give the slot up, and so do its waits. Its units never run while another unit has the process to itself, and
    `forget` is that of all loops of the worker. Every other call is the store's own.
    """

    def __init__(
        self, store: Store, slot: HandlerSlot, membership: GateMember, *, forgets: BatchedDelete, dispatches: Dispatches
    ) -> None:
        super().__init__(store, dispatches, forgets.timer)
        self._slot = slot
        self._membership = membership
        self.forget = forgets.forget

    async def _open(self, messages: Sequence[Message], *, isolated: bool) -> Unit:
        """Begin; a second unit of the same batch, after the first was committed, takes the slot again.

        A unit that has the process to itself takes no slot: the loop with the slot may be waiting until that unit has ended.
        """
        if not self._membership.is_alone:
            await self._slot.take()
        left = self._membership if await self._membership.enter() else None
        try:
            unit = await self._store.begin(messages, isolated=isolated)
        except BaseException:
            if left is not None:
                left.leave()
            raise
        return SlottedUnit(unit, self, self._slot, left)

    def _give_way(self) -> None:
        self._slot.give_up()


class SlottedUnit(CopyAwareUnit):
    """A unit whose commit gives the slot up; one that is abandoned may be followed by another with the same messages."""

    def __init__(self, unit: Unit, store: CopyAwareStore, slot: HandlerSlot, membership: GateMember | None) -> None:
        super().__init__(unit, store)
        self._slot = slot
        self._membership = membership

    async def commit(self, records: Sequence[Record]) -> None:
        await super().commit(records)
        self._leave()
        self._slot.give_up()

    def abandon(self) -> None:
        """Abandon the unit; also what follows a commit that raised."""
        self._leave()
        self._unit.abandon()

    def _leave(self) -> None:
        if self._membership is not None:
            self._membership.leave()
            self._membership = None


class ConcurrencyLimit:
    """Does the works of one loop's batches side by side, at most this many of a worker at once.

    These units of one batch have nothing to do with each other, such as different entities.
    """

    def __init__(self, room: asyncio.Semaphore, slot: HandlerSlot) -> None:
        self._room = room
        self._slot = slot

    async def __call__(self, works: Works) -> BatchReport:
        """Do them all, then raise what the first of them raised."""
        if len(works) < 2:  # noqa: PLR2004 - one or none
            return await one_after_another(works)
        with self._slot.shared(len(works)):
            return await self._together(works)

    async def _together(self, works: Works) -> BatchReport:
        tasks = [asyncio.create_task(self._in_slot(work)) for work in works]
        try:
            await asyncio.wait(tasks)
        finally:  # ends tasks; calls no port
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return sum((task.result() for task in tasks), BatchReport())

    async def _in_slot(self, work: Work) -> BatchReport:
        async with self._room:
            self._slot.begin()
            return await work()
