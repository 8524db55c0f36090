"""The SQL adapters, put together: databases are shared by URL within a process, and have their tables before they are used."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from onceonly.assembly.opened import BucketClock, OpenedStore
from onceonly.config.deduplication import ClaimMode
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.config.measured import Measurements
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database, connection_limit, dialect_of, place_of, pool_of
from onceonly.sql.database import open_database as connect
from onceonly.sql.database_clock import database_now
from onceonly.sql.database_identity import whereabouts
from onceonly.sql.dialect import checked_isolation
from onceonly.sql.queue import SqlTransport
from onceonly.sql.queue_tables import SCHEMA as QUEUE
from onceonly.sql.schema import Schema, check, create, create_user_tables, drop, is_there
from onceonly.sql.store import DOCUMENTS_SCHEMA as DOCUMENTS
from onceonly.sql.store import HTTP_SCHEMA as HTTP
from onceonly.sql.store import JOURNAL_SCHEMA as JOURNAL
from onceonly.sql.store import (
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
    SqlRing,
    SqlStarts,
    SqlStore,
    SqlTokens,
    SqlTransactions,
)
from onceonly.sql.store.bucketing import RETENTION_MS, find_bucketing, refuse_more
from onceonly.sql.store.enlisted import Committed, EnlistedSession, RecordStore
from onceonly.sql.store.enlisted import enlist as enlist_session
from onceonly.sql.store.measuring import SampleSize, measure
from onceonly.sql.store.tables import SCHEMA as STORE
from onceonly.systems.shared import Shared

SPARE_CONNECTIONS = 4
"""Connections of a user's pool that handlers which wait never use: for relay, janitor, queue, and the application."""
SCHEMAS = {"store": STORE, "transport": QUEUE, "documents": DOCUMENTS, "http": HTTP, "journal": JOURNAL}

_DATABASES: Shared[Database] = Shared(Database.close)


def open_database(setting: Any, *, clock: Clock) -> AbstractAsyncContextManager[Database]:
    """Give the database of a URL, an engine or a session factory; one for all that name it in this process."""

    async def make() -> Database:
        return await connect(setting, clock=clock)

    return _DATABASES.use((setting if isinstance(setting, str) else id(setting), id(clock)), make)


