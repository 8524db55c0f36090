"""What a handler decided, what is committed of it, and what came of dispatching it."""

from enum import Enum

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Send

Effect = Send
"""Anything outside the store. Messages are the one kind so far; blobs and HTTP calls join this union."""


class Decision(Struct, frozen=True):
    """The effects one handler captured, in order. Its state changes sit in the unit."""

    effects: tuple[Effect, ...] = ()


class Record(Struct, frozen=True):
    """A decision as committed: the message it answers, and the effects still to dispatch."""

    identity: Identity
    effects: tuple[Effect, ...] = ()


class Answer(Enum):
    """What a dispatched effect came to. Only what the other side said for sure is TAKEN or REFUSED."""

    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"
