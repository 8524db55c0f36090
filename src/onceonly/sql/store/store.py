"""The store in a SQL database: claims or tokens, records, entities, next to the business data (protocols, sections 3, 5)."""

from collections.abc import Mapping, Sequence
from copy import copy

from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from onceonly.config.deduplication import ClaimMode
from onceonly.model.errors import ConflictError, LockTimeout
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import BUCKETS, Undecidable
from onceonly.model.transaction import longest_commit
from onceonly.ports.environment import Clock
from onceonly.ports.measurements import AgedCount
from onceonly.ports.store import BeginResult, UndecidableMessage
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose, checked_isolation
from onceonly.sql.store.claims import OtherSlice, claim, with_fingerprints
from onceonly.sql.store.entities import Loaded, load_all
from onceonly.sql.store.leases import RecordLeases
from onceonly.sql.store.message_journal import SqlMessageJournal
from onceonly.sql.store.rings import RingRoutes, find_rings
from onceonly.sql.store.shadow import Outcomes, ShadowOutcome, ShadowReport, claim_all
from onceonly.sql.store.statements import OldRecords, StoreScope, bury, delete_keys, read_undispatched, records_of
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import RETENTION_MS, read_held, read_routes, time_in
from onceonly.sql.store.tokens import consume
from onceonly.sql.store.unit import OwnConnections, Shadowed, SqlUnit, UnitOpener


