"""Who is at work on a ring, beside those who claim: its clock, and janitors that rotate a bucket at any moment."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.relays import FROM_NOWHERE
from onceonly_verify.clock import BUCKETING, END, START, WIDTH, ClockDriver, bucketing_of, ring_in, rings_in, tick
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role
from onceonly_verify.workload import DeduplicationMode, RingChanges, Workload

CLOCK_MOVES, TO_SET = "to move the clock", "to set "


def maintenance_roles(workload: Workload, *, janitors: int) -> tuple[Role, ...]:
    """Return the janitors of the first endpoint, and time that passes, where claims are forgotten."""
    if workload.deduplication is not DeduplicationMode.RING:
        return ()
    endpoint, label = workload.endpoints[0], workload.labels[0]
    if workload.changes:
        return _changing_roles(workload, workload.changes, janitors=janitors)
    if workload.timing:
        return _timed_roles(workload, janitors=janitors)
    buckets = sorted({BUCKETING.bucket(arrival.instant) for arrival in workload.arrivals})
    clock = Role(
        endpoint=endpoint,
        queue=f"clock of {endpoint}",
        point="goes on",
        label=f"{label}clock: ",
        begins=partial(wake_for, texts=("by one slice",)),
        waits=is_over,
        program=move_clock,
    )
    janitor = Role(
        endpoint=endpoint,
        queue=f"janitor of {endpoint}",
        point="wakes up",
        label=f"{label}janitor: ",
        workers=janitors,
        reaches=("rotate",),
        begins=partial(wake_for, texts=tuple(f"for bucket {number}" for number in buckets)),
        waits=is_kept,
        program=rotate_bucket,
    )
    return (clock, janitor)


def _timed_roles(workload: Workload, *, janitors: int) -> tuple[Role, ...]:
    """Return the janitors of the first endpoint of buckets, and of claims without an instant, where the world has a clock."""
    endpoint, label = workload.endpoints[0], workload.labels[0]
    instants = {arrival.instant for arrival in workload.arrivals}
    buckets = sorted({BUCKETING.bucket(instant) for instant in instants if instant})
    rotates = Role(
        endpoint=endpoint,
        queue=f"janitor of {endpoint}",
        point="wakes up",
        label=f"{label}janitor: ",
        workers=janitors,
        reaches=("rotate",),
        begins=partial(wake_for, texts=tuple(f"for bucket {number}" for number in buckets)),
        waits=is_current,
        is_patient=True,
        program=rotate_bucket,
    )
    removes = Role(
        endpoint=endpoint,
        queue=f"janitor of claims of {endpoint}",
        point="wakes up",
        label=f"{label}janitor: ",
        workers=janitors,
        reaches=("remove-expired",),
        begins=partial(wake_for, texts=("for claims without an instant",)),
        waits=nothing_is_claimed_outside,
        is_patient=True,
        program=remove_expired_claims,
    )
    return (*([rotates] if buckets else []), *([removes] if 0 in instants else []))


def _changing_roles(workload: Workload, changes: RingChanges, *, janitors: int) -> tuple[Role, ...]:
    """Return who moves the clock, changes the retention and rotates buckets of all rings: each in one step, at any moment."""
    instants = {arrival.instant for arrival in workload.arrivals}
    cut = [bucketing_of(slices) for slices in (changes.before, *changes.after)]
    buckets = [(ring, number) for ring, each in enumerate(cut) for number in sorted({each.bucket(at) for at in instants})]
    texts = (CLOCK_MOVES, *(f"{TO_SET}{slices}" for slices in changes.after))
    texts += tuple(f"for ring {ring}, bucket {number}" for ring, number in buckets)
    role = Role(
        endpoint=workload.endpoints[0],
        queue=f"maintenance of {workload.endpoints[0]}",
        point="wakes up",
        label=f"{workload.labels[0]}maintenance: ",
        workers=janitors,
        reaches=("ring-tick", "ring-change", "ring-rotate"),
        begins=partial(wake_for, texts=texts),
        waits=partial(is_not_called_for, changes),
        program=maintain_rings,
    )
    return (role,)


def is_not_called_for(changes: RingChanges, worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether the clock has come to its end, a retention is not the next one, or a bucket holds what it should.

    A janitor may come a slice early, in vain.
    """
    world, text = rings_in(worlds), batch[0].body.decode()
    if world is None or text == CLOCK_MOVES:
        return world is None or world.now >= START + changes.steps * WIDTH
    if text.startswith(TO_SET):
        done = len(world.changed)
        return changes.after[done : done + 1] != (_bucket(batch),)
    ring, number = _ring_and_bucket(batch)
    if ring >= len(world.rings):
        return True
    held = world.rings[ring].buckets[number].start
    return all(held == world.rings[ring].bucketing.to_hold(number, held, at) for at in (world.now, world.now + WIDTH))


