"""One database transaction on a connection of its own, and the turns that writers take."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, RootTransaction, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly.sql.dialect import Dialect, Limit, State
from onceonly.sql.statement_effects import Effect
from onceonly.sql.translation import TurnNotHad


class Turns:
    """Writers of this process take turns, first come, first served, where the database has one writer at a time.

    SQLite itself lets waiting writers poll, and some of them starve.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lock = asyncio.Lock()

    async def take(self) -> Callable[[], None]:
        """Wait for a turn; returns the function that ends it. Raises TurnNotHad."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._lock.acquire()
        except TimeoutError as error:
            raise TurnNotHad(
                f"database is locked: another transaction of this process held the write lock for {self._timeout:g} s"
            ) from error
        return self._lock.release


_LASTING = Effect.LEAVES | Effect.SETS_SESSION

Linger = Callable[["DatabaseTransaction"], None]
_Result = TypeVar("_Result")


class DatabaseTransaction:
    """One open database transaction on a connection of its own. `dropping` has its `end` run in the background.

    With `linger` its connection is released in the background as well when it is committed: `linger` has `end` run soon.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        root: RootTransaction,
        *,
        dialect: Dialect,
        dropping: "Callable[[DatabaseTransaction], None]",
        end_turn: Callable[[], None],
        linger: Linger | None = None,
    ) -> None:
        self.connection = connection
        self.closing: Callable[[], None] = nothing
        """Called when the transaction has ended, in the greenlet, before the connection is released."""
        self.is_shared: Callable[[], bool] = _is_not_shared
        """Whether the thread of a handler may still use the connection; asked when the transaction is given up."""
        self._dialect = dialect
        self._dropping = dropping
        self._linger = linger
        self._is_committed = False
        self._root = root
        self._end_turn = end_turn
        self._is_over = False
        self._has_said_commit = False
        self._is_blocked = False
        self.effects = Effect(0)
        """What statements of handlers did beyond reading and writing rows."""

    @property
    def state(self) -> State:
        """Read the state: SQLAlchemy's account of it, and the driver's own. Costs no statement."""
        if self._root.connection.closed or self._root.connection.invalidated:
            return State.LOST
        if not self._root.is_active:
            return State.ABORTED
        return self._dialect.state(self._root.connection)

    @property
    def has_said_commit(self) -> bool:
        """Whether COMMIT may have been sent; while not, it is certain that nothing of it is committed."""
        return self._has_said_commit

    @property
    def driver(self) -> object:
        return self._root.connection.connection.driver_connection

    async def run_sync(self, function: Callable[[Connection], _Result]) -> _Result:
        """Call a function with the connection, in a greenlet. Raises what it raises."""
        return await self.connection.run_sync(function)

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows now, or let the commit insert them; see `Dialect.insert_last`."""
        self._dialect.insert_last(connection, table, rows)

    def note(self, effects: Effect) -> None:
        """Note what a handler's statements did. What outlives the transaction is undone after its end."""
        self.effects |= effects

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Make the database refuse its commit, unless `commit` asks; in the greenlet. Raises as `commit`.

        See `Dialect.block_commit` for `of_messages`.
        """
        self._is_blocked = self._dialect.blocks_commit
        self._dialect.block_commit(connection, of_messages=of_messages, isolated=isolated)

    async def commit(self, last: Callable[[Connection], None] | None = None, *, limit: Limit | None = None) -> None:
        """Do what is left in the greenlet, commit within the limit, and give the connection back.

        Raises what `last` raises, TooLate, and the driver's own errors; it must be dropped then.
        """

        def commit(connection: Connection) -> None:
            if last is not None:
                last(connection)
            self._commit(limit)

        await self.connection.run_sync(commit)
        self._is_over = True
        self._end_turn()
        if self._linger is not None:
            self._linger(self)

    def drop(self) -> None:
        """Return it up; awaits nothing. Harmless after a commit and when repeated."""
        if not self._is_over:
            self._is_over = True
            self._dropping(self)

    async def end(self) -> None:
        """Roll back and give the connection back; a connection that cannot be rolled back, or that is shared, is closed."""
        try:
            if self.is_shared():
                await self._discard()
                return
            await self.connection.run_sync(lambda _: self._close() if self._is_committed else self._roll_back())
        except Exception:  # noqa: BLE001 - whatever it is, this connection must not go back to the pool
            await self._discard()
        finally:
            self._end_turn()

    async def _discard(self) -> None:
        await self.connection.invalidate()
        await self.connection.run_sync(Connection.close)

    def _commit(self, limit: Limit | None) -> None:
        self._allow_commit()
        self._has_said_commit = True
        self._dialect.commit(self._root.connection, limit)
        self._root.commit()
        self._is_committed = True
        if self._linger is None:
            self._close()

    def _roll_back(self) -> None:
        if self._root.connection.closed:
            return  # cut off while it was released: the pool has closed it
        state = self.state
        if state is State.LOST or (state is State.ENDED and not self._has_said_commit):
            self._root.connection.invalidate()  # it is gone or was changed, so no other transaction may use it
        else:
            if state is not State.ENDED:
                self._dialect.roll_back(self._root.connection)
            self._root.close()  # also after a COMMIT that failed: only then does the pool reset the connection
            self._allow_commit()
        self._close()

    def _allow_commit(self) -> None:
        if self._is_blocked and self.state is not State.LOST:
            self._dialect.allow_commit(self._root.connection)

    def _close(self) -> None:
        self.closing()
        if self.effects & _LASTING and not self._root.connection.invalidated:
            leaves = self.effects & Effect.LEAVES or not self._dialect.reset_session(self._root.connection)
            if leaves:
                self._root.connection.invalidate()
        Connection.close(self._root.connection)  # a unit's connection is guarded: its own `close` refuses


def _is_not_shared() -> bool:
    return False


def nothing() -> None:
    """Do nothing."""
