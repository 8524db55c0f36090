"""What a SQL store knows about messages, read by primary keys in one snapshot."""

from collections.abc import Sequence

from msgspec.structs import replace
from sqlalchemy import Connection, select

from onceonly.config.deduplication import ClaimMode
from onceonly.model.artifact import Reservation
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.ring import instant_of
from onceonly.model.token import Token
from onceonly.ports.environment import Clock
from onceonly.ports.operators import ClaimState, Knowledge
from onceonly.sql.database import Database
from onceonly.sql.store.claims import ClaimGroup, places
from onceonly.sql.store.register import SqlRegister
from onceonly.sql.store.rings import find_rings
from onceonly.sql.store.statements import StoreScope, chunks, read_records
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import read_held
from onceonly.sql.store.tokens import token_key


class SqlLookup:
    """Looks up messages of one endpoint in a database. Implements the Lookup port."""

    def __init__(self, database: Database, endpoint: str, *, claim_mode: ClaimMode, clock: Clock | None = None) -> None:
        self._database = database
        self._scope = StoreScope(database, tables(database.prefix, database.schema), endpoint, claim_mode, clock=clock)
        self._register = SqlRegister(database, endpoint)

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        scope = await self._scope_with_buckets()
        async with self._database.reading() as connection:
            return await connection.run_sync(_know, scope, messages)

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        return await self._register.rows([identity])

    async def _scope_with_buckets(self) -> StoreScope:
        """Return the scope with the rings. They may have been decided or changed since the last call."""
        if not self._scope.claim_mode.has_history:
            return self._scope
        return self._scope._replace(rings=(await find_rings(self._database)).of(self._scope.endpoint))


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
    for place in places(scope, messages):
        found |= _find_claims(connection, scope, place)
    # a message that was retried although its bucket refused it is claimed outside of the ring
    return found | _outside(connection, scope, [m for m in messages if found[m.identity].claim is not ClaimState.HANDLED])


def _find_claims(connection: Connection, scope: StoreScope, place: ClaimGroup) -> dict[Identity, Knowledge]:
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
    found = _find_claims(connection, scope, ClaimGroup(scope.tables.claims, None, keys))
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
