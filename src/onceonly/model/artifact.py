"""Artifacts: what is created outside of the store, before the commit that permits it (protocols, section 6)."""

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Headers

__all__ = ["Artifact"]


class Artifact(Struct, frozen=True, kw_only=True):
    """An artifact to create. `kind` is for example "blob". `name` begins with the id of the attempt that creates it.

    `headers` are stored with it, if its kind has headers.
    """

    kind: str
    name: str
    data: bytes
    content_type: str = "application/octet-stream"
    headers: Headers = ()


class Reservation(Struct, frozen=True, kw_only=True):
    """A register row: the permission of one attempt at one message to commit what it made.

    The names of all it makes begin with `attempt` and "/". `unit` is the entity's key (empty for others), `at` when the row
    was opened, in milliseconds since 1970.
    """

    identity: Identity
    unit: str
    attempt: str
    at: int = 0
    cancelled: bool = False
