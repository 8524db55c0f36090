"""What a SQL store knows about messages, read by primary keys in one snapshot."""

from collections.abc import Sequence

from msgspec.structs import replace
from sqlalchemy import Connection, Select, select

from onceonly.config.deduplication import ClaimMode
from onceonly.model.artifact import Reservation
from onceonly.model.identity import Identity, claim_key, instant_in
from onceonly.model.message import Message
from onceonly.model.ring import Bucketing, instant_of, ring_key
from onceonly.model.token import Token
from onceonly.ports.environment import Clock
from onceonly.ports.lookup import ClaimState, Knowledge
from onceonly.sql.database import Database
from onceonly.sql.store.bucketing import NO_BODY, find_bucketing, read_held, time_in
from onceonly.sql.store.claims import ClaimGroup, places
from onceonly.sql.store.portions import chunks
from onceonly.sql.store.register import SqlRegister
from onceonly.sql.store.scope import StoreScope
from onceonly.sql.store.statements import read_records
from onceonly.sql.store.tables import tables
from onceonly.sql.store.tokens import token_key

RANGE_LIMIT = 100_000
"""Claims that one search by time reads."""
_INSTANT_BYTES = 6
_HASH_BYTES = 10


class SqlLookup:
    """Looks up messages of one endpoint in a database. Implements the Lookup port."""

    def __init__(self, database: Database, endpoint: str, *, claim_mode: ClaimMode, clock: Clock | None = None) -> None:
        self._database = database
        self._scope = StoreScope(database, tables(database.prefix, database.schema), endpoint, claim_mode, clock=clock)
        self._register = SqlRegister(database, endpoint)

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        """Read claims or tokens, then records; see the port."""
        scope = await self._cut()
        async with self._database.reading() as connection:
            return await connection.run_sync(_know, scope, messages)

    async def near(self, identity: Identity, begin: int, end: int) -> Knowledge:
        """Read a range of one or two buckets; see the port."""
        scope = await self._cut()
        if scope.bucketing is None or scope.claim_mode is not ClaimMode.HISTORY:
            return Knowledge(claim=ClaimState.UNKNOWN if scope.claim_mode is not ClaimMode.HISTORY else ClaimState.NO_CLAIM)
        async with self._database.reading() as connection:
            found = await connection.run_sync(_near, scope, identity, (begin, end))
            records = await connection.run_sync(
                read_records, scope.tables, self._database.dialect, {claim_key(scope.endpoint, identity): identity}
            )
        return replace(found, record=records[0] if records else None)

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        """Read the register; see the port."""
        return await self._register.rows([identity])

    async def _cut(self) -> StoreScope:
        """Return the scope with the division of time. It may have been decided since the last call."""
        if self._scope.bucketing is None and self._scope.claim_mode is ClaimMode.HISTORY:
            self._scope = self._scope._replace(bucketing=await find_bucketing(self._database))
        return self._scope


