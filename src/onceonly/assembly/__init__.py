"""The one place that turns a URL or a setting into adapters. A driver is imported when a URL names it, not before."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from onceonly.algorithms.effects import NoArtifacts
from onceonly.assembly.deduplication import open_admission
from onceonly.assembly.effects import EffectsParts, expiring, open_effects
from onceonly.assembly.no_handlers import NoHandlers
from onceonly.assembly.parts import AdmissionParts, StoreParts
from onceonly.assembly.stores import (
    EnlistedKeyTransaction,
    EnlistedTransaction,
    check_bucketing,
    check_enlisting,
    enlist,
    enlist_key,
    errors_name_setting,
    measure,
    open_database,
    open_dead_letters,
    open_read_only,
    open_store,
    read_bucket_clock,
    runs_alone,
    schemas,
    units_at_once,
)
from onceonly.config.deduplication import without_records
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate, shown
from onceonly.formats.log_events import EventLogger, FailureLog, LoggedKeys
from onceonly.hosted.transport import HostedTransport
from onceonly.model.errors import QueueMissing, SetupError
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import DeadLetters, LetterIndex
from onceonly.ports.handlers import Handlers
from onceonly.ports.maintenance import NOTHING, Backlog, Maintenance
from onceonly.ports.measurements import MeasuresQueue
from onceonly.ports.remote import RemoteRequests, Responders
from onceonly.ports.run_markers import NoRunMarkers
from onceonly.ports.store import PendingRecords
from onceonly.ports.transport import ChecksBroker, CollectsUnsubscribed, Topology, Traits, Transport
from onceonly.queues.destinations import UnsubscribedEvents
from onceonly.queues.host_queue import HostQueueTransport
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.counts import storing_counts
from onceonly.runtime.observe.journal_recorder import recording
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observer, Observers
from onceonly.runtime.worker.transports import CheckedTransport
from onceonly.systems import TransportService
from onceonly.systems.carriers import are_there_any

MOST_WAITING = 100_000
"""Messages that wait are counted up to here, once a minute, by what can count up to a limit."""
SLACK_SECONDS = 30.0
"""Seconds that a run may take beyond its handler's time-out and the grace time, before its process counts as dead."""

__all__ = [
    "EnlistedKeyTransaction",
    "EnlistedTransaction",
    "OpensUnits",
    "Settings",
    "check_bucketing",
    "check_enlisting",
    "enlist",
    "enlist_key",
    "measure",
    "open_database",
    "open_dead_letters",
    "open_finishing",
    "open_own_transport",
    "open_read_only",
    "open_relay",
    "open_store",
    "open_transport",
    "read_bucket_clock",
    "require_records",
    "runs_alone",
    "schemas",
    "shown",
    "temporary_transport",
    "units_at_once",
    "wire",
]

_log = EventLogger(logging.getLogger("onceonly.transport"))
_store_log = EventLogger(logging.getLogger("onceonly.store"))
_shadow_log = EventLogger(logging.getLogger("onceonly.shadow"))
MOST_LEFT = 1000
"""Records of an earlier setting are counted up to here."""
OpensUnits = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens what has the transactions of handlers where the store does not: a `UnitOpener` of the store's family."""
_LOGGED = LoggedKeys()
"""Endpoints, places and texts that this process has logged."""