class SqlStore:
    """The store of one endpoint. `claim_mode` describes what it knows messages by.

    `isolation` is the level of its units; without it the URL's, without that the database's own, but with tokens one at which
    MariaDB does not lock what lies between them. Raises SetupError.
    """

    def __init__(  # noqa: PLR0913 - what an endpoint sets of its store
        self,
        database: Database,
        endpoint: str,
        *,
        claim_mode: ClaimMode = ClaimMode.HISTORY,
        isolation: str | None = None,
        retention: int = RETENTION_MS,
        clock: Clock | None = None,
        journal: SqlMessageJournal | None = None,
    ) -> None:
        self._database = database
        own = database.dialect.gapless if claim_mode is ClaimMode.TOKENS else database.dialect.default_isolation
        self._isolation = checked_isolation(database.dialect, isolation) or database.isolation or own
        self._isolations: Mapping[str, str] = {}
        self._endpoint = endpoint
        self._claim_mode = claim_mode
        self._tables = tables(database.prefix, database.schema)
        self._scope = StoreScope(database, self._tables, endpoint, claim_mode, clock=clock, journal=journal)
        self._retention = retention
        self._leases = RecordLeases(self._scope)
        self._opener: UnitOpener = OwnConnections(database)
        self.shadow = ShadowReport(endpoint) if claim_mode is ClaimMode.SHADOW else None
        """What was handled in shadow mode, to be stored."""

    def working_on(self, opener: UnitOpener) -> "SqlStore":
        """Return a store of the same tables, whose units work in the transactions of another opener."""
        other = copy(self)
        other._opener = opener  # noqa: SLF001 - of this class
        return other

    def isolate(self, isolations: Mapping[str, str]) -> None:
        """Set another level for units of one message, by the type of the message. Raises SetupError."""
        self._isolations = {name: checked_isolation(self._database.dialect, level) or "" for name, level in isolations.items()}

    async def prepare(self) -> RingRoutes:
        """Find out in which rings this endpoint claims, or decide it. Raises SetupError, CommitFailed, OutcomeUnknown."""
        rings = await read_routes(self._database, self._endpoint, self._retention, clock=self._scope.clock)
        self._scope = self._scope._replace(rings=rings)
        return rings

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> SqlUnit:
        """Begin, and claim all messages: in one statement for each bucket, and one for all others. Then load their entities.

        Raises PermanentFailure for an entity's key that is too long; for the rest see the port.
        """
        if self._scope.journal is not None:
            await self._scope.journal.prepare()
        if self._claim_mode.has_history and self._scope.rings is None and messages:
            await self.prepare()
        asked, undecidable, outside = messages, tuple[UndecidableMessage, ...](), frozenset[Identity]()
        refused: Outcomes = {}
        for _ in range(2 * BUCKETS):
            try:
                return await self._begin(asked, undecidable, outside, refused, isolated=isolated)
            except OtherSlice as other:  # rolled back: no unit commits a label
                shut = await self._check_bucket(other)
                if self._claim_mode is ClaimMode.SHADOW:
                    outside |= {each.message.identity for each in shut}
                    refused = {**refused, **_refused(shut)}
                    continue
                outside |= {each.message.identity for each in shut if each.is_wanted_anyway}
                undecidable += tuple(each for each in shut if not each.is_wanted_anyway)
                gone = {each.message.identity for each in undecidable}
                asked = [message for message in asked if message.identity not in gone]
        raise ConflictError(f"gave up after {2 * BUCKETS} attempts: time buckets kept rotating")

    async def _check_bucket(self, other: OtherSlice) -> tuple[UndecidableMessage, ...]:
        """Look what a bucket holds instead of these messages' slice; none of them is undecidable if it holds that by now.

        None is either where an operator has changed the retention meanwhile: then they are claimed in another ring. The rings
        are read after the label, because a ring that is closed between the two may get a label that refuses them.
        """
        async with self._database.reading() as connection:
            held = await connection.run_sync(read_held, other.bucket)
            now = await connection.run_sync(time_in, self._scope.clock)
        found = (await find_rings(self._database)).of(self._endpoint)
        if found is not None and found != self._scope.rings:
            self._scope = self._scope._replace(rings=found)
        ring = None if found is None else found.ring(other.messages[0].instant)
        if ring is None or ring.bucket(other.start) is not other.bucket:
            return ()
        reason = ring.bucketing.undecidable_reason(other.start, held, now)
        return tuple(UndecidableMessage(message, reason) for message in other.messages) if reason is not None else ()

    async def _begin(
        self,
        messages: Sequence[Message],
        undecidable: tuple[UndecidableMessage, ...],
        outside: frozenset[Identity],
        refused: Outcomes,
        *,
        isolated: bool,
    ) -> SqlUnit:
        scope = self._scope._replace(outside=outside) if outside else self._scope
        # entities are locked here, before any handler runs: workers that change the same one wait for each other
        is_brief = len(messages) > 1 and not any(message.unit for message in messages)
        isolation = self._isolations.get(messages[0].type) if self._isolations and len(messages) == 1 else None
        with self._database.translate(locked=ConflictError):
            purpose = Purpose.BATCH if is_brief else Purpose.UNIT
            transaction = await self._opener.open(purpose, isolation or self._isolation)
        try:

            def prepare(connection: Connection) -> tuple[BeginResult, Loaded, Outcomes]:
                found, outcomes = self._claim(connection, scope, messages)
                if undecidable:
                    found = replace(found, undecidable=undecidable)
                loaded = load_all(connection, scope, found.new)
                transaction.block_commit(connection, of_messages=True, isolated=isolated)
                return found, loaded, outcomes

            with self._database.translate(locked=ConflictError):
                found, loaded, outcomes = await transaction.run_sync(prepare)
            shadow = None if self.shadow is None else Shadowed(self.shadow, outcomes, refused)
            return SqlUnit(scope, transaction, found, loaded=loaded, isolated=isolated, opener=self._opener, shadow=shadow)
        except LockTimeout as error:  # a claim's or an entity's: no handler has met it
            transaction.drop()
            raise ConflictError(str(error)) from error.__cause__
        except BaseException:
            transaction.drop()
            raise

    def _claim(self, connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> tuple[BeginResult, Outcomes]:
        if self._claim_mode is ClaimMode.NOTHING or not messages:
            return BeginResult(new=tuple(messages)), {}
        if self._claim_mode is ClaimMode.TOKENS:
            return consume(connection, scope, messages), {}
        if self._claim_mode is ClaimMode.SHADOW:
            return claim_all(connection, scope, messages)
        return claim(connection, scope, messages), {}

    def keeps(self, record: Record) -> bool:
        """Return whether there are effects to forget, or a claim that goes with them."""
        if self._claim_mode is ClaimMode.UNTIL_FORGOTTEN:
            return True
        return self._claim_mode is not ClaimMode.NOTHING and record.is_pending

    async def forget(self, records: Sequence[Record]) -> None:
        """Drop records, and claims where they are not history; one statement for ten thousand.

        Raises CommitFailed, OutcomeUnknown.
        """
        if self._claim_mode is ClaimMode.NOTHING or not records:
            return
        gone = [self._tables.records]
        if self._claim_mode is ClaimMode.UNTIL_FORGOTTEN:
            gone.append(self._tables.claims)
        keys = sorted(self._key_of(record) for record in records)
        async with self._database.autocommitting() as connection:
            await connection.run_sync(delete_keys, self._database.dialect, keys, *gone)

    def _key_of(self, record: Record) -> bytes:
        """Return under which key a record is stored. An attempt may be another endpoint's, whose control messages come here."""
        is_attempt = longest_commit(record.unit) is not None
        return claim_key(record.identity.source if is_attempt else self._endpoint, record.identity)

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        async with self._database.reading() as connection:
            return await connection.run_sync(read_undispatched, self._tables, self._endpoint, OldRecords(older_than, limit))

    async def measure_records(self, limit: int) -> AgedCount:
        """Count the records of this endpoint up to a limit, by the index on their age; see `ports.measurements`."""
        records = self._tables.records.c
        some = select(records.stored_at).where(records.endpoint == self._endpoint).limit(limit).subquery()
        first = select(func.min(records.stored_at)).where(records.endpoint == self._endpoint)
        async with self._database.reading() as connection:
            count = await connection.scalar(select(func.count()).select_from(some)) or 0
            return AgedCount(count=count, oldest=await connection.scalar(first) or 0)

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Take records in the order of their keys; looks before where taking is a lock that others wait for. See the port."""
        asked = self._leases.asked(older_than, limit, lease=lease, after=after)
        if self._database.dialect.single_writer:
            async with self._database.reading() as connection:
                if not await connection.run_sync(self._leases.is_waiting, asked):
                    return ()
        async with self._database.writing() as connection:
            taken = await connection.run_sync(self._leases.take, asked)
            if taken and self._claim_mode is ClaimMode.UNTIL_FORGOTTEN:  # what knows them afterwards wants their fingerprints
                return await connection.run_sync(with_fingerprints, self._scope, taken)
            return taken

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        if not identities:
            return ()
        async with self._database.reading() as connection:
            return await connection.run_sync(records_of, self._scope, identities)

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Return a record, after waiting for the unit that has claimed the message, if any; see the port.

        A claim in the ring depends on the message's instant, and a token is the message's own. Without the message the store
        cannot wait for these, and raises ConflictError.
        """
        if not self._claim_mode.decides:
            return None  # what is claimed and recorded, if anything is, does not keep the message from being handled
        longest = longest_commit(unit)
        if longest is not None:
            async with self._database.autocommitting() as connection:
                with self._database.translate(locked=ConflictError):
                    return await connection.run_sync(bury, self._scope, identity, longest)
        if message is None and (found := await self.find([identity])):
            return found[0]
        if message is None and self._claim_mode is not ClaimMode.UNTIL_FORGOTTEN:
            raise ConflictError(f"message {identity.id!r} may be in progress, and the place of its claim is unknown")
        claimed = message or Message(source=identity.source, id=identity.id, type="", body=b"")
        probe = await self.begin([replace(claimed, unit="")])  # without its entity, which is not needed
        try:  # no other unit has the claim any more, so what is read now is final
            found = await probe.find([identity])
        finally:
            probe.abandon()
        done = [Record(each.identity) for each in probe.found.done]
        return next(iter((*found, *done)), None)

    def unit_key(self, message: Message) -> str:
        return ""


def _refused(shut: Sequence[UndecidableMessage]) -> Outcomes:
    """Return the messages that would be dead letters. One whose bucket is late would only wait."""
    late = Undecidable.SLOT_NOT_READY
    return {each.message.identity: ShadowOutcome.UNDECIDABLE for each in shut if each.reason is not late}
