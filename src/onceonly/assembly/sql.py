"""The SQL adapters, put together: databases are shared by URL within a process, and have their tables before they are used."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from onceonly.assembly.parts import BucketClock, StoredShadow, StoreParts, controls_of
from onceonly.assembly.stored_retention import tell_difference
from onceonly.config.deduplication import ClaimMode
from onceonly.config.endpoint import Settings
from onceonly.config.estimates import Measurements
from onceonly.config.location import Location
from onceonly.config.store_plan import StorePlan
from onceonly.model.changed_retention import refuse_less
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.model.retention import in_milliseconds
from onceonly.model.ring import bucketing_for
from onceonly.model.transaction import TransactionAttempt
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.measurements import StoredRemains
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database, connection_limit, dialect_of, place_of, pool_of
from onceonly.sql.database import open_database as connect
from onceonly.sql.database_clock import database_now
from onceonly.sql.dialect import checked_isolation
from onceonly.sql.queue_tables import SCHEMA as QUEUE
from onceonly.sql.schema import Schema, check, create, create_user_tables, drop, is_there
from onceonly.sql.store import DOCUMENTS_SCHEMA as DOCUMENTS
from onceonly.sql.store import HTTP_SCHEMA as HTTP
from onceonly.sql.store import JOURNAL_SCHEMA as JOURNAL
from onceonly.sql.store import (
    AbandonedRunMarkers,
    SqlAttempts,
    SqlDeadLetters,
    SqlDocuments,
    SqlEventCounts,
    SqlJournals,
    SqlKeys,
    SqlLookup,
    SqlMessageJournal,
    SqlPresence,
    SqlRegister,
    SqlRemoteRequests,
    SqlRetention,
    SqlRing,
    SqlRunMarkers,
    SqlStore,
    SqlTokens,
    SqlTransactions,
)
from onceonly.sql.store.enlisted_keys import KeyToTake, SessionKey
from onceonly.sql.store.enlisted_keys import enlist_key as enlist_session_key
from onceonly.sql.store.enlistment import Committed, EnlistedSession, RecordStore
from onceonly.sql.store.enlistment import enlist as enlist_session
from onceonly.sql.store.measurements import SampleSize, measure
from onceonly.sql.store.remains import read_remains as remains_in
from onceonly.sql.store.rings import find_rings
from onceonly.sql.store.shadow import count_name
from onceonly.sql.store.tables import SCHEMA as STORE
from onceonly.sql.store.time_buckets import RETENTION_MS
from onceonly.sql.urls import DatabaseAddress, whereabouts
from onceonly.systems.shared import Shared

SPARE_CONNECTIONS = 4
"""Connections of a user's pool that handlers which wait never use: for relay, janitor, queue, and the application."""
SCHEMAS = {"store": STORE, "transport": QUEUE, "documents": DOCUMENTS, "http": HTTP, "journal": JOURNAL}

_DATABASES: Shared[Database] = Shared(Database.close)


def open_database(setting: Any, *, clock: Clock) -> AbstractAsyncContextManager[Database]:
    """Return the database of a URL, an engine or a session factory; one for all that name it in this process."""

    async def make() -> Database:
        return await connect(setting, clock=clock)

    return _DATABASES.use((setting if isinstance(setting, str) else id(setting), id(clock)), make)


@asynccontextmanager
async def open_store(settings: Settings, plan: StorePlan, *, clock: Clock, creates: bool = True) -> AsyncIterator[StoreParts]:
    """Open a store, and what is next to it. An embedded database gets the user's tables as well.

    Without `creates` there is no ring if time is not cut yet.
    """
    async with open_database(settings.store, clock=clock) as database:
        await _ensure(database, STORE, creates=creates)
        if settings.journal is not None:
            await _ensure(database, JOURNAL, creates=creates)
        metadata: Any = settings.metadata
        if creates and metadata is not None and database.creates:
            await create_user_tables(database, metadata)
        store, parts = _parts(database, settings, plan, clock)
        if creates and parts.ring is not None:
            kept = (await store.prepare()).latest.ring.bucketing.retention
            tell_difference(settings.name, bucketing_for(_retention(settings)).retention, kept)
        if not creates and (await find_rings(database)).of(settings.name) is None:
            parts = parts._replace(ring=None)
        yield parts


