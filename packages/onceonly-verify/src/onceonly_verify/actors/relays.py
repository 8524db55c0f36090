"""Who else is at work on an endpoint's store: relays, and transactions of somebody's own whose processes die."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.adapters.memory.world import PortOperation
from onceonly.documents.pending import LONGEST_LEASE_MS
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.record import Record
from onceonly.model.token import PreparedToken, Token
from onceonly.ports.bundle import Ports
from onceonly_verify.checked_handlers import clock_of
from onceonly_verify.invariants.reports import RelayLog, WatchedSweep, with_each_record
from onceonly_verify.names import mark_text
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role, receive_batches
from onceonly_verify.time_steps import PLACE as CLOCK_PLACE
from onceonly_verify.time_steps import STEP, note_sweep
from onceonly_verify.workload import CALLERS, SWEPT_TOKENS, WITH_ENTITIES, DeduplicationMode, Workload
from onceonly_verify.workload_ports import TOKENS, ports_of, tokens_of

FROM_NOWHERE = MemoryReceipt(number=0, times=0)
"""The receipt of what comes from no queue."""
LOOK, TAKE, TAKE_LATER = "to look", "to take", "to take after all leases"
TOKENS_SWEPT = ("token-prepared", "load", "save", "token-discard")
TOKENS_FENCED = ("token-prepared", "fence", "token-discard")
ARTIFACTS_SWEPT = ("keys", "load", "save", "artifact-names")
ROWS_SWEPT = ("row-old", "row-cancel", "artifact-names", "row-remove")
REQUESTS_SWEPT = ("keys", "load", "save", "remote-delete")
SEARCHED_RELAYED, LISTED_RELAYED = ("undispatched", "send", "forget"), ("pending", "load", "send", "save")
LEASE = 1
"""For how long a relay leases what it takes. A lease by a clock that is later by `LONGEST_LEASE_MS` counts as none."""
LATER = 1
"""An instant by which all is old that was stored at the beginning of time, where the checker's clock stands still."""


