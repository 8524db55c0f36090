"""Stores that obey a handler that ends the database transaction of its unit."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.model.errors import CommitFailed
from onceonly.model.message import Message
from onceonly.ports.store import Resources, Unit
from onceonly_conformance.store_subject import StoreSubject, WholeStore
from tests.broken_adapters.wrapped_stores import WrappedResources, WrappedStores, WrappedUnit


class _ObedientSession:
    """A session that ends the unit when a handler says so."""

    def __init__(self, inner: Any, word: str, end: Callable[[], Awaitable[None]]) -> None:
        self._inner, self._word, self._end = inner, word, end

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._inner, name)

    async def execute(self, statement: Any) -> object:
        """Execute a statement, or end the unit."""
        if self._word in str(statement):
            return await self._end()
        return await self._inner.execute(statement)


class _ObedientResources(WrappedResources):
    def __init__(self, inner: Resources, word: str, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._word, self._end = word, end

    def get(self, kind: type) -> object:
        """Wrap the session."""
        found = super().get(kind)
        return _ObedientSession(found, self._word, self._end) if kind is AsyncSession else found


class SplittingStore(WrappedStores):
    """Commits the data of a handler that says COMMIT. Its message is new then."""

    def resources(self, unit: Unit) -> Resources:
        """Let a COMMIT end the unit."""
        return _ObedientResources(unit.resources, "COMMIT", lambda: unit.commit([]))


class LeakingStore(WrappedStores):
    """Gives the connection of a handler that said ROLLBACK to the next unit of the process, where it does not work."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._is_spoiled = False

    def resources(self, unit: Unit) -> Resources:
        """Let a ROLLBACK end the unit."""

        async def end() -> None:
            unit.abandon()
            self._is_spoiled = True

        return _ObedientResources(unit.resources, "ROLLBACK", end)

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Fail once."""
        if self._is_spoiled:
            self._is_spoiled = False
            raise CommitFailed("the connection is closed")
        return await super().begin(store, messages, isolated=isolated)


class _EndlessResources(WrappedResources):
    """Ends nothing: what a handler was given works on."""

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose nothing."""
        return nullcontext()


class EndlessStore(WrappedStores):
    """Lets handlers use what they were given after their end."""

    def resources(self, unit: Unit) -> Resources:
        """End nothing."""
        return _EndlessResources(unit.resources)