def _parts(database: Database, settings: Settings, plan: StorePlan, clock: Clock) -> tuple[SqlStore, StoreParts]:
    claim_mode, retention, isolation = settings.plan.claims, _retention(settings), settings.isolation
    mine = None if clock is LIVE.clock else clock  # where a test moves time, it moves for claims as well
    journal = None if settings.journal is None else SqlMessageJournal(database, settings.name, settings.journal)
    store = SqlStore(
        database,
        settings.name,
        claim_mode=claim_mode,
        isolation=isolation,
        retention=retention,
        clock=mine,
        journal=journal,
    )
    ring = SqlRing(database, settings.name, retention=retention, clock=mine) if claim_mode.has_history else None
    has_controls = plan.has_transactions and plan.has_controls
    transactions = SqlTransactions(
        database, settings.name, claim_mode=claim_mode, isolation=isolation, has_controls=has_controls
    )
    return store, StoreParts(
        store,
        store,
        store if claim_mode.decides else None,
        SqlDeadLetters(database),
        SqlRegister(database, settings.name),
        ring,
        keys=None if claim_mode is ClaimMode.NOTHING else SqlKeys(database),
        leader=ring or SqlRing(database, clock=mine),
        journals=SqlJournals(database, settings.name),
        expect=database.dialect.expect,
        run_markers=lambda lasts: SqlRunMarkers(database, settings.name, lasts=lasts),
        old_run_markers=AbandonedRunMarkers(database),
        unsubscribed=SqlEventCounts(database, settings.name),
        left=None if claim_mode.decides else store,
        shadow=None
        if store.shadow is None
        else StoredShadow(store.shadow, SqlEventCounts(database, count_name(settings.name))),
        lookup=SqlLookup(database, settings.name, claim_mode=claim_mode, clock=mine),
        presence=SqlPresence(database, settings.name) if settings.presence else None,
        message_journal=journal,
        log=database if database.dialect.embedded else None,
        transactions=transactions if plan.has_transactions else None,
        controls=controls_of(settings, SqlAttempts(database, clock=mine), clock) if has_controls else None,
        open_remote_requests=partial(_open_remote_requests, database, settings),
        isolate=store.isolate,
        working_on=store.working_on,
    )


async def read_bucket_clock(database: Database, endpoint: str) -> BucketClock | None:
    """Return how time is cut in a database. None if that is not decided or the tables are missing.

    Raises SchemaMissing for those of an older version, SchemaTooNew.
    """
    if not await is_there(database, STORE):
        return None
    await check(database, STORE)
    routes = (await find_rings(database)).of(endpoint)
    if routes is None:
        return None
    async with database.reading() as connection:
        now = await connection.run_sync(database_now)
    return BucketClock(routes.at(now).ring.bucketing, now, routes.latest.ring.bucketing)


@asynccontextmanager
async def open_retention(setting: Any, endpoint: str, *, clock: Clock) -> AsyncIterator[SqlRetention]:
    """Open the retention of an endpoint in a database. Raises SchemaMissing, SchemaTooNew."""
    async with open_database(setting, clock=clock) as database:
        await _ensure(database, STORE)
        yield SqlRetention(database, endpoint, clock=None if clock is LIVE.clock else clock)


async def read_remains(setting: Any, endpoint: str, limit: int, *, clock: Clock) -> StoredRemains | None:
    """Return what is left in a database. None if it has no tables. Raises SchemaMissing for older ones, SchemaTooNew."""
    async with open_database(setting, clock=clock) as database:
        if not await is_there(database, STORE):
            return None
        await check(database, STORE)
        return await remains_in(database, endpoint, limit, clock=None if clock is LIVE.clock else clock)


def check_bucketing(settings: Settings, cut: BucketClock) -> None:
    """Refuse what a start would refuse: an endpoint that asks for more than the ring was cut for. Raises SetupError."""
    if settings.plan.claims.has_history:
        refuse_less(settings.name, _retention(settings), cut.latest.retention)


class SampleResult(NamedTuple):
    """What was measured, and whether a bucket is emptied in a time that hardly depends on how much is in it."""

    measurements: Measurements
    whole: bool


async def measure_in(database: Database, rows: int, rate: float, *, name: str, seconds: Callable[[], float]) -> SampleResult:
    """Measure what this many claims and tokens take. Raises SetupError when this user may make no tables."""
    try:
        sample = SampleSize(rows, rate, database.clock.now())
        found = await measure(database, sample, name=name, seconds=seconds)
    except CommitFailed as error:
        if database.is_refused(error):
            words = f"the sample needs temporary tables, which this user may not create ({error})"
            raise SetupError(f"{words}: use --store with a user that has this permission") from error
        raise
    return SampleResult(found, whole=not database.dialect.embedded)


