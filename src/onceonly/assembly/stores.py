"""Opens stores, and what is next to them, to use or only to read. A driver is imported when a URL names it, not before."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onceonly.assembly.parts import BucketClock, StoreParts
from onceonly.config.deduplication import without_records
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, is_engine, locate, scheme_of, shown
from onceonly.config.store_plan import StorePlan
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.environment import Clock
from onceonly.ports.measurements import StoredRemains
from onceonly.runtime.environment import LIVE, Environment
from onceonly.systems import Family, Role

if TYPE_CHECKING:
    from onceonly.assembly.sql import SampleResult
    from onceonly.sql.database import Database
    from onceonly.sql.schema import Schema


class StoreFamily(Protocol):
    """Opens the stores of one family. The modules `sql`, `documents` and `memory` of this package are such objects."""

    def open_store(
        self, settings: Settings, plan: StorePlan, *, clock: Clock, creates: bool = True
    ) -> AbstractAsyncContextManager[StoreParts]:
        """Open a store, and what is next to it. Without `creates`, only for reading: nothing is created or decided."""

    def open_dead_letters(self, place: Location, *, clock: Clock) -> AbstractAsyncContextManager[DeadLetters]:
        """Open dead letters alone."""


class EnlistedTransaction(Protocol):
    """An open transaction of the user's that takes records. Nothing here waits for anything."""

    is_over: bool
    """Whether it was committed, rolled back or closed; then nothing can be written any more."""

    def write(self, record: Record, now: int) -> None:
        """Commit a record with it, or roll it back. `now` is in milliseconds since 1970."""


class EnlistedKeyTransaction(EnlistedTransaction, Protocol):
    """An open transaction of the user's that has taken a client's key, or found it known."""

    attempt: str
    entry: IdempotencyEntry | None
    """What is kept under the key, if it is known."""
    answer: bytes | None

    @property
    def is_own(self) -> bool:
        """Whether it is known because this very transaction has taken it."""

    @property
    def is_lost(self) -> bool:
        """Whether what has taken it was rolled back."""

    def set_answer(self, answer: bytes | None) -> None:
        """Commit this answer with the key."""

    def hold_records(self) -> None:
        """Insert the records in the round trip that stores the answer. The caller commits by the session alone."""


def open_store(
    settings: Settings, *, entities: bool = False, environment: Environment = LIVE
) -> AbstractAsyncContextManager[StoreParts]:
    """Open an endpoint's store, for handlers that work on `entities` or not. Raises SetupError."""
    settings.places.store.require_driver("store")
    plan = settings.plan_store(entities=entities)
    return _family(plan.family).open_store(settings, plan, clock=environment.clock)


def open_read_only(settings: Settings, *, environment: Environment = LIVE) -> AbstractAsyncContextManager[StoreParts]:
    """Open an endpoint's store for reading: nothing is created or decided. Raises SetupError."""
    settings.places.store.require_driver("store")
    plan = settings.store_plan
    return _family(plan.family).open_store(settings, plan, clock=environment.clock, creates=False)


def open_dead_letters(place: object, *, environment: Environment = LIVE) -> AbstractAsyncContextManager[DeadLetters]:
    """Open the dead letters of a store: a `Location`, a URL, an engine or a session factory. Raises SetupError."""
    found = locate(place, "dead_letters")
    found.require_driver("dead_letters")
    return _family(found.family).open_dead_letters(found, clock=environment.clock)


def open_database(
    place: object, role: Role = "store", *, environment: Environment = LIVE
) -> "AbstractAsyncContextManager[Database]":
    """Open the database that a store or transport setting names, whatever tables it has. Raises SetupError if it is none."""
    found = locate(place, role)
    found.require_driver(role)
    if found.family is not Family.SQL:
        raise SetupError(f"{role}={str(found)!r} is not a SQL database, so it has no tables")
    opened: AbstractAsyncContextManager[Database] = _sql().open_database(found.setting, clock=environment.clock)
    return opened


def runs_alone(settings: Settings) -> bool:
    """Return whether the store's isolation level asks for a unit for each message. Raises SetupError."""
    return settings.store_plan.has_tables and _sql().runs_alone(settings)


def units_at_once(settings: Settings, *, entities: bool) -> int:
    """Return how many units a worker may have open while handlers wait. Raises SetupError.

    More than one only in a SQL database, and not where handlers work on `entities`: the versions of one are handled in order.
    """
    if settings.worker.concurrency is not None or entities or not settings.store_plan.has_tables:
        return settings.worker.at_once
    units: int = _sql().units_at_once(settings)
    return units


def enlist(
    settings: Settings, session: object, committed: Callable[[Sequence[Identity | Record]], None]
) -> EnlistedTransaction:
    """Add records of an endpoint to a SQLAlchemy session's open transaction. `committed` receives them in any thread.

    Raises SetupError: for a session of another database, and where no record would be kept.
    """
    check_enlisting(settings)
    enlisted: EnlistedTransaction = _sql().enlist(settings.store, settings.name, session, committed)
    return enlisted


