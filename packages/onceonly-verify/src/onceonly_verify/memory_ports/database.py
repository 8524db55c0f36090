"""A database in memory that several endpoints share, with the tokens of their messages in it (protocols, section 5).

`begin` consumes tokens and `commit` makes new ones, in the transaction of the business data. So there is nothing to sweep, and
no other store to ask. It is what the model checker explores of stores that do the same in SQL.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.store import MemoryStore, MemoryUnit, Note, TakeRequest, UnitChanges, in_order
from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.model.transaction import IdempotencyEntry
from onceonly.ports.environment import Clock
from onceonly.ports.store import BeginResult


class OpenDatabaseUnit(Struct, frozen=True):
    """A unit that is neither committed nor abandoned, and the tokens that it has deleted, invisible to others."""

    token: Hashable
    tokens: frozenset[Token]
    key: str = ""
    """The client's key that a transaction holds."""


class OwnedRecord(Struct, frozen=True):
    """A committed record with effects, whose it is, and when it was stored and last taken, in milliseconds since 1970."""

    endpoint: str
    record: Record
    at: int
    taken: int | None = None


class DatabaseWorld(Struct, frozen=True):
    """What the database holds. `notes` are rows without a unique key: (endpoint, key, value)."""

    tokens: frozenset[Token] = frozenset()
    records: tuple[OwnedRecord, ...] = ()
    notes: tuple[tuple[str, str, Any], ...] = ()
    open: tuple[OpenDatabaseUnit, ...] = ()
    keys: tuple[tuple[str, IdempotencyEntry], ...] = ()
    """What is committed under clients' keys, of all endpoints."""


PLACE = WorldPart("database", DatabaseWorld())


def begin(world: DatabaseWorld, messages: tuple[Message, ...], token: Hashable, endpoint: str) -> Step | None:
    """Delete the messages' tokens, waiting for whoever deleted one of them before; then read the records of the others."""
    wanted = {Token(message.token, endpoint) for message in messages if message.token}
    if any(unit.tokens & wanted for unit in world.open):
        return None
    live = wanted & world.tokens
    pending = {each.record.identity: each.record for each in world.records if each.endpoint == endpoint}
    new = tuple(message for message in messages if Token(message.token, endpoint) in live)
    rest = tuple(message for message in messages if message not in new)
    found = BeginResult(
        new=new,
        pending=tuple(pending[message.identity] for message in rest if message.identity in pending),
        done=tuple(message for message in rest if message.identity not in pending),
        mismatched=(),
    )
    return replace(world, open=(*world.open, OpenDatabaseUnit(token, frozenset(live)))), found


def commit(world: DatabaseWorld, token: Hashable, changes: UnitChanges, stamp: tuple[str, int]) -> Step:
    """Make a unit final in one step: rows, records, tokens gone and tokens made; one without a record comes back."""
    unit = next((unit for unit in world.open if unit.token == token), None)
    if unit is None:
        return world, Raises(CommitFailed, "this unit has already been committed or abandoned")
    endpoint, now = stamp
    closed = replace(world, open=tuple(each for each in world.open if each.token != token))
    if changes.refusal:
        return closed, Raises(CommitRefused, changes.refusal)
    consumed = {Token(record.token, endpoint) for record in changes.records if record.token}
    if not consumed <= unit.tokens & world.tokens:
        return closed, Raises(ConflictError, "another unit consumed a token of this one first")
    issued = [token for record in changes.records for token in record.issued]
    stored = tuple(OwnedRecord(endpoint, record, now) for record in changes.records if record.is_pending)
    return DatabaseWorld(
        tokens=(world.tokens - consumed).union(issued),
        records=world.records + stored,
        notes=world.notes + tuple((endpoint, *note) for note in changes.notes),
        open=closed.open,
        keys=world.keys,
    ), None


def forget(world: DatabaseWorld, identities: tuple[Identity, ...], endpoint: str) -> Step:
    """Drop records: nothing is left of their messages."""
    left = tuple(each for each in world.records if each.endpoint != endpoint or each.record.identity not in identities)
    return replace(world, records=left), None


def undispatched(world: DatabaseWorld, older_than: int, limit: int, endpoint: str) -> Step:
    """List an endpoint's old records, oldest first."""
    old = sorted((each for each in world.records if each.endpoint == endpoint and each.at < older_than), key=lambda e: e.at)
    return world, tuple(each.record for each in old[:limit])


def take(world: DatabaseWorld, wanted: TakeRequest, endpoint: str) -> Step:
    """Mark records of an endpoint as taken now, and give them."""
    own = [each for each in world.records if each.endpoint == endpoint]
    chosen = wanted.choose(own)
    marked = (replace(e, taken=wanted.now) if e in own and e.record.identity in chosen else e for e in world.records)
    return replace(world, records=tuple(marked)), in_order(own, chosen)


def find(world: DatabaseWorld, identities: tuple[Identity, ...], endpoint: str) -> Step:
    """Return the records there are of these."""
    known = {each.record.identity: each.record for each in world.records if each.endpoint == endpoint}
    return world, tuple(known[identity] for identity in identities if identity in known)


def fence(world: DatabaseWorld, identity: Identity, endpoint: str, token: str | None) -> Step:
    """Return the record of a message.

    Without one, a unit that may commit it is a ConflictError: any, when its token is unknown.
    """
    found = next((e.record for e in world.records if (e.endpoint, e.record.identity) == (endpoint, identity)), None)
    holding = [unit for unit in world.open if token is None or Token(token, endpoint) in unit.tokens]
    if found is None and holding:
        return world, Raises(ConflictError, "an open unit may commit it")
    return world, found


def _notes(world: DatabaseWorld, endpoint: str) -> Step:
    return world, tuple((key, value) for owner, key, value in world.notes if owner == endpoint)


class MemoryDatabase(MemoryStore):
    """One endpoint's part of the database of all endpoints that share a driver; it waits in `begin`, like SQL."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that is the database."""
        super().__init__(driver, endpoint, clock=clock)
        self.place = PLACE
        self._endpoint = endpoint

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> MemoryUnit:
        token = self._driver.token()
        found = await self._perform("begin", begin, (tuple(messages), token, self._endpoint))
        return MemoryUnit(self, token, found, isolated=isolated)

    async def forget(self, records: Sequence[Record]) -> None:
        identities = tuple(record.identity for record in records)
        await self._driver.perform(PortOperation("forget", self.place, forget, (identities, self._endpoint), many=True))

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        arguments = (older_than, limit, self._endpoint)
        records: tuple[Record, ...] = await self._perform("undispatched", undispatched, arguments)
        return records

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        wanted = TakeRequest(older_than, limit, lease, self._clock.now(), after)
        records: tuple[Record, ...] = await self._perform("take", take, (wanted, self._endpoint))
        return records

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        records: tuple[Record, ...] = await self._perform("find", find, (tuple(identities), self._endpoint))
        return records

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Return a record, once no unit is open; see the port."""
        record: Record | None = await self._perform("fence", fence, (identity, self._endpoint, message and message.token))
        return record

    def notes(self) -> tuple[Note, ...]:
        """Return this endpoint's committed rows, in the order of their commits."""
        rows: tuple[Note, ...] = self._driver.at_once(PortOperation("notes", self.place, _notes, (self._endpoint,)))
        return rows

    async def commit(self, token: Hashable, changes: UnitChanges) -> None:
        await self._perform("commit", commit, (token, changes, (self._endpoint, self._clock.now())))
