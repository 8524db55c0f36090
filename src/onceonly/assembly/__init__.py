"""The one place that turns a URL or a setting into adapters. A driver is imported when a URL names it, not before."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

from onceonly.algorithms.effects import NoArtifacts, RegisteredEffects
from onceonly.assembly.blobs import open_blobs
from onceonly.assembly.brokers import report_settings
from onceonly.assembly.deduplication import open_admission
from onceonly.assembly.naming import named
from onceonly.assembly.opened import BucketClock, OpenedAdmission, OpenedStore
from onceonly.assembly.relayable import require_records, required_records
from onceonly.assembly.remote import open_peers, open_remote_requests
from onceonly.assembly.transactions import open_transactions
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate, shown
from onceonly.model.errors import SetupError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.remote import HTTP
from onceonly.ports.bundle import Ports, RelayPorts
from onceonly.ports.dead_letters import DeadLetters, LetterIndex
from onceonly.ports.effects import ArtifactStore, Register
from onceonly.ports.environment import Clock
from onceonly.ports.handlers import Handlers
from onceonly.ports.maintenance import NOTHING, Maintenance, Sweeps
from onceonly.ports.remote import Peers, Responders
from onceonly.ports.starts import NoStarts
from onceonly.ports.store import Store
from onceonly.ports.transport import ChecksBroker, CollectsUnsubscribed, Topology, Traits, Transport
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.unsubscribed import storing_counts
from onceonly.runtime.observe.journal_recorder import recording
from onceonly.runtime.observe.observed import observed, observed_relay
from onceonly.runtime.observe.observer import Observer, Observers
from onceonly.runtime.worker.checked import CheckedTransport
from onceonly.systems import Role, TransportService
from onceonly.systems.unsubscribed import UnsubscribedEvents

if TYPE_CHECKING:
    from onceonly.assembly.sql import SampleResult
    from onceonly.sql.database import Database
    from onceonly.sql.schema import Schema

SLACK_SECONDS = 30.0
"""Seconds that a run may take beyond its handler's time-out and the grace time, before its process counts as dead."""

__all__ = [
    "EnlistedTransaction",
    "Settings",
    "enlist",
    "look_at_ring",
    "look_at_store",
    "measure",
    "open_database",
    "open_dead_letters",
    "open_finishing",
    "open_store",
    "open_transport",
    "refuse_ring",
    "require_records",
    "runs_alone",
    "schemas",
    "shown",
    "temporary_transport",
    "units_at_once",
    "wire",
]


class Stores(Protocol):
    """What a family of adapters that are stores opens: `wiring.sql`, `wiring.memory`, `wiring.documents` are such modules."""

    def open_store(self, settings: Settings, *, clock: Clock) -> AbstractAsyncContextManager[OpenedStore]:
        """Open a store, and what is next to it."""

    def open_dead_letters(self, place: Location, *, clock: Clock) -> AbstractAsyncContextManager[DeadLetters]:
        """Open dead letters alone."""


class EnlistedTransaction(Protocol):
    """An open transaction of the user's that takes records. Nothing here waits for anything."""

    is_over: bool
    """Whether it was committed, rolled back or closed; then nothing can be written any more."""

    def write(self, record: Record, now: int) -> None:
        """Have a record committed or rolled back with it; `now` is in milliseconds since 1970."""


