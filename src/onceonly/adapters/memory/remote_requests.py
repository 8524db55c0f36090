"""What a service was asked, in memory: the requests in a part of the world of their own, the responses in the store's."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.transactions import MemoryTransaction, MemoryTransactions
from onceonly.adapters.memory.world import PortOperation, Step, WorldDriver, WorldPart
from onceonly.model.record import Record
from onceonly.model.remote import Request
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.environment import Clock
from onceonly.ports.store import Resources

RESPONSE = "\0response/"
"""What comes before the keys of responses, among those of clients."""


class RequestsWorld(Struct, frozen=True):
    """The requests that wait or were executed, and the tombstones: until when they stand, in milliseconds since 1970."""

    requests: frozenset[tuple[str, Request]] = frozenset()
    buried: frozenset[tuple[str, int]] = frozenset()


def put(world: RequestsWorld, key: str, request: Request) -> Step:
    """Keep a request that was not buried."""
    known = dict(world.requests).get(key)
    if known is not None:
        return world, known == request
    if any(key == each for each, _ in world.buried):
        return world, False
    return replace(world, requests=world.requests | {(key, request)}), True


def request(world: RequestsWorld, key: str) -> Step:
    return world, dict(world.requests).get(key)


def bury(world: RequestsWorld, key: str, until: int, now: int) -> Step:
    """Put a tombstone in its place; those whose time is over go."""
    until = max([until, *(since for each, since in world.buried if each == key)])
    others = frozenset(each for each in world.buried if each[0] != key and each[1] >= now)
    return RequestsWorld(frozenset(each for each in world.requests if each[0] != key), others | {(key, until)}), None


class MemoryRemoteRequests:
    """What one endpoint was asked, next to its memory store."""

    def __init__(
        self,
        driver: WorldDriver,
        endpoint: str,
        *,
        clock: Clock | None = None,
        transactions: MemoryTransactions | None = None,
    ) -> None:
        """Use the same part of the driver's world as the transactions, those of a memory store by default, and one of its own.

        Whoever executes the same request is waited for: found at the commit, it might be deleted by then.
        """
        self.place = WorldPart(f"requests of {endpoint}", RequestsWorld())
        self._transactions = transactions or MemoryTransactions(driver, endpoint, clock=clock)
        self._driver = driver

    async def put(self, key: str, request: Request, until: int) -> bool:
        """Keep a request; see the port. It stays until it is buried."""
        taken: bool = await self.perform("call-put", put, (key, request))
        return taken

    async def open(self, opening: TransactionAttempt) -> "OpenMemoryRequest | IdempotencyEntry":
        """Load the response or open a unit; see the port."""
        found = await self._transactions.open(replace(opening, key=RESPONSE + opening.key))
        return found if isinstance(found, IdempotencyEntry) else OpenMemoryRequest(self, opening.key, found)

    async def entry(self, key: str) -> IdempotencyEntry | None:
        return await self._transactions.entry(RESPONSE + key)

    async def bury(self, key: str, until: int) -> None:
        await self.perform("call-bury", bury, (key, until, self._transactions.clock.now()))

    async def remove(self, key: str) -> None:
        await self._transactions.remove(RESPONSE + key)

    async def perform(self, point: str, function: Callable[..., Step | None], arguments: tuple[Any, ...]) -> Any:
        return await self._driver.perform(PortOperation(point, self.place, function, arguments))


class OpenMemoryRequest:
    """One request that is being executed."""

    def __init__(self, requests: MemoryRemoteRequests, key: str, transaction: MemoryTransaction) -> None:
        self.resources: Resources = transaction.resources
        self._requests = requests
        self._key = key
        self._transaction = transaction

    async def request(self) -> Request | None:
        found: Request | None = await self._requests.perform("call-request", request, (self._key,))
        return found

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        await self._transaction.commit(record, answer)

    def abandon(self) -> None:
        self._transaction.abandon()
