"""Transactions of a user's in the memory store: pure functions over the store's world, as everything there."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.store import MemoryResources, Notebook, OpenUnit, StoredRecord, StoreWorld, UnitChanges, abandon
from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, SetupError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, mark_of
from onceonly.ports.environment import Clock
from onceonly.ports.store import Resources
from onceonly.systems.key_wait import key_wait

KEYS = "\0keys"
"""The source under which an open unit holds a client's key; no message has it."""


def open_(world: StoreWorld, key: str, token: Hashable, blocking: bool) -> Step | None:  # noqa: FBT001 - positional
    """Open a unit that holds the key; a blocking store waits while another one holds it. Gives what is kept under it."""
    _, kept = entry(world, key)
    if kept is not None:
        return world, kept
    held = Identity(KEYS, key)
    if key and blocking and any(held == claimed for unit in world.open for claimed, _ in unit.claims):
        return None
    unit = OpenUnit(token, ((held, b""),) if key else ())
    return replace(world, open=(*world.open, unit)), None


class TransactionCommit(Struct, frozen=True):
    """What a transaction makes final, its client's key among it."""

    changes: UnitChanges
    key: tuple[tuple[str, IdempotencyEntry], ...] = ()


def commit(world: StoreWorld, token: Hashable, final: TransactionCommit, now: int) -> Step:
    """Make notes, record and key final in one step. The unit is over whatever comes of it."""
    closed: StoreWorld
    closed, _ = abandon(world, token)
    if len(closed.open) == len(world.open):
        return world, Raises(CommitFailed, "this transaction has already been committed or abandoned")
    if final.changes.refusal:
        return closed, Raises(CommitRefused, final.changes.refusal)
    if any(record.identity in world.buried for record in final.changes.records):
        return closed, Raises(ConflictError, "another process considered this transaction dead and cancelled it")
    if {key for key, _ in final.key} & {key for key, _ in world.keys}:
        return closed, Raises(ConflictError, "another attempt with this idempotency key was committed first")
    after = replace(
        closed,
        records=closed.records + tuple(StoredRecord(record, now) for record in final.changes.records),
        notes=closed.notes + final.changes.notes,
        keys=closed.keys + final.key,
    )
    return after, None


def attempt(world: StoreWorld, identity: Identity, unit: str) -> Step:
    """Return the record of an attempt. One without effects stands for its tombstone, or for the mark of its commit."""
    found = next((each.record for each in world.records if each.record.identity == identity), None)
    is_over = identity in world.buried or any(key == mark_of(identity.id) for key, _ in world.keys)
    return world, found or (Record(identity, unit=unit) if is_over else None)


def bury_attempt(world: StoreWorld, identity: Identity) -> Step:
    """Insert a tombstone, unless the attempt has ended."""
    if identity in world.buried or any(each.record.identity == identity for each in world.records):
        return world, Raises(ConflictError, "this attempt has already ended")
    return replace(world, buried=world.buried | {identity}), None


def entry(world: StoreWorld, key: str) -> Step:
    kept = next((kept for known, kept in world.keys if known == key), None) if key else None
    return world, kept and with_pending(kept, (each.record for each in world.records))


def with_pending(entry: IdempotencyEntry, records: Iterable[Record]) -> IdempotencyEntry:
    """Return the entry with those of the records that its attempt committed, and that are not dispatched."""
    return replace(entry, records=tuple(each for each in records if each.identity.id == entry.attempt and each.effects))


def remove(world: StoreWorld, key: str) -> Step:
    return replace(world, keys=tuple(each for each in world.keys if each[0] != key)), None


