"""A SQL database as the adapters use it: one for each process and URL, with transactions that end on every path.

A database transaction that is given up is *dropped*: that awaits nothing, it is rolled back in the background, and every
later one waits until that is done.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

from msgspec.structs import replace
from sqlalchemy import Connection, Pool, QueuePool, RootTransaction, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError, UnsafeSettings, error_text
from onceonly.ports.environment import Clock
from onceonly.sql.database_history import HistoryWatch
from onceonly.sql.dialect import DatabaseFailure, Dialect, Purpose, checked_isolation
from onceonly.sql.guard import guarding, mark_errors
from onceonly.sql.notifications import Notifications
from onceonly.sql.options import DEFAULT_PREFIX, checked_prefix
from onceonly.sql.other_connections import exempt
from onceonly.sql.statement_events import look_at_statements
from onceonly.sql.transaction import DatabaseTransaction, Linger, Turns, nothing
from onceonly.sql.translation import ErrorTranslator, NotConnected, TurnNotHad, check_loop, refuse_other_loop
from onceonly.sql.urls import DatabaseAddress, read_url, written
from onceonly.systems import system_of, systems

CONNECT_SECONDS = 25.0
"""Seconds for a new connection, and for all that SQLAlchemy asks on it."""
ROLLBACK_SECONDS = 15.0
"""Seconds that a transaction waits for the rollback of those before it: a server that is silent for so long is away."""
CLOSE_SECONDS = 2.0
"""Seconds to end transactions and connections politely."""
REUSE_SECONDS = 0.002  # until a unit's connection is released, unless another transaction begins before
CHECK_INTERVAL_SECONDS = 30.0
"""Seconds between two looks at a server's settings: one that stops being durable is noticed within a minute."""
RECONNECT_CHECK_SECONDS = 5.0
"""Seconds after a look from which on a new connection causes the next one: it may lead to another server."""
_STATEMENT_EVENTS = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")
Source: TypeAlias = str | AsyncEngine | async_sessionmaker[AsyncSession]
"""What a user may name a database by."""


_OPENED: "WeakSet[Database]" = WeakSet()


class PoolUse(NamedTuple):
    """How many connections of pools are used, and how many are open and idle."""

    used: int
    idle: int


def pool_use() -> dict[str, PoolUse]:
    """Return the use of the pools of all databases that this process has opened, by the name of the system."""
    found: dict[str, PoolUse] = {}
    for engine in {database.engine.sync_engine for database in _OPENED}:
        if isinstance(pool := engine.pool, QueuePool):
            system = engine.dialect.name
            before = found.get(system, PoolUse(0, 0))
            found[system] = PoolUse(before.used + pool.checkedout(), before.idle + pool.checkedin())
    return found