@asynccontextmanager
async def open_store(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store and the dead letters next to it; an embedded database gets the user's tables as well."""
    async with open_database(settings.store, clock=clock) as database:
        await _ensure(database, STORE)
        if settings.journal is not None:
            await _ensure(database, JOURNAL)
        metadata: Any = settings.metadata
        if metadata is not None and database.creates:
            await create_user_tables(database, metadata)
        store, opened = _opened(database, settings, clock)
        if opened.ring is not None:
            await store.prepare()
        yield opened


@asynccontextmanager
async def look_at_store(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give the same only to look at: no table is made, nothing is decided; without a ring where time is not cut yet."""
    async with open_database(settings.store, clock=clock) as database:
        await _ensure(database, STORE, creates=False)
        if settings.journal is not None:
            await _ensure(database, JOURNAL, creates=False)
        _, opened = _opened(database, settings, clock)
        yield opened if await find_bucketing(database) is not None else opened._replace(ring=None)


def _opened(database: Database, settings: Settings, clock: Clock) -> tuple[SqlStore, OpenedStore]:
    claim_mode, retention = settings.plan.claims, _retention(settings)
    mine = None if clock is LIVE.clock else clock  # where a test moves time, it moves for claims as well
    journal = None if settings.journal is None else SqlMessageJournal(database, settings.name, settings.journal)
    store = SqlStore(
        database,
        settings.name,
        claim_mode=claim_mode,
        isolation=settings.isolation,
        retention=retention,
        clock=mine,
        journal=journal,
    )
    ring = SqlRing(database, retention=retention, clock=mine) if claim_mode is ClaimMode.HISTORY else None
    return store, OpenedStore(
        store,
        store,
        None if claim_mode is ClaimMode.NOTHING else store,
        SqlDeadLetters(database),
        SqlRegister(database, settings.name),
        ring,
        keys=None if claim_mode is ClaimMode.NOTHING else SqlKeys(database),
        leader=ring or SqlRing(database, clock=mine),
        journals=SqlJournals(database, settings.name),
        expect=database.dialect.expect,
        starts=lambda lasts: SqlStarts(database, settings.name, lasts=lasts),
        unsubscribed=SqlEventCounts(database, settings.name),
        lookup=SqlLookup(database, settings.name, claim_mode=claim_mode, clock=mine),
        presence=SqlPresence(database, settings.name) if settings.presence else None,
        message_journal=journal,
        log=database if database.dialect.embedded else None,
        isolate=store.isolate,
    )


async def look_at_ring(database: Database) -> BucketClock | None:
    """Return how time is cut in a database. None if that is not decided or the tables are missing.

    Raises SchemaMissing for those of an older version, SchemaTooNew.
    """
    if not await is_there(database, STORE):
        return None
    await check(database, STORE)
    bucketing = await find_bucketing(database)
    if bucketing is None:
        return None
    async with database.reading() as connection:
        return BucketClock(bucketing, await connection.run_sync(database_now))


def refuse_ring(settings: Settings, cut: BucketClock) -> None:
    """Refuse what a start would refuse: an endpoint that asks for more than the ring was cut for. Raises SetupError."""
    if settings.plan.claims is ClaimMode.HISTORY:
        refuse_more(_retention(settings), cut.bucketing)


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
    """Give the documents of a database."""
    async with open_database(setting, clock=clock) as database:
        await _ensure(database, DOCUMENTS)
        yield SqlDocuments(database)


@asynccontextmanager
async def open_tokens(place: Location, *, clock: Clock) -> AsyncIterator[SqlTokens]:
    """Give the tokens that are next to a store."""
    async with open_database(place.setting, clock=clock) as database:
        await _ensure(database, STORE)
        yield SqlTokens(database)


@asynccontextmanager
async def open_transactions(settings: Settings, *, clock: Clock) -> AsyncIterator[SqlTransactions]:
    """Give the transactions of a store that is open, with its tables."""
    async with open_database(settings.store, clock=clock) as database:
        yield SqlTransactions(database, settings.name, claim_mode=settings.plan.claims, isolation=settings.isolation)


@asynccontextmanager
async def open_remote_requests(settings: Settings, *, clock: Clock) -> AsyncIterator[SqlRemoteRequests]:
    """Give what an endpoint was asked by others, next to a store that is open."""
    async with open_database(settings.store, clock=clock) as database:
        await _ensure(database, HTTP)
        yield SqlRemoteRequests(database, settings.name, claim_mode=settings.plan.claims, isolation=settings.isolation)


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


def enlist(setting: Any, endpoint: str, session: object, committed: Committed) -> EnlistedSession:
    """Write the records of an endpoint through a session of the user's. Raises SetupError."""
    return enlist_session(session, RecordStore(endpoint, place_of(setting), pool_of(setting)), committed)


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    """Give the dead letters of a database."""
    async with open_database(place.setting, clock=clock) as database:
        await _ensure(database, STORE)
        yield SqlDeadLetters(database)


@asynccontextmanager
async def open_transport(
    url: str,
    endpoint: str,
    *,
    clock: Clock,
    chance: RandomSource,  # noqa: ARG001 - see the protocol
) -> AsyncIterator[Transport]:
    """Open the queue of one endpoint."""
    async with open_database(url, clock=clock) as database:
        await _ensure(database, QUEUE)
        yield SqlTransport(database, endpoint, lease=database.lease, clock=None if clock is LIVE.clock else clock)


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],  # noqa: ARG001 - the same
    *,
    clock: Clock,
    chance: RandomSource,  # noqa: ARG001 - the same
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
    return RETENTION_MS if history is None else round(history.total_seconds() * 1000)


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
