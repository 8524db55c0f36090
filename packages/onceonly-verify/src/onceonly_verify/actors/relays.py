"""Who else is at work on an endpoint's store: relays, and transactions of somebody's own whose processes die."""

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.record import Record
from onceonly.ports.bundle import Ports
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role, receiving
from onceonly_verify.workload import CALLERS, SWEPT_TOKENS, DeduplicationMode, Workload, mark_text
from onceonly_verify.workload_ports import TOKENS, tokens_of

FROM_NOWHERE = MemoryReceipt(number=0, times=0)
"""The receipt of what comes from no queue."""
LOOK, PAGE = "to look", 10
TOKENS_SWEPT = ("token-prepared", "load", "save", "token-discard")
TOKENS_FENCED = ("token-prepared", "fence", "token-discard")
ARTIFACTS_SWEPT = ("keys", "load", "save", "artifact-names")
REQUESTS_SWEPT = ("keys", "load", "save", "remote-delete")
LATER = 1
"""An instant by which all is old that was stored at the beginning of time, where the checker's clock stands still."""


def relay_roles(workload: Workload, *, relays: int) -> tuple[Role, ...]:
    """Give each endpoint so many relays."""
    told = {workload.endpoints[0]: workload.told}
    return tuple(
        Role(
            endpoint=endpoint,
            queue=f"relay of {endpoint}",
            point="wakes up",
            label=f"{label}relay: ",
            workers=relays,
            finishes=True,
            reaches=("undispatched", "send", "forget", *(["find"] if told.get(endpoint) else [])),
            begins=partial(waking, told=told.get(endpoint, ())),
            program=relaying,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
        if relays
    )


def transaction_roles(workload: Workload) -> tuple[Role, ...]:
    """Give the first endpoint one process for each transaction that somebody may begin."""
    if not workload.transactions:
        return ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=CALLERS,
            point="starts on",
            label=f"{workload.labels[0]}transaction: ",
            workers=len(workload.transactions),
            reaches=("begin", "commit"),
            begins=asked,
            program=transacting,
        ),
    )


def sweeper_roles(workload: Workload, *, sweepers: int) -> tuple[Role, ...]:
    """Give each endpoint that leaves something to sweep so many sweepers."""
    senders = workload.endpoints[: -1 if workload.quiet else None]
    swept = (
        (TOKENS_SWEPT, workload.deduplication is DeduplicationMode.TOKENS),
        (TOKENS_FENCED, workload.deduplication is DeduplicationMode.ELSEWHERE),
        (ARTIFACTS_SWEPT, workload.artifacts),
        (REQUESTS_SWEPT, workload.requests),
    )
    reached = tuple(dict.fromkeys(point for points, is_there in swept if is_there for point in points))
    return tuple(
        Role(
            endpoint=endpoint,
            queue=f"sweeper of {endpoint}",
            point="wakes up",
            label=f"{label}sweeper: ",
            workers=sweepers,
            sweeps=(
                *([TOKENS] if workload.deduplication in SWEPT_TOKENS else []),
                *([f"store of {endpoint}"] if workload.makes else []),
            ),
            reaches=reached,
            begins=waking,
            program=sweeping,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
        if sweepers and endpoint in (senders or workload.endpoints)
    )


def sweeping(programs: Programs, _batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Remove what is left of attempts that were never committed, however young it is."""
    return _sweep(programs, ports)


async def _sweep(programs: Programs, ports: Ports) -> None:
    handlers: Any = ports.handlers
    effects: Any = ports.effects
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        if handlers.workload.deduplication in SWEPT_TOKENS:
            await programs.sweeper.sweep(tokens_of(programs, handlers.driver), LATER, PAGE, ports)
        if handlers.workload.makes:
            await effects.sweep(LATER, PAGE)


def waking(broker: Any, role: Role, _transports: Any, *, told: Sequence[str] = ()) -> Iterator[Begun]:
    """Wake a relay at any moment: to look for old records, or because it was told of a transaction, committed or not."""
    for text in (LOOK, *told):
        yield broker, (Delivery(receipt=FROM_NOWHERE, queue=role.queue, headers=(), body=text.encode()),)


def relaying(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Find records in one of the runtime's two ways, and run the shipping relay on what there is."""
    return _relay(batch[0].body.decode(), programs, ports)


async def _relay(text: str, programs: Programs, ports: Ports) -> None:
    if ports.pending is None:
        return
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        if text == LOOK:
            records = await ports.pending.undispatched(LATER, PAGE)
        else:
            records = await ports.pending.find([Identity(ports.endpoint, text)])
        if records:
            await programs.relay.relay(records, ports)


def asked(broker: Any, role: Role, transports: Any) -> Iterator[Begun]:
    """Ask for a transaction at any moment; nobody asks for it again when it comes to nothing."""
    for world, batch in receiving(broker, role, transports):
        taken = {delivery.receipt for delivery in batch}
        yield replace(world, entries=tuple(entry for entry in world.entries if entry.receipt not in taken)), batch


def transacting(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Write a row and its record in one transaction, and be gone, whatever came of it."""
    return _transact(batch[0], programs, ports)


async def _transact(asked_for: Delivery, programs: Programs, ports: Ports) -> None:
    text, mark = asked_for.body.decode(), mark_text((asked_for.receipt, 1))
    identity = Identity(ports.endpoint, text)
    handlers: Any = ports.handlers
    with suppress(OnceOnlyError):  # the one who asked is told
        unit = await ports.store.begin(())
        notebook: Any = unit.resources.get(programs.stores.Notebook)
        notebook.write(text, mark)
        await unit.commit([Record(identity, handlers.effects(identity, text, mark))])
