"""The store in a SQL database: claims or tokens, records, entities, beside the business data (protocols, sections 3, 5)."""

from collections.abc import Sequence

from sqlalchemy import Connection

from onceonly.drivers.dialect import Purpose, checked_isolation
from onceonly.drivers.sql import Database
from onceonly.model.errors import Conflict
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import SLOTS
from onceonly.ports.store import Barred
from onceonly.ports.surroundings import Clock
from onceonly.stores.sql.claims import OtherSlice, claim
from onceonly.stores.sql.entities import Loaded, load_all
from onceonly.stores.sql.keeping import Keeping
from onceonly.stores.sql.scope import Scope
from onceonly.stores.sql.slicing import RETENTION, read_held, read_slicing, time_in
from onceonly.stores.sql.statements import Found, Old, delete_keys, read_records, read_undispatched
from onceonly.stores.sql.tables import tables
from onceonly.stores.sql.taking import Taking
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
        retention: int = RETENTION,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        own = database.dialect.gapless if keeping is Keeping.TOKENS else None
        self._isolation = checked_isolation(database.dialect, isolation) or database.isolation or own
        self._endpoint = endpoint
        self._keeping = keeping
        self._tables = tables(database.prefix, database.schema)
        self._scope = Scope(database, self._tables, endpoint, keeping, clock=clock)
        self._retention = retention
        self._taking = Taking(self._scope)

    async def prepare(self) -> None:
        """Find out how time is cut in this database, or decide it. Raises SetupError, Failed, Unknown."""
        slicing = await read_slicing(self._database, self._retention, clock=self._scope.clock)
        self._scope = self._scope._replace(slicing=slicing)

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> SqlUnit:
        """Begin, and claim all messages: in one statement for each slot, and one for all others. Then load their entities.

        Raises Unusable for an entity's key that is too long; for the rest see the port.
        """
        if self._keeping is Keeping.HISTORY and self._scope.slicing is None and any(message.instant for message in messages):
            await self.prepare()
        asked, barred = messages, tuple[Barred, ...]()
        for _ in range(2 * SLOTS):
            try:
                return await self._begin(asked, barred, isolated=isolated)
            except OtherSlice as other:  # rolled back: no unit commits a label
                shut = await self._judge(other)
                barred += shut
                gone = {each.message.identity for each in shut}
                asked = [message for message in asked if message.identity not in gone]
        raise Conflict("slots of the ring were recycled all the time")

    async def _judge(self, other: OtherSlice) -> tuple[Barred, ...]:
        """Look what a slot holds instead of these messages' slice; none of them is barred if it holds that by now."""
        slicing = self._scope.slicing
        async with self._database.reading() as connection:
            held = await connection.run_sync(read_held, other.slot)
            now = await connection.run_sync(time_in, self._scope.clock)
        judged = ((message, slicing and slicing.judge(message.instant, held, now)) for message in other.messages)
        return tuple(Barred(message, bar) for message, bar in judged if bar is not None)

    async def _begin(self, messages: Sequence[Message], barred: tuple[Barred, ...], *, isolated: bool) -> SqlUnit:
        with self._database.translate(locked=Conflict):
            transaction = await self._database.open(Purpose.UNIT, isolation=self._isolation)
        try:

            def prepare(connection: Connection) -> tuple[Found, Loaded]:
                found = self._claim(connection, messages)._replace(barred=barred)
                loaded = load_all(connection, self._scope, found.new)
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
        return claim(connection, self._scope, messages)

    def keeps(self, record: Record) -> bool:
        """Tell whether there are effects to forget, or a claim that goes with them."""
        if self._keeping is Keeping.UNTIL_FORGOTTEN:
            return True
        return self._keeping is not Keeping.NOTHING and record.owes

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

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List records that wait, oldest first; see the port."""
        if self._keeping is Keeping.NOTHING:
            return ()
        async with self._database.reading() as connection:
            return await connection.run_sync(read_undispatched, self._tables, self._endpoint, Old(older_than, limit))

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Take records in the order of their keys; looks before where taking is a lock that others wait for. See the port."""
        if self._keeping is Keeping.NOTHING:
            return ()
        asked = self._taking.asked(older_than, limit, lease=lease, after=after)
        if self._database.dialect.single_writer:
            async with self._database.reading() as connection:
                if not await connection.run_sync(self._taking.is_waiting, asked):
                    return ()
        async with self._database.writing() as connection:
            return await connection.run_sync(self._taking.take, asked)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Give records, one statement for ten thousand; see the port."""
        if self._keeping is Keeping.NOTHING or not identities:
            return ()
        by_key = {claim_key(self._endpoint, identity): identity for identity in identities}
        async with self._database.reading() as connection:
            return await connection.run_sync(read_records, self._tables, self._database.dialect, by_key)

    async def fence(self, unit: str, identity: Identity) -> Record | None:
        """Give a record, after waiting for whoever has claimed the message; see the port.

        With tokens nobody can be waited for, nor with a ring: which token or which instant was the message's, only the message
        knows. So without a record it raises Conflict.
        """
        found = await self.find([identity])
        if found or self._keeping is Keeping.NOTHING:
            return found[0] if found else None
        if self._keeping is not Keeping.UNTIL_FORGOTTEN:
            raise Conflict(f"an attempt at message {identity.id!r} may be under way: where it is claimed is not known here")
        probe = await self.begin([Message(source=identity.source, id=identity.id, type="", body=b"")])
        probe.abandon()  # nobody else had the claim, or has it any more
        return next(iter(await self.find([identity])), None)

    def unit_key(self, message: Message) -> str:
        """Let all messages share a unit."""
        return ""