def _know(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
    found = _by_mode(connection, scope, messages)
    keys = {claim_key(scope.endpoint, message.identity): message.identity for message in messages}
    records = {record.identity: record for record in read_records(connection, scope.tables, scope.database.dialect, keys)}
    return tuple(replace(found[message.identity], record=records.get(message.identity)) for message in messages)


def _by_mode(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> dict[Identity, Knowledge]:
    match scope.claim_mode:
        case ClaimMode.NOTHING:
            return {message.identity: Knowledge(claim=ClaimState.UNKNOWN) for message in messages}
        case ClaimMode.TOKENS:
            return _by_tokens(connection, scope, messages)
        case ClaimMode.UNTIL_FORGOTTEN:
            found = _outside(connection, scope, messages)
            return {m.identity: found.get(m.identity, Knowledge(claim=ClaimState.UNKNOWN)) for m in messages}
        case _:
            return _by_claims(connection, scope, messages)


def _by_claims(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> dict[Identity, Knowledge]:
    found = {message.identity: Knowledge(claim=ClaimState.NO_CLAIM) for message in messages}
    former = [replace(m, id=m.id) for m in messages if m.former_instant]
    for place in places(scope, messages):
        found |= _in_place(connection, scope, place)
    for place in _former(scope, former):
        claimed = _in_place(connection, scope, place)
        found |= {identity: each for identity, each in claimed.items() if each.claim is ClaimState.HANDLED}
    # a message that was retried although its bucket refused it is claimed outside of the ring
    return found | _outside(connection, scope, [m for m in messages if found[m.identity].claim is not ClaimState.HANDLED])


def _former(scope: StoreScope, messages: Sequence[Message]) -> list[ClaimGroup]:
    """Return where an earlier version claimed messages whose instant is in a header."""
    bucketing, groups = scope.bucketing, list[ClaimGroup]()
    for message in messages:
        instant = message.former_instant
        if bucketing is not None and bucketing.has(instant):
            table = scope.tables.buckets[bucketing.bucket(instant)]
            key = ring_key(scope.endpoint, message.identity, instant)
            groups.append(ClaimGroup(table, bucketing.start(instant), {key: message}))
    return groups


def _in_place(connection: Connection, scope: StoreScope, place: ClaimGroup) -> dict[Identity, Knowledge]:
    if place.start is not None:
        held = read_held(connection, place.table)
        if held is None or held < place.start:
            return {message.identity: Knowledge(claim=ClaimState.NO_CLAIM) for message in place.messages.values()}
        if held > place.start:
            return {message.identity: Knowledge(claim=ClaimState.TOO_OLD) for message in place.messages.values()}
    claims = place.table.c
    query = select(claims.key, claims.fingerprint).where(scope.database.dialect.among(claims.key, "keys"))
    rows = [row for some in chunks([*place.messages]) for row in connection.execute(query, {"keys": some})]
    claimed = {row.key: row.fingerprint for row in rows}
    return {
        message.identity: Knowledge(
            claim=ClaimState.HANDLED, fingerprint=claimed[key], instant=instant_of(key) if place.start is not None else 0
        )
        if key in claimed
        else Knowledge(claim=ClaimState.NO_CLAIM)
        for key, message in place.messages.items()
    }


def _outside(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> dict[Identity, Knowledge]:
    """Return the messages that have a claim outside of the ring."""
    if not messages:
        return {}
    keys = {claim_key(scope.endpoint, message.identity): message for message in messages}
    found = _in_place(connection, scope, ClaimGroup(scope.tables.claims, None, keys))
    return {identity: each for identity, each in found.items() if each.claim is ClaimState.HANDLED}


def _by_tokens(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> dict[Identity, Knowledge]:
    """A live token proves that the message was not handled. A message whose token is gone was handled, or given up."""
    tokens = scope.tables.tokens.c
    keys = {message.identity: token_key(Token(message.token, scope.endpoint)) for message in messages if message.token}
    query = select(tokens.key).where(scope.database.dialect.among(tokens.key, "keys"))
    live = {key for some in chunks(sorted(keys.values())) for key in connection.scalars(query, {"keys": some})}

    def state(message: Message) -> ClaimState:
        if message.identity not in keys:
            return ClaimState.UNKNOWN
        return ClaimState.NO_CLAIM if keys[message.identity] in live else ClaimState.HANDLED

    return {message.identity: Knowledge(claim=state(message)) for message in messages}


def _near(connection: Connection, scope: StoreScope, identity: Identity, between: tuple[int, int]) -> Knowledge:
    bucketing = scope.bucketing
    assert bucketing is not None  # noqa: S101 - checked by the caller
    if instant_in(identity) is not None:  # then the claim is at that instant and nowhere else
        return _by_claims(connection, scope, [Message(source=identity.source, id=identity.id, type="", body=b"")])[identity]
    begin, end = between
    left, found = RANGE_LIMIT, ClaimState.NO_CLAIM
    for start in range(bucketing.start(max(begin, 0)), end + 1, bucketing.width):
        bucket = scope.tables.buckets[bucketing.bucket(start)]
        held = read_held(connection, bucket)
        if held != start:
            if held is not None and held > start and bucketing.has(end):
                found = ClaimState.TOO_OLD
            continue
        rows = connection.execute(claims_between(scope, bucketing, (max(begin, start), end), left)).all()
        left -= len(rows)
        for row in rows:
            if row.fingerprint != NO_BODY and row.key == ring_key(scope.endpoint, identity, instant_of(row.key)):
                return Knowledge(claim=ClaimState.HANDLED, fingerprint=row.fingerprint, instant=instant_of(row.key))
        if left <= 0:
            return Knowledge(claim=ClaimState.UNDETERMINED)
    if begin < time_in(connection, scope.clock) - bucketing.retention:
        found = ClaimState.TOO_OLD
    return Knowledge(claim=found)


def claims_between(
    scope: StoreScope, bucketing: Bucketing, between: tuple[int, int], limit: int
) -> Select[tuple[bytes, bytes]]:
    """Return the query for the claims of a range of instants that is in one bucket."""
    begin, end = between
    claims = scope.tables.buckets[bucketing.bucket(begin)].c
    low = begin.to_bytes(_INSTANT_BYTES, "big") + bytes(_HASH_BYTES)
    high = end.to_bytes(_INSTANT_BYTES, "big") + b"\xff" * _HASH_BYTES
    query: Select[tuple[bytes, bytes]] = select(claims.key, claims.fingerprint)
    return query.where(claims.key >= low, claims.key <= high).order_by(claims.key).limit(limit)
