"""Effects other than messages: things made outside the store that must appear once, or never (protocols, section 6).

A thing is made before the commit, under a name that belongs to one attempt alone; the commit of its *register row* is the
permission to keep it. Whoever adds a kind of thing writes `Things` for it; the protocol around it is the library's.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from onceonly.model.identity import Identity


class Thing(Struct, frozen=True, kw_only=True):
    """Something to make: its kind (such as "blob"), its name, which belongs to this attempt alone, and its data."""

    kind: str
    name: str
    data: bytes
    content_type: str = "application/octet-stream"


class Things(Protocol):
    """One kind of thing, in one place: a container of blobs, a folder."""

    async def create(self, thing: Thing) -> None:
        """Make it, durably. A second call with the same name and data is fine. Raises CommitRefused, Failed, Unknown."""

    async def delete(self, name: str) -> None:
        """Unmake it; harmless when it was never made. Raises Failed, Unknown."""

    async def read(self, name: str) -> bytes | None:
        """Give its data, or None. Raises Failed, Unknown."""

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List what was made; for people and tests."""


class Row(Struct, frozen=True, kw_only=True):
    """A register row: one prepared thing of one attempt of one message.

    `unit` is the entity's key (empty for others), `at` when it was opened, in milliseconds since 1970.
    """

    identity: Identity
    unit: str
    kind: str
    name: str
    at: int = 0
    cancelled: bool = False


class Register(Protocol):
    """The rows, kept in the endpoint's store: a commit takes its own rows away in the same write.

    A commit whose row is cancelled or gone is a Conflict.
    """

    async def open(self, rows: Sequence[Row]) -> None:
        """Write new rows, durably, before their things are made. Raises Conflict, Failed, Unknown."""

    async def cancel(self, row: Row) -> bool:
        """Make a row cancelled; False when there is none any more: then its thing was published. Raises Failed, Unknown."""

    async def remove(self, row: Row) -> None:
        """Remove a cancelled row, after its thing was unmade; harmless when it is gone. Raises Failed, Unknown."""

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Row, ...]:
        """Give the rows of these messages. Raises Failed, Unknown."""

    async def old(self, older_than: int, limit: int) -> tuple[Row, ...]:
        """List rows opened before `older_than` (milliseconds since 1970), for the sweeper. Raises Failed, Unknown."""