@asynccontextmanager
async def wire(  # noqa: PLR0913 - all that it must know of an endpoint, by name
    settings: Settings,
    make_handlers: Callable[[Traits, EffectsParts], Handlers],
    *,
    events: Sequence[str] = (),
    commands: Sequence[str] = (),
    entities: bool = False,
    responders: bool = False,
    sends: bool = False,
    isolations: Mapping[str, str] = MappingProxyType({}),
    longest_timeout: float = 0.0,
    at_once: int | None = None,
    hosted: bool = False,
    units: "OpensUnits | None" = None,
    environment: Environment = LIVE,
    observer: Observer | None = None,
) -> AsyncIterator[Ports]:
    """Open everything an endpoint's algorithm talks to, and declare its queue and its subscriptions to `events`.

    `make_handlers` receives the transport and the places for blobs and projections, if there are any; `entities` means that
    some handlers work on entities, `responders` that what it gives is Responders as well, so that there must be a place for
    requests. Who only `sends`, and takes no events, gets no queue, as it would not be read. `longest_timeout` is that of its
    handlers, in seconds, where one has a longer one than the endpoint. `isolations` are the levels of handlers that have one,
    by type of message. `at_once` is how many batches it handles at once, if not as many as the worker's settings say. `hosted`
    means that a host receives and acknowledges, so no queue is declared. `units` opens what has the transactions of handlers,
    if not the store. The ports are enclosed by `observer`. Raises SetupError: an unknown scheme, a missing driver, missing or
    newer tables; RetryableError when a server is away. Both name the setting it is about.
    """
    places = settings.places
    places.store.require_driver("store")
    places.transport.require_driver("transport")
    async with AsyncExitStack() as stack:
        with errors_name_setting(settings, "store", places.store):
            store = await stack.enter_async_context(open_store(settings, entities=entities, environment=environment))
            if store.expect is not None:
                store.expect(settings.longest_silence(longest_timeout, at_once=at_once))
            if isolations and store.isolate is not None:
                store.isolate(isolations)
            if units is not None and store.working_on is not None:
                store = store._replace(store=store.working_on(await stack.enter_async_context(units())))
            if store.left is not None:
                await _report_left(store.left, settings, environment)
            remote_requests = await _open_remote_requests(settings, store) if responders else None
        dead_letters = await _open_letters(stack, settings, store, environment)
        opened = await _open_dispatch(stack, settings, store, environment)
        transport, effects = opened.transport, opened.effects.effects
        receives = HostedTransport(transport, settings.name) if hosted else transport
        checked = CheckedTransport(receives, partial(_check_queue, transport, settings), environment.timer)
        handlers = make_handlers(transport.traits, opened.effects)
        lasts = max(settings.timeout, longest_timeout) + settings.worker.grace + SLACK_SECONDS
        ports = Ports(
            endpoint=settings.name,
            store=store.store,
            fence=store.fence,
            pending=store.pending,
            handlers=handlers,
            admission=opened.admission.admission,
            effects=effects or NoArtifacts(),
            transport=checked if isinstance(transport, ChecksBroker) else receives,
            dead_letters=dead_letters,
            maintenance=_maintenance(settings, store, opened, dead_letters),
            transactions=store.transactions,
            controls=store.controls,
            remote_requests=remote_requests,
            responders=None if remote_requests is None else cast("Responders", handlers),
            run_markers=NoRunMarkers() if store.run_markers is None else store.run_markers(lasts),
        )
        observer = await _open_records(stack, settings, store, transport, observer, environment)
        has_queue = not hosted and settings.has_transport and settings.receives_from is None
        has_queue = (
            has_queue
            and (settings.has_queue or not sends)
            and (bool(events or commands) or not (sends or settings.processed_by))
        )
        if has_queue:
            asking = partial(_backlog, transport, settings.name, events)
            ports = ports._replace(maintenance=ports.maintenance._replace(backlog=asking))
        own = (Topology(endpoint=settings.name, events=tuple(events), commands=tuple(commands)),) if has_queue else ()
        watched = observed(ports._replace(declared=own), observer)
        if has_queue or not settings.processed_by:  # without one it only connects: a broker that refuses is told now
            with errors_name_setting(settings, "transport", places.transport):
                await watched.transport.declare(own)
            if has_queue:
                await checked.start()
        yield watched


@asynccontextmanager
async def open_relay(
    settings: Settings, *, connects: bool = True, environment: Environment = LIVE, observer: Observer | None = None
) -> AsyncIterator[Ports]:
    """Open what a relay needs in a process that does not run the endpoint, and connect to the broker if it `connects`.

    Raises as `open_finishing`, and SetupError where no record could be found: one that is kept nowhere, in another process's
    memory, or in documents that do not list what is pending.
    """
    require_records(settings)
    async with open_finishing(settings, connects=connects, environment=environment, observer=observer) as ports:
        if ports.pending is None:
            raise SetupError(
                f"endpoint {settings.name!r} cannot use a relay: its store {settings.places.store} has no list of documents "
                "with unsent messages. Run `onceonly schema create module:endpoint`, which creates what is missing"
            )
        yield ports


@asynccontextmanager
async def open_finishing(
    settings: Settings,
    *,
    entities: bool = False,
    connects: bool = False,
    environment: Environment = LIVE,
    observer: Observer | None = None,
) -> AsyncIterator[Ports]:
    """Open what finishes and cleans up for an endpoint in a process that does not run it. Its ports have no handlers.

    No queue is declared, and nothing of the application is opened. `entities` means that some handlers work on entities. With
    `connects` a broker that is away raises now. The ports are enclosed by `observer`. Raises SetupError; RetryableError when a
    server is away. Both name the setting it is about.
    """
    settings.places.store.require_driver("store")
    settings.places.transport.require_driver("transport")
    async with AsyncExitStack() as stack:
        with errors_name_setting(settings, "store", settings.places.store):
            store = await stack.enter_async_context(open_store(settings, entities=entities, environment=environment))
        dead_letters = await _open_letters(stack, settings, store, environment)
        opened = await _open_dispatch(stack, settings, store, environment)
        if connects:
            with errors_name_setting(settings, "transport", settings.places.transport):
                await opened.transport.declare(())  # no queue. It is not observed: who waits for the start reports it
        observer = await _open_records(stack, settings, store, opened.transport, observer, environment)
        ports = Ports(
            endpoint=settings.name,
            store=store.store,
            fence=store.fence,
            pending=store.pending,
            handlers=NoHandlers(),
            admission=opened.admission.admission,
            effects=opened.effects.effects or NoArtifacts(),
            transport=opened.transport,
            dead_letters=dead_letters,
            maintenance=_maintenance(settings, store, opened, dead_letters),
        )
        yield observed(ports, observer)


