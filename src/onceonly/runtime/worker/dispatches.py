"""Dispatches in progress: a copy waits until the record of its message is dispatched, and does not dispatch it as well.

Two dispatches are correct, since they send the same ids. A receiver that does not check ids handles both.

in this process   A loop holds the records that it commits or finds pending, until they are deleted or its batch is settled. A
                  copy in another loop waits for that.
elsewhere         A young record has a process that is most likely alive: the one that committed it, or the relay that took it.
                  A copy polls until the record is deleted or `YOUNG_SECONDS` old. Then it dispatches the record itself.

A copy is never acknowledged for a record that is not dispatched: the unit begins again after each wait, and `begin` decides.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from onceonly.model.errors import OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult, Resources, Store, Unit
from onceonly.runtime.environment import Timer, pause

YOUNG_SECONDS = 2.0
"""How long the process that committed a record has for its dispatch. A unit waits no longer than this for all its copies."""
FIRST_POLL_SECONDS, MOST_POLL_SECONDS = 0.01, 0.25


class Dispatches:
    """The records that are in dispatch in one process, and who dispatches each."""

    def __init__(self) -> None:
        self._holders: dict[Identity, object] = {}
        self._changed: asyncio.Event | None = None  # while somebody waits

    def hold(self, identities: Iterable[Identity], holder: object) -> None:
        for identity in identities:
            self._holders[identity] = holder

    def release(self, identities: Iterable[Identity], holder: object) -> None:
        """Wake up those that wait for one of these. Another holder's stay."""
        self._remove([identity for identity in identities if self._holders.get(identity) is holder])

    def forgotten(self, records: Iterable[Record]) -> None:
        """Wake up those that wait for one of these records, which are deleted."""
        self._remove([record.identity for record in records if record.identity in self._holders])

    def are_elsewhere(self, of: Iterable[Message | Record], holder: object) -> bool:
        """Return whether another holder has a record of any of these messages, or any of these records."""
        if not self._holders:
            return False
        for each in of:  # noqa: SIM110 - a generator costs more, and each message passes here
            if self._holders.get(each.identity, holder) is not holder:
                return True
        return False

    async def wait(self, messages: Sequence[Message], holder: object, seconds: float, timer: Timer) -> None:
        """Wait until no other holder has a record of any of these messages, for `seconds` at most."""
        until = timer.seconds() + seconds
        while self.are_elsewhere(messages, holder) and (left := until - timer.seconds()) > 0:
            self._changed = self._changed or asyncio.Event()
            await pause(left, timer, self._changed)

    def _remove(self, identities: Sequence[Identity]) -> None:
        for identity in identities:
            del self._holders[identity]
        if identities and self._changed is not None:
            self._changed.set()
            self._changed = None


class CopyAwareStore:
    """A store whose units wait for dispatches of the same messages. It serves one batch at a time."""

    def __init__(self, store: Store, dispatches: Dispatches, timer: Timer) -> None:
        self._store = store
        self._dispatches = dispatches
        self._timer = timer
        self._held: set[Identity] = set()
        self.keeps, self.unit_key = store.keeps, store.unit_key
        self.forget: Callable[[Sequence[Record]], Coroutine[Any, Any, None]] = self._forget

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin, when none of these messages is being dispatched elsewhere, or after `YOUNG_SECONDS`."""
        waits = _Waits(self._timer)
        while True:
            if self._dispatches.are_elsewhere(messages, self) and waits.left:
                self._give_way()
                await self._dispatches.wait(messages, self, waits.left, self._timer)
            unit = await self._open(messages, isolated=isolated)
            found = unit.found
            if not found.pending:
                return unit
            is_here = self._dispatches.are_elsewhere(found.pending, self)  # committed while this unit waited for its claim
            seconds = waits.left if is_here else min(waits.left, self._seconds_young(found))
            if not seconds:
                self.hold(record.identity for record in found.pending)
                return unit
            unit.abandon()  # another process may need its locks
            if not is_here:
                self._give_way()
                await self._timer.sleep(waits.poll(seconds))

    async def _open(self, messages: Sequence[Message], *, isolated: bool) -> Unit:
        return CopyAwareUnit(await self._store.begin(messages, isolated=isolated), self)

    def _give_way(self) -> None:
        """Give up, before a wait, what others need to finish, or could use meanwhile."""

    async def _forget(self, records: Sequence[Record]) -> None:
        await self._store.forget(records)
        self._dispatches.forgotten(records)

    def hold(self, identities: Iterable[Identity]) -> None:
        added = tuple(identities)
        self._held.update(added)
        self._dispatches.hold(added, self)

    def release(self, identities: Iterable[Identity]) -> None:
        gone = self._held.intersection(identities)
        self._held -= gone
        self._dispatches.release(gone, self)

    def end_batch(self) -> None:
        """Release what is left: the batch is settled, and copies of what is still pending come again."""
        if self._held:
            held, self._held = self._held, set()
            self._dispatches.release(held, self)

    def _seconds_young(self, found: BeginResult) -> float:
        """Return after how many seconds no pending record is young. 0 if none is young, or no age is known.

        What this batch has committed itself does not count. The clock of another process may be ahead.
        """
        ages = [age for record, age in zip(found.pending, found.ages, strict=False) if record.identity not in self._held]
        return max([0.0, *(YOUNG_SECONDS - abs(age) / 1000 for age in ages)])


class CopyAwareUnit:
    """A unit that holds what it commits."""

    def __init__(self, unit: Unit, store: CopyAwareStore) -> None:
        self._unit = unit
        self._store = store
        self.key: str = unit.key
        self.found: BeginResult = unit.found
        self.resources: Resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Hold the records first: a unit that waits for the claims of this one sees them as soon as they are committed."""
        pending = [record.identity for record in records if record.is_pending]
        self._store.hold(pending)
        try:
            await self._unit.commit(records)
        except OutcomeUnknown:
            raise  # if it is committed, this batch may still dispatch it
        except BaseException:
            self._store.release(pending)
            raise

    def abandon(self) -> None:
        self._unit.abandon()


class _Waits:
    """How long one `begin` waits for dispatches, altogether."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._until: float | None = None
        self._poll = FIRST_POLL_SECONDS

    @property
    def left(self) -> float:
        """How many seconds it may still wait. They begin with the first time that it is asked."""
        now = self._timer.seconds()
        if self._until is None:
            self._until = now + YOUNG_SECONDS
        return max(0.0, self._until - now)

    def poll(self, seconds: float) -> float:
        """Return the seconds to the next look at the store, longer each time."""
        found, self._poll = min(seconds, self._poll), min(MOST_POLL_SECONDS, 2 * self._poll)
        return found
