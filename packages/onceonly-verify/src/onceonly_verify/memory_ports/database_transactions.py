"""Transactions of a user's in the database that several endpoints share: the commit writes the tokens of what they send.

It is what the model checker explores of stores that do the same in SQL. Keys of clients are those of one endpoint.
"""

from collections.abc import Hashable

from msgspec.structs import replace

from onceonly.adapters.memory.transactions import MemoryTransactions, TransactionCommit, with_pending
from onceonly.adapters.memory.world import Raises, Step, WorldDriver
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.transaction import IdempotencyEntry
from onceonly.ports.environment import Clock
from onceonly_verify.memory_ports.database import PLACE, DatabaseWorld, OpenDatabaseUnit, OwnedRecord


def open_(world: DatabaseWorld, key: str, token: Hashable) -> Step | None:
    """Open a unit that holds the key; waits while another one holds it. Returns what is kept under it."""
    kept = next((kept for known, kept in world.keys if known == key), None) if key else None
    if kept is not None:
        return world, with_pending(kept, (each.record for each in world.records))
    if key and any(unit.key == key for unit in world.open):
        return None
    return replace(world, open=(*world.open, OpenDatabaseUnit(token, frozenset(), key))), None


def commit(world: DatabaseWorld, token: Hashable, final: TransactionCommit, stamp: tuple[str, int]) -> Step:
    """Make notes, record, tokens and key final in one step. The unit is over whatever comes of it."""
    closed = replace(world, open=tuple(unit for unit in world.open if unit.token != token))
    endpoint, now = stamp
    if len(closed.open) == len(world.open):
        return world, Raises(CommitFailed, "this transaction has already been committed or abandoned")
    if final.changes.refusal:
        return closed, Raises(CommitRefused, final.changes.refusal)
    if {key for key, _ in final.key} & {key for key, _ in world.keys}:
        return closed, Raises(ConflictError, "another attempt with this idempotency key was committed first")
    after = replace(
        closed,
        tokens=closed.tokens.union(token for record in final.changes.records for token in record.issued),
        records=closed.records + tuple(OwnedRecord(endpoint, record, now) for record in final.changes.records),
        notes=closed.notes + tuple((endpoint, *note) for note in final.changes.notes),
        keys=closed.keys + final.key,
    )
    return after, None


class MemoryDatabaseTransactions(MemoryTransactions):
    """The transactions of one endpoint in the shared database; they wait for a key, like SQL."""

    def __init__(self, driver: WorldDriver, endpoint: str, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that is the database."""
        super().__init__(driver, endpoint, clock=clock)
        self._place = PLACE
        self._endpoint = endpoint

    async def begin(self, key: str, token: Hashable) -> IdempotencyEntry | None:
        found: IdempotencyEntry | None = await self.perform("open", open_, (self.stored_key(key), token))
        return found

    async def commit(self, token: Hashable, final: TransactionCommit, now: int) -> None:
        await self.perform("commit", commit, (token, final, (self._endpoint, now)))

    def stored_key(self, key: str) -> str:
        """Return a key as the database stores it: with the endpoint that it belongs to."""
        return f"{self._endpoint}/{key}" if key else ""