async def _open_letters(stack: AsyncExitStack, settings: Settings, store: StoreParts, environment: Environment) -> DeadLetters:
    places = settings.places
    if places.dead_letters is places.store:
        return store.dead_letters
    with errors_name_setting(settings, "dead_letters", places.dead_letters):
        return await stack.enter_async_context(open_dead_letters(places.dead_letters, environment=environment))


async def _report_left(records: PendingRecords, settings: Settings, environment: Environment) -> None:
    """Log records that are old, as those of `History` that were not sent before it was replaced."""
    older_than = environment.clock.now() - round(settings.relay_after * 1000)
    if count := len(await records.undispatched(older_than, MOST_LEFT)):
        fields = {"endpoint": settings.name, "count": count, "deduplication": type(settings.deduplication).__name__}
        _store_log.warning("unsent messages of an earlier setting are not sent", extra=fields)


def check_controls(settings: Settings) -> None:
    """Check that the control messages of transactions have a queue. Raises SetupError."""
    if settings.has_transport and not settings.has_queue:
        why, instead = f"because its store {settings.places.store} holds documents", "use a SQL store"
        if settings.control is not None and settings.store_plan.has_tables:
            why, instead = "because it has control=", "remove it and run onceonly relay"
        raise SetupError(
            f"transactions of endpoint {settings.name!r} need control messages, {why}, and its transport "
            f"{settings.places.transport} has no queue for them: {instead}, or use a transport with queues"
        )


def require_records(settings: Settings) -> None:
    """Make sure that a relay in a process of its own has something to find, and somewhere to send it. Raises SetupError."""
    if reason := _why_no_relay(settings):
        raise SetupError(f"endpoint {settings.name!r} needs no relay: {reason}")


def _why_no_relay(settings: Settings) -> str:
    store, transport = settings.places.store, settings.places.transport
    if not settings.plan.records:
        return f"{without_records(settings.deduplication).replace('(), which', '()')} of unsent messages: use History()"
    if not settings.store_plan.is_searchable:
        return (
            f"its store {store} does not list documents with unsent messages. They are sent when the message that caused "
            "them is delivered again, and those of transactions by control messages"
        )
    if not settings.sends:
        return 'it has no transport, so it has no messages to send: set transport="..."'
    places = (("store", store), ("transport", transport)) if settings.has_transport else (("store", store),)
    for role, place in places:
        if not place.is_shared:
            return f"its {role} {place} exists only in the memory of one process: use a database or a broker, or set --{role}"
    return ""


class _DispatchParts(NamedTuple):
    """What sends the messages of records, in any process."""

    admission: AdmissionParts
    effects: EffectsParts
    transport: Transport


async def _open_dispatch(
    stack: AsyncExitStack, settings: Settings, store: StoreParts, environment: Environment
) -> _DispatchParts:
    admission = await open_admission(stack, settings, environment)
    effects = await open_effects(stack, settings, store, environment)
    with errors_name_setting(settings, "transport", settings.places.transport):
        opening = open_own_transport(settings, environment=environment)
        return _DispatchParts(admission, effects, await stack.enter_async_context(opening))


async def _open_remote_requests(settings: Settings, store: StoreParts) -> RemoteRequests:
    if store.open_remote_requests is not None:
        return await store.open_remote_requests()
    place = settings.places.store
    how = "" if place.is_shared else " (or memory:// without blobs, peers and entities)"
    raise SetupError(
        f"responders need a SQL store{how}, which commits request, response and business data together: "
        f"{place} cannot store requests"
    )


async def _open_records(  # noqa: PLR0917 - what both callers have
    stack: AsyncExitStack,
    settings: Settings,
    store: StoreParts,
    transport: Transport,
    observer: Observer | None,
    environment: Environment,
) -> Observer | None:
    """Store the counts of events without subscribers, and the message journal, if the endpoint has one.

    Returns an observer that records in the journal as well.
    """
    events = getattr(transport, "unsubscribed", None)
    collect = transport.collect_unsubscribed if isinstance(transport, CollectsUnsubscribed) else None
    if isinstance(events, UnsubscribedEvents) and (store.unsubscribed is not None or collect is not None):
        counting = storing_counts(events, store.unsubscribed, collect, endpoint=settings.name, environment=environment)
        await stack.enter_async_context(counting)
    if store.shadow is not None:
        failures = FailureLog(_shadow_log, "count of shadow mode not stored, will be retried", endpoint=settings.name)
        counting = storing_counts(*store.shadow, endpoint=settings.name, environment=environment, failures=failures)
        await stack.enter_async_context(counting)
    if store.message_journal is None:
        return observer
    journal = recording(store.message_journal, endpoint=settings.name, environment=environment)
    recorder = await stack.enter_async_context(journal)
    return recorder if observer is None else Observers(observer, recorder)