@asynccontextmanager
async def wire(  # noqa: PLR0913 - all that it must know of an endpoint, by name
    settings: Settings,
    make_handlers: Callable[[Traits, ArtifactStore | None], Handlers],
    *,
    events: Sequence[str] = (),
    commands: Sequence[str] = (),
    entities: bool = False,
    responders: bool = False,
    sends: bool = False,
    isolations: Mapping[str, str] = MappingProxyType({}),
    longest_timeout: float = 0.0,
    at_once: int | None = None,
    environment: Environment = LIVE,
    observer: Observer | None = None,
) -> AsyncIterator[Ports]:
    """Open everything an endpoint's algorithm talks to, and declare its queue and its subscriptions to `events`.

    `make_handlers` receives the transport and the place for blobs, if there is one; `entities` means that some handlers
    work on entities, `responders` that what it gives is Responders as well, so that there must be a place for requests. Who
    only `sends`, and takes no events, gets no queue, as it would not be read. `longest_timeout` is that of its handlers, in
    seconds, where one has a longer one than the endpoint. `isolations` are the levels of handlers that have one, by type of
    message. `at_once` is how many batches it handles at once, if not as many as
    the worker's settings say. The ports are enclosed by `observer`. Raises SetupError: an unknown
    scheme, a missing driver, missing or newer tables; RetryableError when a server is away. Both name the setting it is about.
    """
    places = settings.places
    places.store.require_driver("store")
    places.transport.require_driver("transport")
    async with AsyncExitStack() as stack:
        with named(settings, "store", places.store):
            opening = open_store(settings, entities=entities, environment=environment)
            opened = await stack.enter_async_context(opening)
            if opened.expect is not None:
                opened.expect(settings.longest_silence(longest_timeout, at_once=at_once))
            if isolations and opened.isolate is not None:
                opened.isolate(isolations)
            store, dead_letters, register = opened.store, opened.dead_letters, opened.register
            transacting = open_transactions(settings, entities=entities, environment=environment)
            transactions, controls = await stack.enter_async_context(transacting)
            remote_requests = await open_remote_requests(stack, settings, environment) if responders else None
        if places.dead_letters is not places.store:
            with named(settings, "dead_letters", places.dead_letters):
                letters = open_dead_letters(places.dead_letters, environment=environment)
                dead_letters = await stack.enter_async_context(letters)
        letter_index = dead_letters if isinstance(dead_letters, LetterIndex) else None
        deciding = await open_admission(stack, settings, environment)
        blobs = await _open_blobs(stack, settings, register)
        remote = await open_peers(stack, settings, register, environment)
        effects = _effects(store, register, blobs, remote, environment=environment)
        with named(settings, "transport", places.transport):
            reaching = open_transport(places.transport, settings.name, environment=environment)
            transport = await stack.enter_async_context(reaching)
        checked = CheckedTransport(transport, partial(_check_queue, transport, settings), environment.timer)
        handlers = make_handlers(transport.traits, blobs)
        lasts = max(settings.timeout, longest_timeout) + settings.worker.grace + SLACK_SECONDS
        ports = Ports(
            endpoint=settings.name,
            store=store,
            fence=opened.fence,
            pending=opened.pending,
            handlers=handlers,
            admission=deciding.admission,
            effects=effects or NoArtifacts(),
            transport=checked if isinstance(transport, ChecksBroker) else transport,
            dead_letters=dead_letters,
            maintenance=_maintenance(settings, deciding, effects, opened)._replace(letters=letter_index),
            transactions=transactions,
            controls=controls,
            remote_requests=remote_requests,
            responders=None if remote_requests is None else cast("Responders", handlers),
            starts=NoStarts() if opened.starts is None else opened.starts(lasts),
        )
        await _store_counts(stack, transport, opened, endpoint=settings.name, environment=environment)
        observer = await _with_journal(stack, observer, opened, endpoint=settings.name, environment=environment)
        has_queue = bool(events or commands) or not (sends or settings.control.processed_by)
        own = (Topology(endpoint=settings.name, events=tuple(events), commands=tuple(commands)),) if has_queue else ()
        watched = observed(ports._replace(declared=own), observer)
        if has_queue or not settings.control.processed_by:  # without one it only connects: a broker that refuses is told now
            with named(settings, "transport", places.transport):
                await watched.transport.declare(own)
            if has_queue:
                await checked.start()
        yield watched


async def _check_queue(transport: Transport, settings: Settings) -> float | None:
    with named(settings, "transport", settings.places.transport):
        return await report_settings(transport, settings.name, settings.places.transport)


@asynccontextmanager
async def open_finishing(
    settings: Settings, *, environment: Environment = LIVE, observer: Observer | None = None
) -> AsyncIterator[RelayPorts]:
    """Open what a relay needs in a process that does not run the endpoint, enclosed by `observer`; declares no queue.

    Raises SetupError, also where no record could be found: one that is kept nowhere, in another process's memory or in
    documents; RetryableError when a server is away. Both name the setting it is about.
    """
    require_records(settings)
    places = settings.places
    places.transport.require_driver("transport")
    async with AsyncExitStack() as stack:
        with named(settings, "store", places.store):
            opened = await stack.enter_async_context(open_store(settings, environment=environment))
        deciding = await open_admission(stack, settings, environment)
        blobs = await _open_blobs(stack, settings, opened.register)
        remote = await open_peers(stack, settings, opened.register, environment)
        effects = _effects(opened.store, opened.register, blobs, remote, environment=environment)
        with named(settings, "transport", places.transport):
            opening = open_transport(places.transport, settings.name, environment=environment)
            transport = await stack.enter_async_context(opening)
            await transport.declare(())  # no queue: it only connects, so that a broker which is away or refuses is told now
        await _store_counts(stack, transport, opened, endpoint=settings.name, environment=environment)
        pending = required_records(settings, opened.pending)
        ports = RelayPorts(settings.name, opened.store, pending, deciding.admission, effects or NoArtifacts(), transport)
        observer = await _with_journal(stack, observer, opened, endpoint=settings.name, environment=environment)
        yield ports if observer is None else observed_relay(ports, observer)