class MemoryTransactions:
    """The transactions of one endpoint's memory store. Blocking ones wait for a key like SQL; others conflict at commit.

    With `has_controls`, control messages check its attempts, so the commit of one without a client's key stores a mark.
    """

    def __init__(
        self,
        driver: WorldDriver,
        endpoint: str,
        *,
        clock: Clock | None = None,
        blocking: bool = True,
        has_controls: bool = False,
    ) -> None:
        """Use the same part of the driver's world as the store of this endpoint."""
        self.clock = clock or WallClock()
        self.has_controls = has_controls
        self._place = WorldPart(f"store of {endpoint}", StoreWorld())
        self._driver = driver
        self._blocking = blocking

    async def open(self, opening: TransactionAttempt) -> "MemoryTransaction | IdempotencyEntry":
        token = self._driver.token()
        async with key_wait(opening):
            found = await self.begin(opening.key, token)
        return found if isinstance(found, IdempotencyEntry) else MemoryTransaction(self, token, opening)

    async def begin(self, key: str, token: Hashable) -> IdempotencyEntry | None:
        """Open a unit that holds the key, or return what is kept under it. A blocking one waits for another that holds it."""
        found: IdempotencyEntry | None = await self.perform("open", open_, (key, token, self._blocking))
        return found

    async def entry(self, key: str) -> IdempotencyEntry | None:
        found: IdempotencyEntry | None = await self.perform("entry", entry, (self.stored_key(key),))
        return found

    async def remove(self, key: str) -> None:
        """Remove what is kept under a key, for the port `RemoteRequests`."""
        await self.perform("call-remove", remove, (self.stored_key(key),))

    async def commit(self, token: Hashable, final: TransactionCommit, now: int) -> None:
        await self.perform("commit", commit, (token, final, now))

    def stored_key(self, key: str) -> str:
        return key

    async def perform(self, point: str, function: Callable[..., Step | None], arguments: tuple[Any, ...]) -> Any:
        """Perform an operation on the store's part of the world."""
        return await self._driver.perform(PortOperation(point, self._place, function, arguments))

    def abandon(self, token: Hashable) -> None:
        self._driver.at_once(PortOperation("abandon", self._place, abandon, (token,)))


class MemoryAttempts:
    """How the attempts of endpoints in this world ended, for control messages."""

    def __init__(self, driver: WorldDriver) -> None:
        self._driver = driver

    async def entry(self, key: str, endpoint: str) -> IdempotencyEntry | None:
        return await self._of(endpoint).entry(key)

    async def record(self, identity: Identity, unit: str) -> Record | None:
        found: Record | None = await self._of(identity.source).perform("record", attempt, (identity, unit))
        return found

    async def bury(self, identity: Identity, unit: str) -> None:
        await self._of(identity.source).perform("bury", bury_attempt, (identity,))

    def _of(self, endpoint: str) -> MemoryTransactions:
        return MemoryTransactions(self._driver, endpoint)


class MemoryTransaction:
    """One open transaction."""

    def __init__(self, transactions: MemoryTransactions, token: Hashable, opening: TransactionAttempt) -> None:
        self._notebook = Notebook()
        self.resources: Resources = MemoryResources(self._notebook, isolated=False)
        self.unit = ""
        self._transactions = transactions
        self._token = token
        self._opening = opening
        self._since = transactions.clock.now()

    async def load(self, unit: str) -> None:
        raise SetupError(f"cannot store {unit!r}: this endpoint has no handler with entity=, and its memory store needs one")

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        opening, now = self._opening, self._transactions.clock.now()
        if now - self._since > opening.max_commit:
            self.abandon()
            raise CommitFailed(f"not committed within {opening.max_commit} ms of its start")
        changes = self._notebook.changes(() if record is None else (record,))
        entry = IdempotencyEntry(opening.attempt, opening.fingerprint, answer)
        key = ((self._transactions.stored_key(opening.key), entry),) if opening.key else ()
        if self._transactions.has_controls and record is not None and not opening.key:
            key = ((mark_of(opening.attempt), entry),)
        await self._transactions.commit(self._token, TransactionCommit(changes, key), now)

    def abandon(self) -> None:
        self._transactions.abandon(self._token)
