"""The store in a SQL database: one table of claims, one of records, beside the business data (protocols, section 3)."""

from collections.abc import Sequence

from sqlalchemy import Connection

from onceonly.drivers.dialect import Purpose, checked_isolation
from onceonly.drivers.sql import Database
from onceonly.model.errors import Conflict
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.stores.sql.statements import Found, Old, claim, delete_keys, read_records, read_undispatched
from onceonly.stores.sql.tables import tables
from onceonly.stores.sql.unit import Scope, SqlUnit


class SqlStore:
    """The store of one endpoint. `history=False` keeps no claims and no records: honest at-least-once, for control runs.

    `isolation` is the level of its units; without it the URL's, without that the database's own. Raises SetupError.
    """

    def __init__(self, database: Database, endpoint: str, *, history: bool = True, isolation: str | None = None) -> None:
        self._database = database
        self._isolation = checked_isolation(database.dialect, isolation) or database.isolation
        self._endpoint = endpoint
        self._history = history
        self._tables = tables(database.prefix, database.schema)
        self._scope = Scope(database, self._tables, endpoint, history)

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> SqlUnit:
        """Begin, and claim all messages in one statement; see the port."""
        with self._database.translate(locked=Conflict):
            transaction = await self._database.open(Purpose.UNIT, isolation=self._isolation)
        try:

            def prepare(connection: Connection) -> Found:
                found = self._claim(connection, messages)
                transaction.hold(connection)
                return found

            with self._database.translate(locked=Conflict):
                found = await transaction.connection.run_sync(prepare)
            return SqlUnit(self._scope, transaction, found, isolated=isolated)
        except BaseException:
            transaction.drop()
            raise

    def _claim(self, connection: Connection, messages: Sequence[Message]) -> Found:
        if not (self._history and messages):
            return Found(new=tuple(messages))
        by_key = {claim_key(self._endpoint, message.identity): message for message in messages}
        return claim(connection, self._tables, self._database.dialect, by_key)

    def keeps(self, record: Record) -> bool:
        """Tell whether there are effects to forget; the claim stays."""
        return self._history and bool(record.effects)

    async def forget(self, records: Sequence[Record]) -> None:
        """Drop records, one statement for ten thousand. Raises Failed, Unknown."""
        if not self._history or not records:
            return
        keys = sorted(claim_key(self._endpoint, record.identity) for record in records)
        async with self._database.autocommitting() as connection:
            await connection.run_sync(delete_keys, self._tables.records, self._database.dialect, keys)

    async def undispatched(self, older_than: int, limit: int, *, after: Identity | None = None) -> tuple[Record, ...]:
        """List records that wait, oldest first; see the port."""
        if not self._history:
            return ()
        old = Old(older_than, limit)

        def read(connection: Connection) -> tuple[Record, ...]:
            return read_undispatched(connection, self._tables, self._endpoint, old=old, after=after)

        async with self._database.reading() as connection:
            return await connection.run_sync(read)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Give records, one statement for ten thousand; see the port."""
        if not self._history or not identities:
            return ()
        by_key = {claim_key(self._endpoint, identity): identity for identity in identities}
        async with self._database.reading() as connection:
            return await connection.run_sync(read_records, self._tables, self._database.dialect, by_key)

    async def fence(self, unit: str, identity: Identity) -> Record | None:
        """Give a record, after waiting for whoever has claimed the message; see the port."""
        found = await self.find([identity])
        if found or not self._history:
            return found[0] if found else None
        probe = await self.begin([Message(source=identity.source, id=identity.id, type="", body=b"")])
        probe.abandon()  # nobody else had the claim, or has it any more
        return next(iter(await self.find([identity])), None)

    def unit_key(self, message: Message) -> str:
        """Let all messages share a unit."""
        return ""
