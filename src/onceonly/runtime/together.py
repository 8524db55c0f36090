"""Forgetting together: while one statement is under way, the records of all later batches wait for one next statement."""

import asyncio
from collections.abc import Hashable, Sequence

from msgspec import Struct

from onceonly.model.errors import Unknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Store, Unit


class Round(Struct):
    """What one statement forgets, and how it ended: `error` is None when all is forgotten."""

    identities: list[Identity]
    begun: bool = False
    error: BaseException | None = None


class ForgettingTogether:
    """A store that forgets the records of several batches in one call. Each caller learns how the call ended."""

    def __init__(self, store: Store) -> None:
        """Enclose this store, for all loops of a worker."""
        self._store = store
        self._one = asyncio.Lock()
        self._next = Round([])

    async def forget(self, identities: Sequence[Identity]) -> None:
        """Forget these, with what others want forgotten by then; raises what the one call raised."""
        mine = self._next
        mine.identities.extend(identities)
        async with self._one:
            if not mine.begun:
                self._next = Round([])
                await self._forget(mine)
        if mine.error is not None:
            raise Unknown(f"records were to be forgotten together: {mine.error}") from mine.error

    async def _forget(self, mine: Round) -> None:
        mine.begun = True
        try:
            await self._store.forget(mine.identities)
        except BaseException as error:
            mine.error = error
            raise

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin as ever."""
        return await self._store.begin(messages, isolated=isolated)

    async def undispatched(self, older_than: int, limit: int, *, after: Identity | None = None) -> tuple[Record, ...]:
        """List as ever."""
        return await self._store.undispatched(older_than, limit, after=after)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find as ever."""
        return await self._store.find(identities)

    def unit_key(self, message: Message) -> Hashable:
        """Tell as ever."""
        return self._store.unit_key(message)
