"""A store inside another one: who encloses a store writes only what becomes different."""

from collections.abc import Sequence

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Store, Unit


class EnclosedStore:
    """Does whatever the store inside does."""

    def __init__(self, store: Store) -> None:
        """Enclose this store."""
        self._store = store

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin as ever."""
        return await self._store.begin(messages, isolated=isolated)

    def keeps(self, record: Record) -> bool:
        """Tell as ever."""
        return self._store.keeps(record)

    async def forget(self, records: Sequence[Record]) -> None:
        """Forget as ever."""
        await self._store.forget(records)

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List as ever."""
        return await self._store.undispatched(older_than, limit)

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Take as ever."""
        return await self._store.take(older_than, limit, lease=lease, after=after)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find as ever."""
        return await self._store.find(identities)

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence as ever."""
        return await self._store.fence(unit, identity, message)

    def unit_key(self, message: Message) -> str:
        """Tell as ever."""
        return self._store.unit_key(message)