def relay_roles(workload: Workload, *, relays: int) -> tuple[Role, ...]:
    told = {workload.endpoints[0]: workload.told}
    return tuple(
        Role(
            endpoint=endpoint,
            queue=f"relay of {endpoint}",
            point="wakes up",
            label=f"{label}relay: ",
            workers=relays,
            finishes=True,
            reaches=(
                *(LISTED_RELAYED if workload.deduplication in WITH_ENTITIES else SEARCHED_RELAYED),
                *(["find"] if told.get(endpoint) else []),
            ),
            begins=partial(wake_to_take if workload.leases else wake, told=told.get(endpoint, ())),
            program=relay_records,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
        if relays
    )


def transaction_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the processes of the first endpoint, one for each transaction that somebody may begin."""
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
            program=commit_and_end,
        ),
    )


def sweeper_roles(workload: Workload, *, sweepers: int) -> tuple[Role, ...]:
    """Return the sweepers of each endpoint that leaves something to sweep."""
    senders = tuple(endpoint for endpoint in workload.endpoints if workload.effects_of(endpoint))
    swept = (
        (TOKENS_SWEPT, workload.deduplication is DeduplicationMode.TOKENS),
        (TOKENS_FENCED, workload.deduplication is DeduplicationMode.ELSEWHERE),
        (ARTIFACTS_SWEPT if workload.deduplication in WITH_ENTITIES else ROWS_SWEPT, workload.artifacts),
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
            begins=wake,
            program=sweep,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
        if sweepers and endpoint in (senders or workload.endpoints)
    )


def shared_sweeper_roles(workload: Workload, *, sweepers: int) -> tuple[Role, ...]:
    """Return processes for all endpoints together that sweep the tokens of each, one after another."""
    if not sweepers:
        return ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue="sweeper of all endpoints",
            point="wakes up",
            label="sweeper: ",
            workers=sweepers,
            sweeps=(TOKENS,),
            reaches=TOKENS_SWEPT if workload.deduplication is DeduplicationMode.TOKENS else TOKENS_FENCED,
            begins=wake,
            program=sweep_all_endpoints,
        ),
    )


async def sweep_all_endpoints(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Sweep for each endpoint, as a process does that runs several."""
    handlers: Any = ports.handlers
    each = tuple(ports_of(handlers.workload, programs, handlers.driver, endpoint=name) for name in handlers.workload.endpoints)
    for of_endpoint in each:
        await sweep(programs, batch, of_endpoint)


async def sweep(programs: Programs, _batch: Batch, ports: Ports) -> None:
    """Remove what is left of attempts that were never committed, however young it is."""
    handlers: Any = ports.handlers
    effects: Any = ports.effects
    timing, now = handlers.workload.timing, clock_of(handlers.workload, handlers.driver).now()
    old = now - timing.sweep_after * STEP if timing else LATER
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        if handlers.workload.deduplication in SWEPT_TOKENS:
            page = handlers.workload.page
            tokens: Any = tokens_of(handlers.workload, programs, handlers.driver)
            noted = WatchedTokens(tokens, handlers.driver) if timing else tokens
            watched: Any = WatchedSweep(noted, ports.fence, ports.endpoint)
            await watched.run(programs.sweeper.sweep(watched, old, page, ports._replace(fence=watched)))
        if handlers.workload.makes:
            await effects.sweep(old, handlers.workload.page)


class WatchedTokens:
    """The token store, as a sweeper sees it: what it removes is noted with the instant."""

    def __init__(self, tokens: Any, driver: Any) -> None:
        self._tokens = tokens
        self._driver = driver

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        found: tuple[PreparedToken, ...] = await self._tokens.prepared(older_than, limit)
        return found

    async def discard(self, tokens: Sequence[Token]) -> None:
        """Remove tokens that are still prepared; see the port."""
        self._driver.at_once(PortOperation("note", CLOCK_PLACE, note_sweep, (tuple(tokens),)))
        await self._tokens.discard(tokens)


def wake(broker: Any, role: Role, _transports: Any, *, told: Sequence[str] = ()) -> Iterator[Begun]:
    """Wake a relay at any moment: to look for old records, or because it was told of a transaction, committed or not."""
    for text in (LOOK, *told):
        yield broker, (Delivery(receipt=FROM_NOWHERE, queue=role.queue, headers=(), body=text.encode()),)


class StoppedClock:
    """The clock of one run of a relay."""

    def __init__(self, instant: int) -> None:
        self._instant = instant

    def now(self) -> int:
        return self._instant


def wake_to_take(broker: Any, role: Role, _transports: Any, *, told: Sequence[str] = ()) -> Iterator[Begun]:
    """Wake a relay that leases what it takes, at any moment before or after the end of the leases of others."""
    for text in (TAKE, TAKE_LATER, *told):
        yield broker, (Delivery(receipt=FROM_NOWHERE, queue=role.queue, headers=(), body=text.encode()),)


async def relay_records(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Find records in one of the runtime's two ways, and run the shipping relay on what there is."""
    if ports.pending is None:
        return
    handlers: Any = ports.handlers
    text = batch[0].body.decode()
    with suppress(OnceOnlyError):  # the runtime rests, and looks again
        if text == LOOK:
            now = clock_of(handlers.workload, handlers.driver).now()
            records = await ports.pending.undispatched(now + LATER, handlers.workload.page)
        elif text in {TAKE, TAKE_LATER}:
            instant = LATER if text == TAKE else LATER + LONGEST_LEASE_MS + LEASE
            store: Any = ports.store
            own = programs.documents.DocumentStore(
                store.documents, ports.endpoint, clock=StoppedClock(instant), history=timedelta(milliseconds=store.history)
            )
            pending = programs.document_pending.DocumentPending(own, store.documents)
            records = await pending.take(instant, handlers.workload.page, lease=LEASE)
        else:
            records = await ports.pending.find([Identity(ports.endpoint, text)])
        if records:
            watched = RelayLog(ports).ports if programs.has_log else ports
            await with_each_record(programs.relay.relay(records, watched), records)


def asked(broker: Any, role: Role, transports: Any) -> Iterator[Begun]:
    """Ask for a transaction at any moment; nobody asks for it again when it comes to nothing."""
    for world, batch in receive_batches(broker, role, transports):
        taken = {delivery.receipt for delivery in batch}
        yield replace(world, entries=tuple(entry for entry in world.entries if entry.receipt not in taken)), batch


async def commit_and_end(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Write a row and its record in one transaction, and end, whatever came of it."""
    text, mark = batch[0].body.decode(), mark_text((batch[0].receipt, 1))
    identity = Identity(ports.endpoint, text)
    handlers: Any = ports.handlers
    with suppress(OnceOnlyError):  # the one who asked is told
        unit = await ports.store.begin(())
        notebook: Any = unit.resources.get(programs.stores.Notebook)
        notebook.write(text, mark)
        record = Record(identity, handlers.effects(identity, text, mark))
        await unit.commit(await ports.admission.prepare([record]))
