"""The janitor's chores: what is to be done from time to time, and how often. Each is done in portions.

Every one is correct alone or beside itself in any number of processes: who leads saves work, and guards nothing.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from onceonly.algorithms.relay import relay
from onceonly.algorithms.sweeper import sweep
from onceonly.model.errors import RetryableError
from onceonly.model.journal import LateSlot
from onceonly.ports.bundle import Ports
from onceonly.ports.environment import Clock
from onceonly.ports.ring import Ring, Rotation, Slot, SlotState
from onceonly.ports.store import PendingRecords
from onceonly.runtime.relay.relay import LEASE_SECONDS, RelayScan
from onceonly.runtime.relay.relay import PAGE as RECORDS

PAGE = 1000
"""How much is removed at once; where a whole page was, there is more."""
LATE_PARTS = 4
"""A slot is late when it could have been rotated for a quarter of its slice's width: two whole ones are to spare."""

_ROTATABLE = frozenset({SlotState.OLD, SlotState.UNLABELLED})


class MaintenanceTask(NamedTuple):
    """One chore: its name, how many seconds lie between two times, and a portion of it, which gives how much it did.

    One that is `urgent` is done at once when messages wait for it.
    """

    name: str
    every: float
    once: Callable[[], Awaitable[int]]
    urgent: bool = False


def tasks_of(ports: Ports, slots: "Slots | None", clock: Clock) -> Iterator[MaintenanceTask]:
    """List what is to be done for an endpoint, in the order in which it is done: a record may stand in a slot's way."""
    upkeep = ports.upkeep
    ring, tokens, artifacts, marks, keys = upkeep.ring, upkeep.tokens, upkeep.artifacts, upkeep.marks, upkeep.keys
    seldom = upkeep.after / 2

    def old() -> int:
        return clock.now() - round(upkeep.after * 1000)

    if ring is not None and slots is not None:
        if (pending := ports.pending) is not None:
            yield MaintenanceTask("sending old records", upkeep.interval, lambda: send_old(ports, pending, old()), urgent=True)
        yield MaintenanceTask("recycling slots", upkeep.interval, slots.rotate, urgent=True)
        yield MaintenanceTask("removing expired claims", upkeep.interval, lambda: ring.remove_expired(PAGE))
    if keys is not None:

        async def remove_keys() -> int:
            kept = max(upkeep.retention, await upkeep.journals.longest_retention() if upkeep.journals else 0)
            return await keys.remove_keys(clock.now() - kept, PAGE)

        yield MaintenanceTask("removing expired keys", upkeep.interval, remove_keys)
    if tokens is not None:
        yield MaintenanceTask("sweeping tokens", seldom, lambda: sweep(tokens, old(), PAGE, ports))
    if artifacts is not None:
        yield MaintenanceTask("sweeping attempts", seldom, lambda: artifacts.sweep(old(), PAGE))
    if marks is not None:
        yield MaintenanceTask("removing expired marks", seldom, lambda: marks.remove_expired(PAGE))


async def send_old(ports: Ports, pending: PendingRecords, older_than: int) -> int:
    """Send what no relay has sent for so long, as the relay does, in one look at all of it; gives how many records are gone.

    A record that stays is passed over: what keeps it is told by the relay, and by the slot that it keeps from being rotated.
    """
    look, finished = RelayScan(), 0
    lease = round(LEASE_SECONDS * 1000)
    while records := await pending.take(older_than, RECORDS, lease=lease, after=look.behind):
        relayed = await relay(records, ports)
        look.add(records, relayed)
        finished += len(relayed.finished)
        if len(records) < RECORDS:
            break
    return finished


class Slots:
    """The slots of claims: rotates those that may be, and knows which are late."""

    def __init__(self, ring: Ring) -> None:
        """Look after this ring."""
        self._ring = ring
        self.late: tuple[LateSlot, ...] = ()

    async def rotate(self) -> int:
        """Rotate every slot that holds less than it should; gives how many. What cannot be now is tried again next time.

        A slot that fails keeps no other from being rotated. Raises CommitFailed, OutcomeUnknown when one did.
        """
        width = (await self._ring.slicing()).width
        reasons: dict[int, str] = {}
        rotated = 0
        trouble: RetryableError | None = None
        for slot in await self._ring.slots():
            if slot.state not in _ROTATABLE:
                continue
            try:
                became = await self._rotate(slot, width)
            except RetryableError as error:
                trouble, reasons[slot.number] = error, str(error)
            else:
                rotated += became is Rotation.ROTATED
                reasons[slot.number] = became.value
        self.late = await late_slots(self._ring, reasons)
        if trouble is not None:
            raise trouble
        return rotated

    async def _rotate(self, slot: Slot, width: int) -> Rotation:
        became = await self._ring.rotate(slot.number)
        if became is Rotation.BUSY and slot.late >= width:  # half of the time to spare is used up
            became = await self._ring.rotate(slot.number, by_rows=True)
        return became


async def late_slots(ring: Ring, reasons: Mapping[int, str] = MappingProxyType({})) -> tuple[LateSlot, ...]:
    """Find the slots that are late, and tell of each whether messages need it by now. Raises CommitFailed, OutcomeUnknown."""
    width, slots, now = (await ring.slicing()).width, await ring.slots(), await ring.now()
    late = (slot for slot in slots if slot.state in _ROTATABLE and slot.late > width / LATE_PARTS)
    return tuple(
        LateSlot(number=slot.number, late=slot.late, reason=_why(slot, reasons), stops=slot.wanted <= now) for slot in late
    )


def _why(slot: Slot, reasons: Mapping[int, str]) -> str:
    if slot.pending:
        return f"{slot.pending} of its records have effects that are not dispatched; see what the relay says of them"
    return reasons.get(slot.number, "nobody was at it")
