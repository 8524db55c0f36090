"""The store in a SQL database: claims or tokens, records, entities, beside the business data (protocols, sections 3, 5)."""

from collections.abc import Sequence

from sqlalchemy import Connection

from onceonly.drivers.dialect import Purpose, checked_isolation
from onceonly.drivers.sql import Database
from onceonly.model.errors import Conflict
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.stores.sql.entities import Loaded, load
from onceonly.stores.sql.keeping import Keeping
from onceonly.stores.sql.scope import Scope
from onceonly.stores.sql.statements import Found, Old, claim, delete_keys, read_records, read_undispatched
from onceonly.stores.sql.tables import tables
from onceonly.stores.sql.tokens import consume
from onceonly.stores.sql.unit import SqlUnit


class SqlStore:
    """The store of one endpoint. `keeping` says what it knows messages by.

    `isolation` is the level of its units; without it the URL's, without that the database's own, but with tokens one at which
    MariaDB does not lock what lies between them. Raises SetupError.
    """

    def __init__(
        self,
        database: Database,
        endpoint: str,
        *,
        keeping: Keeping = Keeping.HISTORY,
        isolation: str | None = None,
    ) -> None:
        self._database = database
        own = database.dialect.gapless if keeping is Keeping.TOKENS else None
        self._isolation = checked_isolation(database.dialect, isolation) or database.isolation or own
        self._endpoint = endpoint
        self._keeping = keeping
        self._tables = tables(database.prefix, database.schema)
        self._scope = Scope(database, self._tables, endpoint, keeping)

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> SqlUnit:
        """Begin, and claim all messages in one statement, then load their entities in one; see the port.

        Raises CommitRefused for an entity's key that is too long.
        """
        with self._database.translate(locked=Conflict):
            transaction = await self._database.open(Purpose.UNIT, isolation=self._isolation)
        try:

            def prepare(connection: Connection) -> tuple[Found, Loaded]:
                found = self._claim(connection, messages)
                loaded = load(connection, self._scope, found.new)
                transaction.hold(connection)
                return found, loaded

            with self._database.translate(locked=Conflict):
                found, loaded = await transaction.connection.run_sync(prepare)
            return SqlUnit(self._scope, transaction, found, loaded=loaded, isolated=isolated)
        except BaseException:
            transaction.drop()
            raise

    def _claim(self, connection: Connection, messages: Sequence[Message]) -> Found:
        if self._keeping is Keeping.NOTHING or not messages:
            return Found(new=tuple(messages))
        if self._keeping is Keeping.TOKENS:
            return consume(connection, self._scope, messages)
        by_key = {claim_key(self._endpoint, message.identity): message for message in messages}
        return claim(connection, self._tables, self._database.dialect, by_key)

    def keeps(self, record: Record) -> bool:
        """Tell whether there are effects to forget, or a claim that goes with them."""
        if self._keeping is Keeping.UNTIL_FORGOTTEN:
            return True
        return self._keeping is not Keeping.NOTHING and bool(record.effects)

    async def forget(self, records: Sequence[Record]) -> None:
        """Drop records, and claims where they are no history; one statement for ten thousand. Raises Failed, Unknown."""
        if self._keeping is Keeping.NOTHING or not records:
            return
        gone = [self._tables.records]
        if self._keeping is Keeping.UNTIL_FORGOTTEN:
            gone.append(self._tables.claims)
        keys = sorted(claim_key(self._endpoint, record.identity) for record in records)
        async with self._database.autocommitting() as connection:
            await connection.run_sync(delete_keys, self._database.dialect, keys, *gone)

    async def undispatched(self, older_than: int, limit: int, *, after: Identity | None = None) -> tuple[Record, ...]:
        """List records that wait, oldest first; see the port."""
        if self._keeping is Keeping.NOTHING:
            return ()
        old = Old(older_than, limit)

        def read(connection: Connection) -> tuple[Record, ...]:
            return read_undispatched(connection, self._tables, self._endpoint, old=old, after=after)

        async with self._database.reading() as connection:
            return await connection.run_sync(read)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Give records, one statement for ten thousand; see the port."""
        if self._keeping is Keeping.NOTHING or not identities:
            return ()
        by_key = {claim_key(self._endpoint, identity): identity for identity in identities}
        async with self._database.reading() as connection:
            return await connection.run_sync(read_records, self._tables, self._database.dialect, by_key)

    async def fence(self, unit: str, identity: Identity) -> Record | None:
        """Give a record, after waiting for whoever has claimed the message; see the port.

        With tokens nobody can be waited for: which token was the message's, only the message knows. So without a record it
        raises Conflict.
        """
        found = await self.find([identity])
        if found or self._keeping is Keeping.NOTHING:
            return found[0] if found else None
        if self._keeping is Keeping.TOKENS:
            raise Conflict(f"an attempt at message {identity.id!r} may be under way: its token is not known here")
        probe = await self.begin([Message(source=identity.source, id=identity.id, type="", body=b"")])
        probe.abandon()  # nobody else had the claim, or has it any more
        return next(iter(await self.find([identity])), None)

    def unit_key(self, message: Message) -> str:
        """Let all messages share a unit."""
        return ""
