"""What a unit of a document store offers to handlers: its entity."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from onceonly.model.entities import Entities


class DocumentResources:
    """The resources of one unit: the entities it loaded."""

    def __init__(self, entities: Entities, *, isolated: bool) -> None:
        """Offer these."""
        self._entities = entities
        self._isolated = isolated

    def get(self, kind: type) -> object:
        """Give the entities. Raises LookupError for any other type."""
        if kind is Entities:
            return self._entities
        raise LookupError(f"a document store offers entities, no {kind.__name__}")

    def attempt(self) -> AbstractAsyncContextManager[None]:
        """Enclose one handler's work; in an isolated unit what it wrote is undone when it raises."""
        return self._attempt()

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        mark = self._entities.mark()
        try:
            yield
        except BaseException:
            if self._isolated:
                self._entities.undo(mark)
            raise

    async def run_sync(self, function: Callable[[Callable[[type], object]], Any]) -> object:
        """Run a synchronous handler."""
        return function(self.get)
