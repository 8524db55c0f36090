"""The memory store and its dead letters: immutable worlds that behave like a blocking database, or like an optimistic one.

Nothing survives the process. It serves users' tests, and it is the store that the model checker explores.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.artifact import Reservation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, HandlerFailed, LockTimeout
from onceonly.model.identity import Identity
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, longest_commit
from onceonly.ports.dead_letters import Filter
from onceonly.ports.environment import Clock
from onceonly.ports.store import BeginResult, Resources, SyncThread

Note = tuple[str, Any]
Claim = tuple[Identity, bytes]
"""Handled messages, and the fingerprints of their bodies."""


class TakeRequest(Struct, frozen=True):
    """Which records are to be taken, when, and for how long; see the port."""

    older_than: int
    limit: int
    lease: int
    now: int
    after: Identity | None = None

    def choose(self, stored: Iterable[Any]) -> frozenset[Identity]:
        """Choose from what is stored, in the order of the identities."""
        free = (each.record.identity for each in stored if each.at < self.older_than and not self._is_leased(each.taken))
        behind = (identity for identity in free if self.after is None or identity > self.after)
        return frozenset(sorted(behind)[: self.limit])

    def _is_leased(self, taken: int | None) -> bool:
        return taken is not None and abs(self.now - taken) < self.lease


def in_order(stored: Iterable[Any], chosen: frozenset[Identity]) -> tuple[Record, ...]:
    """Return the records of these identities, in the order in which they are taken."""
    found = (each.record for each in stored if each.record.identity in chosen)
    return tuple(sorted(found, key=lambda record: record.identity))


class OpenUnit(Struct, frozen=True):
    """A unit that is neither committed nor abandoned, and the claims it holds."""

    token: Hashable
    claims: tuple[Claim, ...]
    fenced: bool = False
    """Whether it can no longer be committed."""


class StoredRecord(Struct, frozen=True):
    """A committed record with effects, and when it was stored and last taken, in milliseconds since 1970."""

    record: Record
    at: int
    taken: int | None = None


class StoreWorld(Struct, frozen=True):
    """Everything one endpoint's store knows. `notes` are rows without a unique key, in the order they were committed."""

    claims: frozenset[Claim] = frozenset()
    records: tuple[StoredRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    open: tuple[OpenUnit, ...] = ()
    keys: tuple[tuple[str, IdempotencyEntry], ...] = ()
    buried: frozenset[Identity] = frozenset()
    """Attempts at transactions that were fenced."""
    rows: tuple[Reservation, ...] = ()
    """The register rows, in the order they were opened."""

    @property
    def claimed(self) -> frozenset[Identity]:
        return frozenset(identity for identity, _ in self.claims)


class UnitChanges(Struct, frozen=True):
    """What a unit wants to make final; `refusal` is the reason for which the store refuses it, if any."""

    records: tuple[Record, ...]
    notes: tuple[Note, ...] = ()
    refusal: str = ""


def begin(world: StoreWorld, messages: tuple[Message, ...], token: Hashable, blocking: bool) -> Step | None:  # noqa: FBT001 - positional
    """Claim these messages for a new unit; a blocking store waits while another open unit holds one of the claims."""
    if blocking and {m.identity for m in messages} & {identity for unit in world.open for identity, _ in unit.claims}:
        return None
    asked = {message.identity for message in messages}
    known = {identity: body for identity, body in world.claims if identity in asked}
    pending = {stored.record.identity: stored.record for stored in world.records}
    same = [m for m in messages if known.get(m.identity) == m.fingerprint]
    found = BeginResult(
        new=tuple(m for m in messages if m.identity not in known),
        pending=tuple(pending[m.identity] for m in same if m.identity in pending),
        done=tuple(m for m in same if m.identity not in pending),
        mismatched=tuple(m for m in messages if known.get(m.identity, m.fingerprint) != m.fingerprint),
    )
    unit = OpenUnit(token, tuple((message.identity, message.fingerprint) for message in found.new))
    return replace(world, open=(*world.open, unit)), found


def commit(world: StoreWorld, token: Hashable, changes: UnitChanges, now: int) -> Step:
    """Make a unit final in one step; a claim in it without a record is dropped. It is over whatever comes of it."""
    unit = next((unit for unit in world.open if unit.token == token), None)
    if unit is None:
        return world, Raises(CommitFailed, "this unit has already been committed or abandoned")
    closed = _without(world, token)
    if unit.fenced:
        return closed, Raises(ConflictError, "another process gave up a message of this unit, so it cannot be committed")
    if changes.refusal:
        return closed, Raises(CommitRefused, changes.refusal)
    handled = {record.identity for record in changes.records}
    kept = frozenset(claim for claim in unit.claims if claim[0] in handled)
    if {identity for identity, _ in kept} & {identity for identity, _ in world.claims}:
        return closed, Raises(ConflictError, "another unit committed a claim on a message of this unit first")
    permitted = take_rows(closed, changes.records)
    if permitted is None:
        return closed, Raises(ConflictError, "a sweeper considered an attempt of this unit dead and cancelled it")
    stored = tuple(StoredRecord(record, now) for record in changes.records if record.is_pending)
    return replace(
        permitted, claims=world.claims | kept, records=world.records + stored, notes=world.notes + changes.notes
    ), None


def take_rows(world: StoreWorld, records: Sequence[Record]) -> StoreWorld | None:
    """Take the register rows of these records away, as a commit does. None when one of them is cancelled or gone."""
    attempts = {record.attempt for record in records if record.attempt}
    if not attempts:
        return world
    permitted = {row.attempt for row in world.rows if not row.cancelled}
    if not attempts <= permitted:
        return None
    return replace(world, rows=tuple(row for row in world.rows if row.attempt not in attempts))


def abandon(world: StoreWorld, token: Hashable) -> Step:
    """Forget a unit and its claims; harmless when it is over."""
    return _without(world, token), None


def forget(world: StoreWorld, identities: tuple[Identity, ...]) -> Step:
    gone = frozenset(identities)
    return replace(world, records=tuple(stored for stored in world.records if stored.record.identity not in gone)), None


def undispatched(world: StoreWorld, older_than: int, limit: int) -> Step:
    found = [stored.record for stored in sorted(world.records, key=lambda stored: stored.at) if stored.at < older_than]
    return world, tuple(found[:limit])


def take(world: StoreWorld, wanted: TakeRequest) -> Step:
    chosen = wanted.choose(world.records)
    marked = tuple(replace(s, taken=wanted.now) if s.record.identity in chosen else s for s in world.records)
    return replace(world, records=marked), in_order(marked, chosen)


def find(world: StoreWorld, identities: tuple[Identity, ...]) -> Step:
    known = {stored.record.identity: stored.record for stored in world.records}
    return world, tuple(known[identity] for identity in identities if identity in known)


def fence(world: StoreWorld, identity: Identity, blocking: bool) -> Step:  # noqa: FBT001 - positional
    """Return the record of a message, an empty one if it is done.

    Of a message that is new, a unit that claims it is a ConflictError, or loses in an optimistic store.
    """
    known = {identity: Record(identity) for identity in world.claimed}
    known |= {stored.record.identity: stored.record for stored in world.records}
    claiming = {unit.token for unit in world.open if any(identity == claimed for claimed, _ in unit.claims)}
    if identity in known or not claiming:
        return world, known.get(identity)
    if blocking:
        return world, Raises(ConflictError, "another unit has claimed it")
    return replace(world, open=tuple(replace(each, fenced=each.fenced or each.token in claiming) for each in world.open)), None


def bury(world: StoreWorld, identity: Identity) -> Step:
    """Return the record of an attempt at a transaction, or make sure that it will never have one."""
    known = {stored.record.identity: stored.record for stored in world.records}
    return (world if identity in known else replace(world, buried=world.buried | {identity})), known.get(identity)


def _notes(world: StoreWorld) -> Step:
    return world, world.notes


def _without(world: StoreWorld, token: Hashable) -> StoreWorld:
    return replace(world, open=tuple(unit for unit in world.open if unit.token != token))


class Notebook:
    """What a unit of the memory store offers to handlers: rows written here are committed with the unit, or never were."""

    def __init__(self) -> None:
        self._rows: list[Note] = []
        self._refusal = ""

    def write(self, key: str, value: Any) -> None:
        """Add a row. Keys need not be unique; values must be hashable."""
        self._rows.append((key, value))

    def refuse(self, reason: str) -> None:
        """Make the commit of this unit fail, as a deferred constraint does."""
        self._refusal = reason

    def changes(self, records: Iterable[Record]) -> UnitChanges:
        return UnitChanges(tuple(records), tuple(self._rows), self._refusal)

    def mark(self) -> tuple[int, str]:
        return len(self._rows), self._refusal

    def undo(self, mark: tuple[int, str]) -> None:
        length, self._refusal = mark
        del self._rows[length:]


_Kind = TypeVar("_Kind")


class MemoryResources:
    """The resources of one unit: its notebook."""

    def __init__(self, notebook: Notebook, *, isolated: bool) -> None:
        self._notebook = notebook
        self._isolated = isolated

    def get(self, kind: type[_Kind]) -> _Kind:
        """Return the notebook. Raises LookupError for any other type."""
        if isinstance(self._notebook, kind):
            return self._notebook
        raise LookupError(f"a memory store provides a Notebook, not {kind.__name__}")

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose one handler's work; in an isolated unit its rows are undone when it raises; a lock time-out is its own."""
        return self._attempt()

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        mark = self._notebook.mark()
        try:
            yield
        except BaseException as error:
            if self._isolated:
                self._notebook.undo(mark)
            if self._isolated and isinstance(error, LockTimeout):
                raise HandlerFailed(Failure(kind=FailureKind.LOCKED, reason=str(error))) from error
            raise

    def is_busy(self) -> bool:
        return False

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Do nothing: what handlers write is taken as they write it."""
        return None

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run a synchronous handler, in `thread` if there is one."""
        return function(self.get) if thread is None else await thread.run(partial(function, self.get))


class MemoryUnit:
    """One unit of work against the memory store."""

    def __init__(self, store: "MemoryStore", token: Hashable, found: BeginResult, *, isolated: bool) -> None:
        self.key = ""
        self.found = found
        self._notebook = Notebook()
        self.resources: Resources = MemoryResources(self._notebook, isolated=isolated)
        self._store = store
        self._token = token

    async def commit(self, records: Sequence[Record]) -> None:
        """Make notes, records and claims final in one step. Raises ConflictError, CommitRefused, CommitFailed."""
        await self._store.commit(self._token, self._notebook.changes(records))

    def abandon(self) -> None:
        self._store.abandon(self._token)


class MemoryStore:
    """The store of one endpoint, in memory. A blocking one waits in `begin` like SQL; an optimistic one conflicts at commit."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None, blocking: bool = True) -> None:
        """Use the part of the driver's world that belongs to this endpoint."""
        self.place = WorldPart(f"store of {endpoint}", StoreWorld())
        self._driver = driver
        self._clock = clock or WallClock()
        self._blocking = blocking

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> MemoryUnit:
        token = self._driver.token()
        found = await self._perform("begin", begin, (tuple(messages), token, self._blocking))
        return MemoryUnit(self, token, found, isolated=isolated)

    def keeps(self, record: Record) -> bool:
        """Return whether there are effects to forget; the claim stays."""
        return record.is_pending

    async def forget(self, records: Sequence[Record]) -> None:
        identities = tuple(record.identity for record in records)
        await self._driver.perform(PortOperation("forget", self.place, forget, (identities,), many=True))

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        records: tuple[Record, ...] = await self._perform("undispatched", undispatched, (older_than, limit))
        return records

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        wanted = TakeRequest(older_than, limit, lease, self._clock.now(), after)
        records: tuple[Record, ...] = await self._perform("take", take, (wanted,))
        return records

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        records: tuple[Record, ...] = await self._perform("find", find, (tuple(identities),))
        return records

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Return a record, once no open unit holds the claim; see the port."""
        if longest_commit(unit) is not None:
            buried: Record | None = await self._perform("fence", bury, (identity,))
            return buried
        record: Record | None = await self._perform("fence", fence, (identity, self._blocking))
        return record

    def unit_key(self, message: Message) -> str:
        return ""

    def notes(self) -> tuple[Note, ...]:
        """Return the committed rows, in the order of their commits."""
        rows: tuple[Note, ...] = self._driver.at_once(PortOperation("notes", self.place, _notes, ()))
        return rows

    async def commit(self, token: Hashable, changes: UnitChanges) -> None:
        await self._perform("commit", commit, (token, changes, self._clock.now()))

    def abandon(self, token: Hashable) -> None:
        self._driver.at_once(PortOperation("abandon", self.place, abandon, (token,)))

    async def _perform(self, point: str, function: Callable[..., Step | None], arguments: tuple[Any, ...]) -> Any:
        return await self._driver.perform(PortOperation(point, self.place, function, arguments))


class LettersWorld(Struct, frozen=True):
    """All dead letters, in the order they were added."""

    letters: tuple[DeadLetter, ...] = ()


LETTERS = WorldPart("dead letters", LettersWorld())


def add(world: LettersWorld, letter: DeadLetter) -> Step:
    """Store a letter; one with the same key is kept as it is."""
    if any(known.key == letter.key for known in world.letters):
        return world, None
    return LettersWorld((*world.letters, letter)), None


def remove(world: LettersWorld, keys: tuple[str, ...]) -> Step:
    left = tuple(letter for letter in world.letters if letter.key not in keys)
    return LettersWorld(left), len(world.letters) - len(left)


def _look(world: LettersWorld) -> Step:
    return world, world.letters


class MemoryDeadLetters:
    """The dead letters of every endpoint that shares a driver."""

    place = LETTERS

    def __init__(self, driver: WorldDriver, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that holds the letters."""
        self._driver = driver
        self._clock = clock or WallClock()

    async def add(self, letter: DeadLetter) -> None:
        stamped = replace(letter, at=letter.at or self._clock.now())
        await self._driver.perform(PortOperation("dead-letter", LETTERS, add, (stamped,)))

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters; see the port. Empty when `after` is not the key of a dead letter."""
        letters = await self._all()
        keys = [letter.key for letter in letters]
        start = (keys.index(after) + 1 if after in keys else len(keys)) if after else 0
        return tuple(letter for letter in letters[start:] if chosen.matches(letter))[:limit]

    async def get(self, key: str) -> DeadLetter | None:
        return next((letter for letter in await self._all() if letter.key == key), None)

    async def count(self, chosen: Filter) -> int:
        return sum(chosen.matches(letter) for letter in await self._all())

    async def remove(self, keys: Sequence[str]) -> int:
        removed: int = await self._driver.perform(PortOperation("remove", LETTERS, remove, (tuple(keys),)))
        return removed

    async def newest(self, chosen: Filter, limit: int) -> tuple[DeadLetter, ...]:
        return tuple(letter for letter in (await self._all())[: -limit - 1 : -1] if chosen.matches(letter))

    async def _all(self) -> tuple[DeadLetter, ...]:
        letters: tuple[DeadLetter, ...] = await self._driver.perform(PortOperation("look", LETTERS, _look, ()))
        return letters
