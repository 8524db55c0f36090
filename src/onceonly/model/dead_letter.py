"""A message given up on, kept for a person."""

from msgspec import Struct
from msgspec.structs import force_setattr

from onceonly.model.escaping import readable, readable_headers
from onceonly.model.identity import hash_of
from onceonly.model.message import Failure, Headers, Message


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What a person needs for a decision: the original message, the reason, and the earlier failures.

    Headers and reason are stored as readable UTF-8. Where they were not UTF-8, further headers contain the exact bytes.
    `message` is None if the delivery had no identity. `finish_only` means that the handler's work is committed, but its
    effects could not be sent. A retry dispatches the effects without running the handler. `at` is the time of storing, in
    milliseconds since 1970. The adapter sets it, except for an imported dead letter, which keeps its time.
    """

    endpoint: str
    reason: str
    headers: Headers
    body: bytes
    message: Message | None = None
    attempts: int = 0
    history: tuple[Failure, ...] = ()
    finish_only: bool = False
    at: int = 0

    def __post_init__(self) -> None:
        """Make it storable, whatever a sender wrote: a letter that cannot be stored would come again endlessly."""
        force_setattr(self, "headers", readable_headers(self.headers, exact=True))
        force_setattr(self, "reason", readable(self.reason))

    @property
    def key(self) -> str:
        """The key of this dead letter, 32 hexadecimal digits. It is the same for every copy with the same body."""
        if self.message is None:
            flat = [part.encode() for pair in self.headers for part in pair]
            return hash_of(self.endpoint.encode(), b"delivery", *flat, self.body).hex()
        return letter_key(self.endpoint, self.message)


class UnreadableLetter(DeadLetter, frozen=True, kw_only=True):
    """What stands for a dead letter that this version cannot read, so that it can be seen, exported and deleted.

    `stored_key` is its key in the store, and `body` the bytes stored there. It cannot be retried.
    """

    stored_key: str

    @property
    def key(self) -> str:
        return self.stored_key


def letter_key(endpoint: str, message: Message) -> str:
    """Return the key of the dead letter that a message becomes at an endpoint."""
    return hash_of(endpoint.encode(), b"message", message.source.encode(), message.id.encode(), message.fingerprint).hex()