@asynccontextmanager
async def open_documents(setting: Any, *, clock: Clock) -> AsyncIterator[SqlDocuments]:
    async with open_database(setting, clock=clock) as database:
        await _ensure(database, DOCUMENTS)
        yield SqlDocuments(database)


@asynccontextmanager
async def open_tokens(place: Location, *, clock: Clock) -> AsyncIterator[SqlTokens]:
    async with open_database(place.setting, clock=clock) as database:
        await _ensure(database, STORE)
        yield SqlTokens(database)


async def _open_remote_requests(database: Database, settings: Settings) -> SqlRemoteRequests:
    await _ensure(database, HTTP)
    return SqlRemoteRequests(database, settings.name, claim_mode=settings.plan.claims, isolation=settings.isolation)


def are_one_file(one: Any, other: Any) -> bool:
    """Return whether two settings name the same file of an embedded database. Raises SetupError."""
    here, there = place_of(one).url, place_of(other).url
    if not dialect_of(here).embedded:
        return False
    return whereabouts(here, embedded=True) == whereabouts(there, embedded=dialect_of(there).embedded)


def runs_alone(settings: Settings) -> bool:
    """Return whether each message needs a unit of its own, by the isolation level that was chosen. Raises SetupError."""
    place = place_of(settings.store)  # type: ignore[arg-type]  # a SQL store's
    dialect = dialect_of(place.url)
    level = checked_isolation(dialect, settings.isolation) or checked_isolation(dialect, place.isolation)
    return level in dialect.stale_levels


def units_at_once(settings: Settings) -> int:
    """Return how many units a worker may have open while handlers wait: one where there is one writer at a time.

    The pool of a user's engine is not used up: the application has transactions of its own. Raises SetupError.
    """
    store: Any = settings.store
    if dialect_of(place_of(store).url).single_writer:
        return 1
    wanted, limit = settings.worker.max_concurrency, connection_limit(store)
    return wanted if limit is None else max(1, min(wanted, limit - SPARE_CONNECTIONS))


def _place_of(setting: Any) -> DatabaseAddress:
    return _place_of_url(setting) if isinstance(setting, str) else place_of(setting)


@lru_cache(maxsize=16)
def _place_of_url(url: str) -> DatabaseAddress:
    return place_of(url)


def enlist(setting: Any, endpoint: str, session: object, committed: Committed) -> EnlistedSession:
    """Write the records of an endpoint through a session of the user's. Raises SetupError."""
    return enlist_session(session, RecordStore(endpoint, _place_of(setting), pool_of(setting)), committed)


def enlist_key(
    setting: Any,
    endpoint: str,
    session: object,
    committed: Committed,
    *,
    opening: TransactionAttempt,
    now: int,
) -> SessionKey | Awaitable[SessionKey]:
    """Take a client's key through a session of the user's. Raises SetupError, ConflictError."""
    home = RecordStore(endpoint, _place_of(setting), pool_of(setting))
    return enlist_session_key(session, home, committed, KeyToTake(opening, now))


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    async with open_database(place.setting, clock=clock) as database:
        await _ensure(database, STORE)
        yield SqlDeadLetters(database)


@asynccontextmanager
async def open_transport(
    url: str,
    endpoint: str,
    *,
    clock: Clock,
    random: RandomSource,  # noqa: ARG001 - see the protocol
) -> AsyncIterator[Transport]:
    from onceonly.sql.queue import SqlTransport  # noqa: PLC0415 - most transports are brokers

    async with open_database(url, clock=clock) as database:
        await _ensure(database, QUEUE)
        yield SqlTransport(database, endpoint, lease=database.lease, clock=None if clock is LIVE.clock else clock)


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],  # noqa: ARG001 - the same
    *,
    clock: Clock,
    random: RandomSource,  # noqa: ARG001 - the same
) -> AsyncIterator[None]:
    """Make the queue's tables, and drop them with all that is in them."""
    async with open_database(url, clock=clock) as database:
        await create(database, QUEUE)
        try:
            yield
        finally:
            await drop(database, QUEUE)


def _retention(settings: Settings) -> int:
    history = settings.plan.history
    return RETENTION_MS if history is None else in_milliseconds(history)


async def _ensure(database: Database, schema: Schema, *, creates: bool = True) -> None:
    """Make the tables of an embedded database, unless it is only looked at; everywhere else a person has made them.

    Raises SchemaMissing, SchemaTooNew, SetupError when the user may not look.
    """
    try:
        await (create if creates and database.creates else check)(database, schema)
    except CommitFailed as error:
        if database.is_refused(error):
            raise SetupError(str(error)) from error
        raise
