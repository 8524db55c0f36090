"""What the message journal stores: which message was handled or sent, when, where, and because of which other one."""

from msgspec import Struct

from onceonly.model.identity import Identity, claim_key, hash_of
from onceonly.model.message import Message

HANDLED, SENT = "handled", "sent"
CONVERSATION = "conversationid"


class JournalEvent(Struct, frozen=True, kw_only=True):
    """One event of one message at one endpoint. It has no body and no header values.

    `message` and `parent` are 16 bytes for each identity. The parent of a sent message is the message during whose handling it
    was sent; a handled message has none. `at` is in milliseconds since 1970, by the clock of the process.
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
