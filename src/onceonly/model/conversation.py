"""What the message journal stores: what happened to which message, when, where, and because of which other one."""

from msgspec import Struct

from onceonly.model.identity import Identity, claim_key, hash_of
from onceonly.model.message import Message

HANDLED, SENT = "handled", "sent"
DUPLICATE, REDISPATCHED, RETRIED = "duplicate", "redispatched", "retried"
DEAD_LETTER, REFUSED_OLD = "dead_letter", "refused_old"
RELAYED = "relayed"
EXACT = frozenset({HANDLED, SENT})
"""Outcomes that are committed with the handler's work. All others are written afterwards, and may be missing after a crash."""
CONVERSATION = "conversationid"


class JournalRun(Struct, frozen=True, kw_only=True):
    """A run of a handler: which attempt it was, 1 for the first, and its duration in microseconds."""

    attempt: int
    duration: int


class JournalEntry(Struct, frozen=True, kw_only=True):
    """What happened to a message outside of the transaction of its unit.

    * `at`: in milliseconds since 1970.
    * `attempt`: 1 for the first. 0 where attempts do not matter.
    * `duration`: that of the last run of its handler, in microseconds. None if there was none.
    * `error`: the class of the error that failed it, or a word for another reason. Empty without a failure.
    * `letter`: the key of its dead letter, empty if there is none.
    """

    message: Message
    outcome: str
    at: int
    attempt: int = 0
    duration: int | None = None
    error: str = ""
    letter: str = ""


class JournalEvent(Struct, frozen=True, kw_only=True):
    """One event of one message at one endpoint. It has no body and no header values.

    `message` and `parent` are 16 bytes for each identity. The parent of a sent message is the message during whose handling it
    was sent; a handled message has none. `at` is in milliseconds since 1970, by the clock of the process. `attempt`,
    `duration`, `error` and `letter` are those of `JournalEntry`.
    """

    conversation: bytes
    at: int
    message: bytes
    parent: bytes | None
    endpoint: str
    type: str
    outcome: str
    identity: Identity
    process: str
    attempt: int = 0
    duration: int | None = None
    error: str = ""
    letter: str = ""


class JournalPart(Struct, frozen=True, kw_only=True):
    """Events, the oldest first. `more` is whether there are more than were read, `is_full` whether events are lost now."""

    events: tuple[JournalEvent, ...] = ()
    more: bool = False
    is_full: bool = False


def conversation_key(message: Message) -> bytes:
    """Return 16 bytes for the conversation of a message. One that begins a conversation lends it its id."""
    return hash_of(b"conversation", (message.extension(CONVERSATION) or message.id).encode(errors="surrogatepass"))


def message_key(identity: Identity) -> bytes:
    """Return the 16 bytes under which the journal stores a message, the same at each endpoint."""
    return claim_key("", identity)