async def _check_queue(transport: Transport, settings: Settings) -> float | None:
    with errors_name_setting(settings, "transport", settings.places.transport):
        return await report_settings(transport, settings.name, settings.places.transport)


async def _backlog(transport: Transport, name: str, events: Sequence[str]) -> Backlog | None:
    """Ask what waits in a queue. What counts it by an index counts up to a limit."""
    try:
        if isinstance(transport, MeasuresQueue):
            sample = await transport.measure_queue(name, MOST_WAITING)
            return Backlog(sample.waiting, sample.oldest if sample.waiting else None)
        return Backlog((await transport.depth(name, events)).waiting)
    except QueueMissing:
        return None


def _maintenance(settings: Settings, store: StoreParts, opened: _DispatchParts, letters: DeadLetters) -> Maintenance:
    plan, admission = settings.plan, opened.admission
    return Maintenance(
        after=NOTHING.after if plan.sweep_after is None else plan.sweep_after.total_seconds(),
        tokens=admission.tokens,
        artifacts=opened.effects.sweeps,
        drops=admission.drops,
        marks=expiring(admission.marks, opened.effects.expired),
        run_markers=store.old_run_markers,
        letters=letters if isinstance(letters, LetterIndex) else None,
        ring=store.ring,
        keys=store.keys,
        leader=store.leader,
        journals=store.journals,
        message_journal=store.message_journal,
        log=store.log,
        interval=settings.interval.total_seconds(),
        retention=round(settings.retention.total_seconds() * 1000) if settings.retention is not None else 0,
        leads=settings.janitor,
        presence=store.presence,
    )


def open_transport(
    place: Location | str, endpoint: str, *, environment: Environment = LIVE
) -> AbstractAsyncContextManager[Transport]:
    """Open the queue of one endpoint, to receive or only to send; declares nothing. Raises SetupError."""
    found = locate(place, "transport")
    return _service(found).open_transport(found.setting, endpoint, clock=environment.clock, random=environment.random)


@asynccontextmanager
async def open_own_transport(settings: Settings, *, environment: Environment = LIVE) -> AsyncIterator[Transport]:
    """Open the transport of an endpoint. What is sent to the endpoint itself goes where its host receives, if it has one.

    What is sent to a carrier of this process goes there.

    Raises SetupError.
    """
    place, queue = settings.places.transport, settings.receives_from
    async with open_transport(place, settings.name, environment=environment) as transport:
        wrapped: Any = transport
        if queue is not None:
            wrapped = HostQueueTransport(transport, settings.name, queue, clock=environment.clock)
        if not are_there_any():
            yield cast("Transport", wrapped)
            return
        from onceonly.queues.carriers import CarryingTransport  # noqa: PLC0415 - where it is needed

        carrying = CarryingTransport(wrapped, settings.name)
        try:
            yield cast("Transport", carrying)
        finally:
            await carrying.close_carriers()


def temporary_transport(
    place: Location | str, topologies: Sequence[Topology], *, environment: Environment = LIVE
) -> AbstractAsyncContextManager[None]:
    """Use a transport behind a prefix of its own. At the end nothing of it is left. Raises SetupError."""
    found = locate(place, "transport")
    return _service(found).temporary_transport(found.setting, topologies, clock=environment.clock, random=environment.random)


async def report_settings(transport: Transport, endpoint: str, place: Location) -> float | None:
    """Log how the broker stores the queue of an endpoint, if it reports that. Each text once in a process.

    Returns the seconds after which the settings are checked again, None for never. Raises SetupError, RetryableError.
    """
    if not isinstance(transport, ChecksBroker):
        return None
    report = await transport.check()
    where = {"endpoint": endpoint, "place": str(place)}
    settings = ", ".join(f"{name} {value}" for name, value in report.settings)
    if settings and _LOGGED.add(endpoint, str(place), settings):
        _log.info("queue settings", extra={**where, "settings": settings})
    for warning in report.warnings:
        if _LOGGED.add(endpoint, str(place), warning):
            _log.warning("queue warning", extra={**where, "reason": warning})
    return report.again_after


def _service(place: Location) -> TransportService:
    place.require_driver("transport")
    if place.system.transport is not None:
        return place.system.transport()
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    return cast("TransportService", sql)