async def _store_counts(
    stack: AsyncExitStack, transport: Transport, opened: OpenedStore, *, endpoint: str, environment: Environment
) -> None:
    """Count events without subscribers in the store, if it can store the numbers and the transport counts."""
    events = getattr(transport, "unsubscribed", None)
    collect = transport.collect_unsubscribed if isinstance(transport, CollectsUnsubscribed) else None
    if isinstance(events, UnsubscribedEvents) and (opened.unsubscribed is not None or collect is not None):
        counting = storing_counts(events, opened.unsubscribed, collect, endpoint=endpoint, environment=environment)
        await stack.enter_async_context(counting)


async def _with_journal(
    stack: AsyncExitStack, observer: Observer | None, opened: OpenedStore, *, endpoint: str, environment: Environment
) -> Observer | None:
    """Return an observer that records in the message journal as well, if the endpoint has one."""
    if opened.message_journal is None:
        return observer
    recorder = await stack.enter_async_context(recording(opened.message_journal, endpoint=endpoint, environment=environment))
    return recorder if observer is None else Observers(observer, recorder)


async def _open_blobs(stack: AsyncExitStack, settings: Settings, register: Register | None) -> ArtifactStore | None:
    place = settings.places.blobs
    if place is None:
        return None
    with named(settings, "blobs", place):
        if register is None:
            raise SetupError(
                f"the store {settings.places.store} cannot track blobs and requests, so handlers cannot "
                "create them: use another store"
            )
        return await stack.enter_async_context(open_blobs(place))


def _effects(
    store: Store, register: Register | None, blobs: ArtifactStore | None, peers: Peers | None, *, environment: Environment
) -> RegisteredEffects | None:
    artifacts: dict[str, ArtifactStore] = {} if blobs is None else {"blob": blobs}
    if peers is not None:
        artifacts[HTTP] = peers
    if register is None or not artifacts:
        return None
    return RegisteredEffects(store, register, artifacts, ids=environment.ids, clock=environment.clock, remote=peers)


def _maintenance(settings: Settings, deciding: OpenedAdmission, artifacts: Sweeps | None, opened: OpenedStore) -> Maintenance:
    plan = settings.plan
    return Maintenance(
        after=NOTHING.after if plan.sweep_after is None else plan.sweep_after.total_seconds(),
        tokens=deciding.tokens,
        artifacts=artifacts,
        drops=deciding.drops,
        marks=deciding.marks,
        ring=opened.ring,
        keys=opened.keys,
        leader=opened.leader,
        journals=opened.journals,
        message_journal=opened.message_journal,
        log=opened.log,
        interval=settings.interval.total_seconds(),
        retention=round(settings.retention.total_seconds() * 1000) if settings.retention is not None else 0,
        leads=settings.janitor,
        presence=opened.presence,
    )


def look_at_store(settings: Settings, *, environment: Environment = LIVE) -> AbstractAsyncContextManager[OpenedStore]:
    """Open an endpoint's store with all that is next to it, only to look: nothing is made or decided. Raises SetupError."""
    store = settings.places.store
    if not store.is_sql:
        return open_store(settings, environment=environment)
    store.require_driver("store")
    opened: AbstractAsyncContextManager[OpenedStore] = _sql().look_at_store(settings, clock=environment.clock)
    return opened


def open_store(
    settings: Settings, *, entities: bool = False, environment: Environment = LIVE
) -> AbstractAsyncContextManager[OpenedStore]:
    """Open an endpoint's store, and what is next to it. Raises SetupError."""
    store = settings.places.store
    store.require_driver("store")
    if store.in_process and settings.keeps_documents(entities=entities):
        from onceonly.assembly.memory import open_store_on_documents  # noqa: PLC0415 - only when it is named

        return open_store_on_documents(settings, clock=environment.clock)
    return _stores(store).open_store(settings, clock=environment.clock)


def runs_alone(settings: Settings) -> bool:
    """Return whether the store's isolation level asks for a unit for each message. Raises SetupError."""
    if not settings.places.store.is_sql:
        return False
    from onceonly.assembly import sql  # noqa: PLC0415 - SQLAlchemy is imported when a URL names it

    return sql.runs_alone(settings)


def units_at_once(settings: Settings, *, entities: bool) -> int:
    """Return how many units a worker may have open while handlers wait. Raises SetupError.

    More than one only in a SQL database, and not where handlers work on `entities`: the versions of one are handled in order.
    """
    if settings.worker.concurrency is not None or entities or not settings.places.store.is_sql:
        return settings.worker.at_once
    from onceonly.assembly import sql  # noqa: PLC0415 - SQLAlchemy is imported when a URL names it

    return sql.units_at_once(settings)


