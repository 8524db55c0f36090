"""What time adds to a world: runs with clocks of their own, delayed messages, and those who drop what has expired."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.model.errors import OnceOnlyError
from onceonly.model.retention import Era, Retention
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.maintenance import wake_for
from onceonly_verify.clock import is_to_come
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role
from onceonly_verify.time_steps import STEP, ExpiringWorld, Timing, clock_of_world, drop_expired, skew_of, skewed
from onceonly_verify.workload import WITH_ENTITIES, DeduplicationMode, Workload
from onceonly_verify.workload_ports import DEDUP, RETENTION, listed_since, marked, marks_of, retentions_of

PAGE = 10
_decode_retention = msgspec.json.Decoder(Retention).decode


def expiry_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the services that drop expired documents, and a janitor of the dedup store, where time passes."""
    if not workload.timing or workload.deduplication not in WITH_ENTITIES:
        return ()
    endpoint, label = workload.endpoints[0], workload.labels[0]
    places = tuple(f"store of {each}" for each in workload.endpoints)
    places += (DEDUP,) if workload.deduplication is DeduplicationMode.DEDUP else ()
    service = Role(
        endpoint=endpoint,
        queue="service of the documents",
        point="wakes up",
        label=f"{label}service: ",
        begins=partial(wake_for, texts=tuple(f"for the {place}" for place in places)),
        waits=nothing_expired,
        is_patient=True,
        program=drop_documents,
    )
    janitor = Role(
        endpoint=endpoint,
        queue=f"janitor of the {DEDUP}",
        point="wakes up",
        label=f"{label}janitor: ",
        reaches=("keys",),
        begins=partial(wake_for, texts=("to look",)),
        waits=no_mark_is_there,
        is_patient=True,
        program=sweep_marks,
    )
    operators = _operators(workload)
    return (service, janitor, *operators) if workload.deduplication is DeduplicationMode.DEDUP else (service, *operators)


def _operators(workload: Workload) -> tuple[Role, ...]:
    """Return who changes the retention, at any moment, where the world has that."""
    timing = workload.timing
    if timing is None or not timing.changes:
        return ()
    operator = Role(
        endpoint=workload.endpoints[0],
        queue="operator",
        point="wakes up",
        label=f"{workload.labels[0]}operator: ",
        reaches=("save",),
        begins=partial(wake_for, texts=tuple(f"to set {steps}" for steps in timing.changes)),
        waits=partial(is_not_due, timing),
        is_patient=True,
        program=change_retention,
    )
    return (operator,)


def is_not_due(timing: Timing, worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether a retention was set already, or is not the next one."""
    done = [era.kept // STEP for era in _eras(worlds[RETENTION])[1:]]
    return [*done, _steps(batch)] != list(timing.changes[: len(done) + 1])


def _eras(world: ExpiringWorld) -> tuple[Era, ...]:
    found = [each.body for each in world.written if each.key.startswith("retention/") and each.body is not None]
    return _decode_retention(found[0]).eras if found else ()


async def change_retention(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Change the retention, as the command does."""
    handlers: Any = ports.handlers
    retentions = retentions_of(handlers.workload, programs, handlers.driver)
    with suppress(OnceOnlyError):  # a person calls it again
        await retentions.change(_steps(batch) * STEP)


def _steps(batch: Batch) -> int:
    return int(batch[0].body.decode().rpartition(" ")[2])


def timed(role: Role, timing: Timing | None) -> Role:
    """Return a role whose runs each have a clock of their own, and which keeps back what is delayed."""
    if timing is None:
        return role
    skews = timing.sweeper_skews if role.sweeps else timing.skews
    waits = is_to_come_or_delayed if role.waits is is_to_come else role.waits
    waits = waits or (partial(nothing_is_old, role.sweeps, timing.sweep_after) if role.sweeps else is_delayed)
    begins = role.begins if role.program is drop_documents else partial(begin_with_clocks, (role.begins, skews))
    return replace(role, waits=waits, begins=begins, is_patient=role.is_patient or bool(role.sweeps))


def begin_with_clocks(own: tuple[Any, tuple[int, ...]], broker: Any, role: Role, transports: Any) -> Iterator[Begun]:
    """Begin as the role does by its own rule, once by each of these clocks."""
    begins, skews = own
    for world, batch in begins(broker, role, transports):
        for skew in skews:
            yield world, skewed(batch, skew)


def is_to_come_or_delayed(worlds: Mapping[str, Any], broker: Any, batch: Batch) -> bool:
    """Return whether one of these is not sent yet, or not delivered yet."""
    return is_delayed(worlds, broker, batch) or is_to_come(worlds, broker, batch)


def is_delayed(worlds: Mapping[str, Any], broker: Any, batch: Batch) -> bool:
    """Return whether the broker does not deliver one of these yet, by its own clock."""
    now, due = clock_of_world(worlds).now, {entry.number: entry.due for entry in broker.entries}
    return any(due.get(_number(delivery), 0) > now for delivery in batch)


def nothing_is_old(places: tuple[str, ...], after: int, worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether everything that a sweeper could find is younger than a step below its limit."""
    latest = clock_of_world(worlds).now + (skew_of(batch) - after + 1) * STEP
    return not any(at <= latest for place in places for at in listed_since(worlds[place]))


def no_mark_is_there(worlds: Mapping[str, Any], _broker: Any, _batch: Batch) -> bool:
    """Return whether the dedup store is empty."""
    return not marked(worlds[DEDUP])


def nothing_expired(worlds: Mapping[str, Any], _broker: Any, batch: Batch) -> bool:
    """Return whether the service has nothing to drop."""
    return not worlds[_place(batch)].expired(clock_of_world(worlds).now)


async def drop_documents(_programs: Programs, batch: Batch, ports: Ports) -> None:
    """Drop what has expired in one place."""
    handlers: Any = ports.handlers
    place = WorldPart(_place(batch), ExpiringWorld())
    await handlers.driver.perform(PortOperation("expire", place, drop_expired, (handlers.driver.read_clock(),)))


async def sweep_marks(programs: Programs, _batch: Batch, ports: Ports) -> None:
    """Run the shipping clean-up of a dedup store on documents."""
    handlers: Any = ports.handlers
    marks = marks_of(handlers.workload, programs, handlers.driver)
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        await marks.sweep(limit=PAGE)


def _place(batch: Batch) -> str:
    return batch[0].body.decode().removeprefix("for the ")


def _number(delivery: Any) -> int:
    number: int = delivery.receipt.number
    return number
