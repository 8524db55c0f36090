"""What a handler decided, what is committed of it, and what came of dispatching it."""

from enum import Enum

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Send
from onceonly.model.thing import Thing
from onceonly.model.token import Token

Effect = Send
"""What is dispatched after the commit: messages. Things, such as blobs, are made before it."""


class Decision(Struct, frozen=True):
    """The effects one handler captured, in order, and the things it wants made. Its state changes sit in the unit."""

    effects: tuple[Effect, ...] = ()
    things: tuple[Thing, ...] = ()


class Record(Struct, frozen=True):
    """A decision as committed: the message it answers, and the effects still to dispatch.

    `unit` is the key of the unit it was committed in (an entity's, empty elsewhere). `token` is the one its message came with,
    `minted` are those that its own messages carry. `attempt` and `things` belong to the attempt that commits it, and are not
    stored: the things to make, and the register row that permits them.
    """

    identity: Identity
    effects: tuple[Effect, ...] = ()
    unit: str = ""
    token: str = ""
    minted: tuple[Token, ...] = ()
    attempt: str = ""
    things: tuple[Thing, ...] = ()


class Answer(Enum):
    """What a dispatched effect came to. Only what the other side said for sure is TAKEN or REFUSED."""

    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"
