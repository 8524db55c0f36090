"""The protocol of projections: places whose documents are written after a commit, by version.

A search index, a cache or another database is a projection of an endpoint by `Endpoint(projections={"search": SearchIndex()})`.
URLs of documents need no class. Writes come again after a crash, late, and in another order. The versions make that harmless.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer

__all__ = ["Projection"]


@runtime_checkable
class Projection(Protocol):
    """A place of your own for the projections of an endpoint. Calls for different keys may overlap."""

    async def put(self, key: str, body: bytes, version: int) -> None:
        """Store the body of a key and its version, durably, unless the stored version is the same or greater.

        Compare and write in one atomic step. A tombstone counts as a stored version. Raises CommitRefused if the service will
        never accept this write. Any other exception means that it may have happened, and it is repeated.
        """

    async def delete(self, key: str, version: int) -> None:
        """Delete a key, and keep a tombstone with this version, unless the stored version is the same or greater.

        Keep the tombstone for as long as an older write may come: at least a week. Raises as `put`.
        """


class ProjectionWriter(Protocol):
    """One projection of an endpoint, as the effects of its records use it."""

    async def write(self, writes: Sequence[ProjectedWrite]) -> tuple[Answer, ...]:
        """Apply each write whose version is greater than the stored one. Return an answer for each, in order.

        TAKEN: the projection has this version of the key, or a greater one. REFUSED: it can never have it. AWAY: everything
        else, so the write is to be repeated. Raises nothing of the service's.
        """

    def problem(self, write: ProjectedWrite) -> str:
        """Return why the projection would refuse a write, as far as this is known without asking it, or an empty string."""