async def maintain_rings(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Do one thing: move the clock, change the retention as the command does, or rotate a bucket as a janitor does."""
    store, handlers = _store_and_handlers(ports)
    rings, text = programs.rings.MemoryRings(handlers.driver, store), batch[0].body.decode()
    changes = handlers.workload.changes
    with suppress(OnceOnlyError):  # the runtime or a person does it again
        if text == CLOCK_MOVES:
            await rings.move_clock(WIDTH)
        elif text.startswith(TO_SET):
            slices = _bucket(batch)
            await rings.change(slices * WIDTH, bucketing_of(slices), is_shared=changes.is_shared)
        else:
            await rings.rotate(*_ring_and_bucket(batch), labels_later=changes.labels_later)


def wake_for(broker: Any, role: Role, _transports: Any, *, texts: tuple[str, ...]) -> Iterator[Begun]:
    """Wake somebody at any moment, for one of these things to do."""
    for text in texts:
        yield broker, (Delivery(receipt=FROM_NOWHERE, queue=role.queue, headers=(), body=text.encode()),)


def is_over(worlds: Mapping[str, Any], _broker: Any, _batch: Batch) -> bool:
    """Return whether the clock has come to its end."""
    return ring_in(worlds).now >= END


def is_kept(worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether there will never again be anything to do for a bucket."""
    ring, number = ring_in(worlds), _bucket(batch)
    return ring.now >= END and ring.buckets[number].start == BUCKETING.wanted(number, END)


def is_current(worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether a bucket holds the slice that it should hold now."""
    ring, number = ring_in(worlds), _bucket(batch)
    return ring.buckets[number].start == BUCKETING.wanted(number, ring.now)


def nothing_is_claimed_outside(worlds: Mapping[str, Any], _broker: Any, _batch: Batch) -> bool:
    """Return whether there are no claims outside of the ring."""
    return not ring_in(worlds).arrivals


async def remove_expired_claims(programs: Programs, _batch: Batch, ports: Ports) -> None:
    """Remove expired claims from outside of the ring, as a janitor does."""
    store, handlers = _store_and_handlers(ports)
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        await programs.ring.MemoryRing(ClockDriver(handlers.driver), store).remove_expired()


async def move_clock(_programs: Programs, _batch: Batch, ports: Ports) -> None:
    store, handlers = _store_and_handlers(ports)
    await handlers.driver.perform(PortOperation("tick", store.place, tick, ()))


async def rotate_bucket(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Rotate a bucket, if it can be, as a janitor does."""
    store, handlers = _store_and_handlers(ports)
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        await programs.ring.MemoryRing(ClockDriver(handlers.driver), store).rotate(_bucket(batch))


def _store_and_handlers(ports: Ports) -> tuple[Any, Any]:
    return ports.store, ports.handlers


def _ring_and_bucket(batch: Batch) -> tuple[int, int]:
    ring, _, number = batch[0].body.decode().removeprefix("for ring ").partition(", bucket ")
    return int(ring), int(number)


def _bucket(batch: Batch) -> int:
    return int(batch[0].body.decode().rpartition(" ")[2])
