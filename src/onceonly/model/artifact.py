"""Artifacts: effects other than messages, made before the commit that permits them (protocols, section 6)."""

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Headers

__all__ = ["Artifact", "Reservation"]


class Artifact(Struct, frozen=True, kw_only=True):
    """Something to make: its kind (such as "blob"), its name, which begins with the attempt's id, and its data.

    `headers` go with it where its kind has such.
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