def enlist(settings: Settings, session: object, committed: Callable[[Sequence[Identity]], None]) -> EnlistedTransaction:
    """Let a SQLAlchemy session's open transaction take records of an endpoint. `committed` gets their identities in any thread.

    Raises SetupError: for a session of another database, and where no record would be kept.
    """
    store = settings.places.store
    store.require_driver("store")
    if not store.is_sql:
        raise SetupError(f"enlist needs a SQL store, but the store of this endpoint is {store}: use transact(...)")
    if settings.plan.tokens is not None:
        raise SetupError(
            "enlist cannot issue the tokens that deduplication=Tokens(...) requires. Use enlist on an "
            "endpoint with History() or DedupStore(url), or send a command to this endpoint with "
            "`onceonly send` and publish in its handler"
        )
    if not settings.plan.records:
        raise SetupError(
            "enlist cannot be used with deduplication=Off(), which stores no records: a crash would lose "
            "the messages. Use History()"
        )
    enlisted: EnlistedTransaction = _sql().enlist(settings.store, settings.name, session, committed)
    return enlisted


def open_dead_letters(place: object, *, environment: Environment = LIVE) -> AbstractAsyncContextManager[DeadLetters]:
    """Open the dead letters of a store: a `Location`, a URL, an engine or a session factory. Raises SetupError."""
    found = locate(place, "dead_letters")
    found.require_driver("dead_letters")
    return _stores(found).open_dead_letters(found, clock=environment.clock)


def open_transport(
    place: Location | str, endpoint: str, *, environment: Environment = LIVE
) -> AbstractAsyncContextManager[Transport]:
    """Open the queue of one endpoint, to receive or only to send; declares nothing. Raises SetupError."""
    found = locate(place, "transport")
    return _transports(found).open_transport(found.setting, endpoint, clock=environment.clock, chance=environment.chance)


def temporary_transport(
    place: Location | str, topologies: Sequence[Topology], *, environment: Environment = LIVE
) -> AbstractAsyncContextManager[None]:
    """Let a transport be used for a while, behind a prefix of its own: at the end nothing of it is left. Raises SetupError."""
    found = locate(place, "transport")
    return _transports(found).temporary_transport(found.setting, topologies, clock=environment.clock, chance=environment.chance)


def open_database(
    place: object, role: Role = "store", *, environment: Environment = LIVE
) -> "AbstractAsyncContextManager[Database]":
    """Open the database that a store or transport setting names, whatever tables it has. Raises SetupError if it is none."""
    found = locate(place, role)
    found.require_driver(role)
    if not found.is_sql:
        raise SetupError(f"{role}={str(found)!r} is not a SQL database, so it has no tables")
    opened: AbstractAsyncContextManager[Database] = _sql().open_database(found.setting, clock=environment.clock)
    return opened


async def look_at_ring(setting: Any, settings: Settings | None = None) -> BucketClock | None:
    """Return how time is cut in a SQL database, and its clock. None if that is not decided yet.

    Raises SetupError for tables of another version, in the words of a start where an endpoint's `settings` are given.
    """
    async with open_database(setting) as database:
        with nullcontext() if settings is None else named(settings, "store", settings.places.store):
            cut: BucketClock | None = await _sql().look_at_ring(database)
            return cut


def refuse_ring(settings: Settings, cut: BucketClock) -> None:
    """Refuse what a start would refuse: an endpoint that asks for more than its tables were cut for. Raises SetupError."""
    with named(settings, "store", settings.places.store):
        _sql().refuse_ring(settings, cut)


async def measure(setting: Any, rows: int, rate: float, *, name: str, seconds: Callable[[], float]) -> "SampleResult":
    """Measure what this many claims and tokens take in a SQL database. Uses temporary tables. Raises SetupError."""
    async with open_database(setting) as database:
        sampled: SampleResult = await _sql().measure_in(database, rows, rate, name=name, seconds=seconds)
        return sampled


def schemas(*roles: str) -> "tuple[Schema, ...]":
    """Give the tables that a SQL database needs to be a "store", a "transport", or both."""
    known = _sql().SCHEMAS
    return tuple(known[role] for role in roles or known)


def _stores(place: Location) -> Stores:
    if place.in_process:
        from onceonly.assembly import memory  # noqa: PLC0415 - only when it is named

        return memory
    if place.keeps_documents:
        from onceonly.assembly import documents  # noqa: PLC0415 - the same

        return documents
    adapters: Stores = _sql()
    return adapters


def _transports(place: Location) -> TransportService:
    place.require_driver("transport")
    if place.system.transport is not None:
        return place.system.transport()
    queues: TransportService = _sql()
    return queues


def _sql() -> Any:
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    return sql