def enlist_key(
    settings: Settings,
    session: object,
    committed: Callable[[Sequence[Identity | Record]], None],
    opening: TransactionAttempt,
    *,
    now: int,
) -> "EnlistedKeyTransaction | Awaitable[EnlistedKeyTransaction]":
    """Take a client's key in a SQLAlchemy session's open transaction: when it is awaited, if the session is asynchronous.

    `now` is in milliseconds since 1970: the key is kept from then on. Raises SetupError as `enlist`, and ConflictError.
    """
    check_enlisting(settings)
    enlisted: EnlistedKeyTransaction | Awaitable[EnlistedKeyTransaction]
    enlisted = _sql().enlist_key(settings.store, settings.name, session, committed, opening=opening, now=now)
    return enlisted


def check_enlisting(settings: Settings) -> None:
    """Check that records can be written in a caller's own transaction. Raises SetupError, DriverMissing."""
    store = settings.places.store
    store.require_driver("store")
    if not settings.store_plan.has_tables:
        raise SetupError(f"enlist needs a SQL store, but the store of this endpoint is {store}: use transact(...)")
    if settings.plan.tokens is not None:
        raise SetupError(
            "enlist cannot issue the tokens that deduplication=Tokens(...) requires. Use enlist on an "
            "endpoint with History() or DedupStore(url), or send a command to this endpoint with "
            "`onceonly send` and publish in its handler"
        )
    if not settings.plan.records:
        raise SetupError(
            f"enlist cannot be used with {without_records(settings.deduplication)}: a crash would lose the messages. "
            "Use History()"
        )


async def read_bucket_clock(setting: Any, settings: Settings | None = None) -> BucketClock | None:
    """Return how time is cut in a SQL database, and its clock. None if that is not decided yet.

    Raises SetupError for tables of another version, in the words of a start where an endpoint's `settings` are given.
    """
    async with open_database(setting) as database:
        with nullcontext() if settings is None else errors_name_setting(settings, "store", settings.places.store):
            endpoint = "" if settings is None else settings.name
            cut: BucketClock | None = await _sql().read_bucket_clock(database, endpoint)
            return cut


async def read_remains(place: object, endpoint: str, limit: int, *, role: Role = "store") -> StoredRemains | None:
    """Return what is left in a SQL database, counted up to a limit. None for another kind of store, or without tables.

    Raises SetupError, CommitFailed, OutcomeUnknown.
    """
    found = locate(place, role)
    if found.family is not Family.SQL:
        return None
    found.require_driver(role)
    refuse_missing(found.setting)
    remains: StoredRemains | None = await _sql().read_remains(read_only(found.setting), endpoint, limit, clock=LIVE.clock)
    return remains


def check_bucketing(settings: Settings, cut: BucketClock) -> None:
    """Refuse what a start would refuse: an endpoint that asks for more than its tables were cut for. Raises SetupError."""
    with errors_name_setting(settings, "store", settings.places.store):
        _sql().check_bucketing(settings, cut)


async def measure(setting: Any, rows: int, rate: float, *, name: str, seconds: Callable[[], float]) -> "SampleResult":
    """Measure what this many claims and tokens take in a SQL database. Uses temporary tables. Raises SetupError."""
    async with open_database(setting) as database:
        sampled: SampleResult = await _sql().measure_in(database, rows, rate, name=name, seconds=seconds)
        return sampled


def schemas(*roles: str) -> "tuple[Schema, ...]":
    """Return the tables that a SQL database needs to be a "store", a "transport", or both."""
    known = _sql().SCHEMAS
    return tuple(known[role] for role in roles or known)


@contextmanager
def errors_name_setting(settings: Settings, role: str, place: Location) -> Iterator[None]:
    """Add the endpoint and the setting to the errors of a place that cannot be used. The type of the error stays."""
    try:
        yield
    except (SetupError, RetryableError) as error:
        raise type(error)(f"endpoint {settings.name!r} cannot use its {role} {place}: {error}") from error


def _family(family: Family | None) -> StoreFamily:
    match family:
        case Family.SQL:
            opens: StoreFamily = _sql()
            return opens
        case Family.MEMORY:
            from onceonly.assembly import memory  # noqa: PLC0415 - only when it is named

            return memory
        case _:
            from onceonly.assembly import documents  # noqa: PLC0415 - the same

            return documents


def _sql() -> Any:
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    return sql


def refuse_missing(setting: Any) -> None:
    if missing := missing_file(setting):
        raise SetupError(missing)


def read_only(setting: Any) -> Any:
    """Return a database setting with which no file and no tables are created. Raises SetupError if the file is missing."""
    refuse_missing(setting)
    url = setting.setting if isinstance(setting, Location) else setting
    if not isinstance(url, str) or not _is_sqlite(url) or "create=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}create=false"


def missing_file(setting: Any) -> str:
    """Return an error for a SQLite URL or engine whose file is missing; empty if it exists, and for everything else."""
    setting = setting.setting if isinstance(setting, Location) else setting
    if not is_engine(setting) and not (isinstance(setting, str) and _is_sqlite(setting)):
        return ""
    from onceonly.sql.database import place_of as named_place  # noqa: PLC0415 - imports SQLAlchemy

    url = named_place(setting).url
    file = url.database if url.get_backend_name() == "sqlite" else None
    if not file or file == ":memory:" or file.startswith("file:") or Path(file).exists():
        return ""
    place = shown(setting) if isinstance(setting, str) else file
    return (
        f"database file {place} does not exist: `onceonly schema create module:endpoint` creates it, and so does the first run"
    )


def _is_sqlite(url: str) -> bool:
    return scheme_of(url).startswith("sqlite")