class Database:
    """One SQL database in one process. Several adapters share it; who opened it closes it."""

    def __init__(
        self, engine: AsyncEngine, dialect: Dialect, place: DatabaseAddress, *, clock: Clock, durable: bool, own: bool = True
    ) -> None:
        self.engine = engine
        self.dialect = dialect
        self.prefix = place.prefix
        self.schema = place.schema
        self.isolation = checked_isolation(dialect, place.isolation)
        self.lease = place.lease
        self.creates = dialect.embedded and place.create
        self.clock = clock
        self.sessions: async_sessionmaker[AsyncSession] = async_sessionmaker()
        self.kinds: dict[type, Callable[[Any], object]] = {}
        """How the resources of a unit find what handlers ask for, by its class."""
        self._own = own
        self._known: tuple[type[Exception], ...] = (OnceOnlyError, SQLAlchemyError, OSError, *dialect.errors)
        self._translating: dict[
            tuple[type[OnceOnlyError], type[OnceOnlyError], type[OnceOnlyError], bool], ErrorTranslator
        ] = {}
        self._durable = durable
        self._prepared = False
        self._next_check = self._next_early_check = 0.0
        self._history = HistoryWatch(written(engine.url))
        self._preparing = asyncio.Lock()
        self._turns = Turns(place.timeout) if dialect.single_writer else None
        self._dropping: set[asyncio.Task[None]] = set()
        self._stranded: list[DatabaseTransaction] = []
        self.notifications = Notifications(dialect, engine, (place.schema, place.prefix), self.ready)
        if own and not dialect.embedded:
            event.listen(engine.sync_engine, "connect", self._plan_early_check)
        exempt(engine, own=own)
        _OPENED.add(self)

    @property
    def has_listeners(self) -> bool:
        """Whether a user listens to statements of this engine, or of all engines: it may depend on the handler that runs."""
        sync = self.engine.sync_engine
        dispatch = getattr(sync, "_proxied", sync).dispatch  # an adopted engine's own: the view has the library's listeners
        listeners = (getattr(dispatch, name) for name in _STATEMENT_EVENTS)
        return any(each.parent_listeners if self._own else each for each in listeners)  # parent: those of all engines

    async def ready(self) -> None:
        """Check the server before the first transaction, and every `CHECK_INTERVAL_SECONDS` seconds after that.

        Raises the driver's own errors; SetupError the first time, UnsafeSettings later.
        """
        if not self._prepared:
            async with self._preparing:
                if not self._prepared:
                    await self._prepare()
                    self._prepared = True
                    self._plan_check()
        elif monotonic() >= self._next_check and not self.dialect.embedded:
            await self._check_again()

    async def open(self, purpose: Purpose, *, isolation: str | None = None, lingers: bool = True) -> DatabaseTransaction:
        """Begin a database transaction, which must be committed or dropped. Raises the driver's own errors.

        The connection of a unit that is committed is released a little later, unless it shall not linger.
        """
        writing = purpose is not Purpose.READING
        await self._get_ready(settled=writing or not self.dialect.single_writer)
        end_turn = await self._turns.take() if writing and self._turns is not None else nothing
        is_unit = purpose is Purpose.UNIT or purpose is Purpose.BATCH
        linger = self._keep if lingers and is_unit and not self.dialect.single_writer else None
        if is_unit and self.dialect.begins_lazily and self._has_idle():
            return await self._begin(purpose, isolation, end_turn, linger)  # waits for nothing that a cancellation cuts off
        opening = asyncio.ensure_future(self._begin(purpose, isolation, end_turn, linger))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._spawn(_drop_transaction(opening))
            raise

    def writing(self, *, durable: bool = True) -> AbstractAsyncContextManager[AsyncConnection]:
        """Enclose a database transaction that writes; it commits at the end. Raises CommitFailed, OutcomeUnknown.

        Never ConflictError: a lock that could not be had within the time-out is CommitFailed, nothing happened. Without
        `durable` the commit need not wait for the disk: a crash of the server may undo it, and never a part of it.
        """
        return self._transaction(Purpose.WRITING if durable else Purpose.LEASING)

    @asynccontextmanager
    async def autocommitting(self) -> AsyncIterator[AsyncConnection]:
        """Enclose statements each of which is a database transaction of its own: no BEGIN, no COMMIT.

        Raises CommitFailed, OutcomeUnknown.

        Where the dialect needs a transaction around a single statement it is the same as `writing`.
        """
        with self.translate():
            await self._get_ready()  # this may find out that the dialect does not
        if not self.dialect.autocommits:
            async with self.writing() as connection:
                yield connection
            return
        with self.translate(committing=True):
            connection = await self._connect()
            try:
                yield connection
            finally:
                await asyncio.shield(connection.close())

    def reading(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Enclose a database transaction that only reads, all of it from one state. Raises CommitFailed, OutcomeUnknown."""
        return self._transaction(Purpose.READING)

    def translate(
        self,
        *,
        locked: type[OnceOnlyError] = CommitFailed,
        refused: type[OnceOnlyError] = CommitFailed,
        unknown: type[OnceOnlyError] = OutcomeUnknown,
        committing: bool = False,
    ) -> ErrorTranslator:
        """Enclose driver calls: their errors come out as `locked`, `refused`, `unknown` or CommitFailed. See `translated`."""
        asked = (locked, refused, unknown, committing)
        found = self._translating.get(asked)
        if found is None:
            found = ErrorTranslator(self.dialect, locked=locked, refused=refused, unknown=unknown, committing=committing)
            self._translating[asked] = found
        return found

    def is_refused(self, error: OnceOnlyError) -> bool:
        """Return whether a retry cannot help after a translated error: the user may not do it, or the statement cannot work."""
        cause = error.__cause__
        return isinstance(cause, DBAPIError) and self.dialect.classify(cause) in {
            DatabaseFailure.FORBIDDEN,
            DatabaseFailure.STATEMENT,
        }

    def is_locked(self, error: OnceOnlyError) -> bool:
        """Return whether a translated error means that another transaction was in the way."""
        cause = error.__cause__
        return isinstance(cause, TurnNotHad) or (
            isinstance(cause, DBAPIError) and self.dialect.classify(cause) in {DatabaseFailure.LOCKED, DatabaseFailure.HELD}
        )

    async def shrink_log(self) -> int:
        """Return disk space of a file's log, if it is large; returns how many logs. Raises CommitFailed, OutcomeUnknown."""
        with self.translate():
            await self.settle()
            return await self.dialect.shrink_log(self.engine)

    async def settle(self) -> None:
        """Wait until every dropped transaction is rolled back, but not for a server that does not answer."""
        self._end_stranded()
        if self._dropping:
            await asyncio.wait(self._dropping, timeout=None if self.dialect.embedded else ROLLBACK_SECONDS)

    async def close(self) -> None:
        """Roll back what was dropped, and close the connections that this library opened.

        Connections to a server that does not answer are dropped.
        """
        await self.notifications.close()
        self._end_stranded()
        ending = asyncio.ensure_future(self._end())
        try:
            if not self.dialect.embedded and not (await asyncio.wait([ending], timeout=CLOSE_SECONDS))[0]:
                self.dialect.drop_connections()
        finally:
            await ending

    async def _end(self) -> None:
        await self.settle()
        if self._own:
            await self.engine.dispose()
            self.dialect.forget_connections()

    async def _prepare(self) -> None:
        with self._connecting():
            async with asyncio.timeout(None if self.dialect.embedded else 2 * CONNECT_SECONDS):
                if not self._own:
                    await (await self._connect()).close()  # a look at its event loop, before anything is executed
                await self.dialect.prepare(self.engine, durable=self._durable)
                if not self.dialect.embedded:
                    self._history.seen(await self.dialect.history(self.engine))

    async def _check_again(self) -> None:
        """Check the server once more. One that fails the check is checked before every transaction until it passes."""
        async with self._preparing:
            if monotonic() < self._next_check:
                return  # another task has just done it
            try:
                await self._prepare()
            except SetupError as error:
                raise UnsafeSettings(str(error)) from error
            self._plan_check()

    def _plan_check(self) -> None:
        self._next_check = monotonic() + CHECK_INTERVAL_SECONDS
        self._next_early_check = monotonic() + RECONNECT_CHECK_SECONDS

    def _plan_early_check(self, _connection: object, _record: object) -> None:
        """Look soon: where connections are made anew there may be another server."""
        if self._prepared:
            self._next_check = min(self._next_check, self._next_early_check)

    async def _get_ready(self, *, settled: bool = True) -> None:
        """Look at the database before its first use, and let what was dropped be rolled back.

        It need not be `settled` for readers of a file: they wait for no writer, nor for one that still waits for its turn.
        """
        await self.ready()
        if settled:
            await self.settle()
        else:
            self._end_stranded()

    def _has_idle(self) -> bool:
        pool = self.engine.sync_engine.pool
        return isinstance(pool, QueuePool) and pool.checkedin() > 0

    async def _connect(self) -> AsyncConnection:
        """Return a connection, as `_connecting` at less cost. A server that does not answer is away as well."""
        try:
            if self._has_idle():
                return self._require_this_loop(await self.engine.connect())
            async with asyncio.timeout(CONNECT_SECONDS):
                return self._require_this_loop(await self.engine.connect())
        except self._known:
            raise
        except Exception as error:
            check_loop(error)
            raise NotConnected(error_text(error)) from error

    def _require_this_loop(self, connection: AsyncConnection) -> AsyncConnection:
        if not self._own and connection.sync_connection is not None:
            refuse_other_loop(connection.sync_connection)
        return connection

    @contextmanager
    def _connecting(self) -> Iterator[None]:
        """Enclose what connects: an error of no class of the driver's means that the server is away. Raises NotConnected."""
        try:
            yield
        except self._known:
            raise
        except Exception as error:
            check_loop(error)
            raise NotConnected(error_text(error)) from error

    async def _begin(
        self, purpose: Purpose, isolation: str | None, end_turn: Callable[[], None], linger: Linger | None
    ) -> DatabaseTransaction:
        try:
            connection = await self._connect()
            try:
                root = await connection.run_sync(self._begin_root, purpose, isolation)
            except BaseException:
                await connection.invalidate()  # whether it has begun is unknown
                await connection.close()
                raise
        except BaseException:
            end_turn()
            raise
        return DatabaseTransaction(
            connection, root, dialect=self.dialect, dropping=self._drop, end_turn=end_turn, linger=linger
        )

    def _begin_root(self, connection: Connection, purpose: Purpose, isolation: str | None) -> RootTransaction:
        root = connection.begin()
        self.dialect.begin(connection, purpose, isolation=isolation)
        return root

    @asynccontextmanager
    async def _transaction(self, purpose: Purpose) -> AsyncIterator[AsyncConnection]:
        with self.translate():
            transaction = await self.open(purpose)
        try:
            with self.translate():
                yield transaction.connection
            with self.translate(committing=True):
                await transaction.commit()
        except BaseException:
            transaction.drop()
            raise

    def _drop(self, transaction: DatabaseTransaction) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # its coroutine is being closed outside of the loop
            self._stranded.append(transaction)
        else:
            self._spawn(transaction.end())

    def _keep(self, transaction: DatabaseTransaction) -> None:
        """Release a committed transaction's connection in the background: nothing waits for that."""
        self._stranded.append(transaction)
        asyncio.get_running_loop().call_later(REUSE_SECONDS, self._end_stranded)

    def _end_stranded(self) -> None:
        while self._stranded:
            self._spawn(self._stranded.pop().end())

    def _spawn(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(ending)
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)


async def open_database(source: Source, *, clock: Clock, durable: bool = True, prefix: str = "") -> Database:
    """Return a database by its URL, or by a user's own engine or session factory. Connects at the first transaction.

    A user's engine stays as it is and stays the user's to dispose. `durable=False` accepts commits that a power cut loses.
    `prefix` overrides the URL's. Raises SetupError.
    """
    if isinstance(source, str):
        return _open_url(read_url(source), clock=clock, durable=durable, prefix=prefix)
    factory, engine = _factory_of(source)
    dialect = _dialect(engine.dialect.name, engine.dialect.driver)
    place = replace(place_of(engine), prefix=checked_prefix(prefix or DEFAULT_PREFIX))
    database = _database(dialect.adopt(engine), dialect, place, clock=clock, durable=durable, own=False)
    database.sessions = factory
    return database


def place_of(source: Source) -> DatabaseAddress:
    return read_url(source) if isinstance(source, str) else DatabaseAddress(url=_factory_of(source)[1].url)


def pool_of(source: Source) -> Pool | None:
    """Return the connections of a user's own engine or session factory; a URL has none. Raises SetupError."""
    return None if isinstance(source, str) else _factory_of(source)[1].sync_engine.pool


def connection_limit(source: Source) -> int | None:
    """Return how many connections a source can have at once; None for no limit. A URL has none. Raises SetupError."""
    pool = pool_of(source)
    if not isinstance(pool, QueuePool) or pool._max_overflow < 0:  # noqa: SLF001 - the pool tells it in no other way
        return None
    return pool.size() + pool._max_overflow  # noqa: SLF001 - the same


def _factory_of(source: AsyncEngine | async_sessionmaker[AsyncSession]) -> tuple[async_sessionmaker[AsyncSession], AsyncEngine]:
    factory = source if isinstance(source, async_sessionmaker) else async_sessionmaker(source)
    engine = factory.kw.get("bind")
    if not isinstance(engine, AsyncEngine) or factory.kw.get("binds"):
        raise SetupError("the async_sessionmaker must be bound to one AsyncEngine: async_sessionmaker(engine)")
    return factory, engine


def _open_url(place: DatabaseAddress, *, clock: Clock, durable: bool, prefix: str) -> Database:
    dialect = dialect_of(place.url)
    named = replace(place, prefix=checked_prefix(prefix or place.prefix))
    engine = dialect.engine(place.url, timeout=place.timeout)
    return _database(engine, dialect, named, clock=clock, durable=durable, own=True)


def _database(
    engine: AsyncEngine, dialect: Dialect, place: DatabaseAddress, *, clock: Clock, durable: bool, own: bool
) -> Database:
    if place.schema is not None and not dialect.has_schemas:
        raise SetupError(f"schema={place.schema!r}: {dialect.name} has no schemas. Use ?prefix= instead")
    before = (*dialect.listener.before, guarding(dialect.has_ended, dialect.effects))
    look_at_statements(engine, dialect.listener._replace(before=before), own=own)
    mark_errors(engine)
    return Database(engine, dialect, place, clock=clock, durable=durable, own=own)


def dialect_of(url: URL) -> Dialect:
    return _dialect(*url.drivername.partition("+")[::2])


def _dialect(name: str, driver: str) -> Dialect:
    system = system_of(name)
    if system is None or system.dialect is None:
        known = ", ".join(scheme for scheme, each in systems().items() if each.dialect is not None)
        raise SetupError(f"no adapter for {name} databases: use {known}")
    dialect: Dialect = system.dialect(driver)
    return dialect


async def _drop_transaction(opening: asyncio.Future[DatabaseTransaction]) -> None:
    """End a transaction whose opener was cancelled; an opening that failed has nothing to end."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().end()
