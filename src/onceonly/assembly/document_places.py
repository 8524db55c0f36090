"""Places for documents: opened by their URL, looked at before they are used, and shared within a process."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from onceonly.config.location import Location, locate
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.systems import DocumentService, Family
from onceonly.systems.shared import Shared

_log = EventLogger(logging.getLogger("onceonly.documents"))
TOLD: set[tuple[str, str]] = set()
"""What was logged about places. A process that starts others hands it to them, so that it is said once for all."""


class _Place(NamedTuple):
    documents: Documents
    stack: AsyncExitStack

    async def close(self) -> None:
        await self.stack.aclose()


_PLACES: Shared[_Place] = Shared(_Place.close)


@asynccontextmanager
async def open_documents(place: Location | str, *, clock: Clock) -> AsyncIterator[Documents]:
    """Return the documents that a setting names: of a service, of a SQL database, or in memory.

    Raises SetupError where the place is missing or does not keep its promises, and RetryableError when it is away.
    """
    found = locate(place, "store")
    if found.family is Family.SQL:
        from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

        async with sql.open_documents(found.setting, clock=clock) as documents:
            tell(found, await documents.check())
            yield documents
        return

    async def make() -> _Place:
        async with AsyncExitStack() as stack:
            documents = await stack.enter_async_context(_service(found).open_documents(found.setting, clock=clock))
            tell(found, await documents.check())
            return _Place(documents, stack.pop_all())

    async with _PLACES.use((found.setting, id(clock)), make) as opened:
        yield opened.documents


async def create(place: Location | str) -> None:
    """Make the place that a service needs for its documents; harmless when it is there.

    Raises SetupError, RetryableError, CommitFailed.
    """
    found = locate(place, "store")
    await _service(found).create(found.setting)


def tell(place: Location, warnings: Sequence[str]) -> None:
    """Log a remark about a place, once in this process and those that it starts."""
    for warning in warnings:
        if (str(place), warning) not in TOLD:
            TOLD.add((str(place), warning))
            _log.warning("document store warning", extra={"place": str(place), "reason": warning})


def _service(place: Location) -> DocumentService:
    if place.system.documents is None:
        raise SetupError(f"{place} does not store documents")
    return place.system.documents()
