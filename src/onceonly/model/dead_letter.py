"""A message given up on, kept for a person."""

from msgspec import Struct
from msgspec.structs import force_setattr

from onceonly.model.escaped import readable, readable_headers
from onceonly.model.identity import hash_of
from onceonly.model.message import Failure, Headers, Message


class DeadLetter(Struct, frozen=True, kw_only=True):
    """What a person needs to decide: the message as it came, why it was given up, and what happened before.

    Headers and reason are made storable: what was not UTF-8 is readable, and its exact bytes follow in further headers.
    `message` is None when the delivery had no identity. `finish_only` means that the handler's work is committed and only
    its effects could not be sent: retrying dispatches them without running the handler. `at` is when it was stored,
    milliseconds since 1970, set by the adapter unless it is there: an imported letter keeps it.
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
        """Name this letter, 32 hexadecimal digits: the same for every copy with the same body."""
        endpoint = self.endpoint.encode()
        if self.message is None:
            flat = [part.encode() for pair in self.headers for part in pair]
            return hash_of(endpoint, b"delivery", *flat, self.body).hex()
        message = self.message
        return hash_of(endpoint, b"message", message.source.encode(), message.id.encode(), message.fingerprint).hex()
