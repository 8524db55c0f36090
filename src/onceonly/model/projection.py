"""Projections: documents in other places that are written after the commit, and only by a newer version than the stored one."""

import re
from urllib.parse import quote

from msgspec import Struct

__all__ = ["ProjectedWrite"]

MOST_VERSION = 2**62
LONGEST_KEY = 512
"""Bytes of a key in UTF-8."""
MAX_BODY = 1024 * 1024
"""Bytes of a body: it is stored with the record until it is written to the projection."""
MOST_WRITES = 100
"""How many keys one message may write, in all projections."""
CONTENT_PREFIX = "sha256-"
"""What the keys begin with that are made from content. They have version 0 and are never deleted."""

_NAME = r"[a-z][a-z0-9_-]{0,62}"


class ProjectedWrite(Struct, frozen=True, omit_defaults=True):
    """A write of one key in a projection, which happens unless the stored version is the same or greater.

    `body` None deletes the key.
    """

    projection: str
    key: str
    version: int
    body: bytes | None = None
    content_type: str = ""

    @property
    def url(self) -> str:
        """A name of the write that logs and errors may show, without its key behind the last slash."""
        return f"projection:{self.projection}/{quote(self.key, safe='')}"


def is_projection_name(name: object) -> bool:
    """Return whether a projection can have this name: lower-case letters, digits, `_` and `-`, at most 63."""
    return isinstance(name, str) and re.fullmatch(_NAME, name) is not None
