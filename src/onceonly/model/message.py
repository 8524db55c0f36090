"""Messages, and how transports deliver and send them."""

from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, lru_cache

from msgspec import Struct

from onceonly.model.identity import Identity, fingerprint, instant_in
from onceonly.model.token import TOKEN

__all__ = ["HOPS", "PARTITION_KEY", "Delivery", "Failure", "FailureKind", "Headers", "Message", "Send", "Unreadable"]

PARTITION_KEY = "partitionkey"
"""The CloudEvents extension attribute that names a message's group or partition (CloudEvents, extensions/partitioning)."""

HOPS = "onceonlyhops"
"""The CloudEvents extension attribute with the number of handlers that a chain of messages has passed, in decimal digits."""
EXPIRES = "expirytime"
"""The CloudEvents extension attribute with the time after which a message must not be handled any more, as in RFC 3339."""
CLASS = "onceonlyclass"
"""The CloudEvents extension attribute with module and name of the sender's class, where the type is only its bare name."""
TRACE_PARENT, TRACE_STATE = "traceparent", "tracestate"
TRACE_CONTEXT = frozenset({TRACE_PARENT, TRACE_STATE})
"""The extension attributes with the trace context in which a message was created (CloudEvents, distributed tracing)."""
MOST_HOPS = 999_999_999
_MOST_DIGITS = len(str(MOST_HOPS))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Headers = tuple[tuple[str, str], ...]
"""Names and values, in the order of arrival. A name may occur more than once."""


class Message(Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """A message: CloudEvents attributes and a body. All of its copies have the same source and id.

    * `time`: text in the format of RFC 3339, or empty.
    * `extensions`: CloudEvents extension attributes with lower-case names, such as `causationid`, `conversationid`, `replyto`.
    * `headers`: the other headers, as they arrived.
    * `unit`: the key of the entity that the handler works on, else empty. It is not sent.
    """

    id: str
    source: str
    type: str
    body: bytes
    time: str = ""
    subject: str = ""
    datacontenttype: str = "application/json"
    extensions: Headers = ()
    headers: Headers = ()
    unit: str = ""

    @cached_property
    def identity(self) -> Identity:
        """Source and id."""
        return Identity(self.source, self.id)

    @cached_property
    def fingerprint(self) -> bytes:
        """8 bytes of a hash of the body."""
        return fingerprint(self.body)

    @cached_property
    def instant(self) -> int:
        """When its sender stored it, or wants it delivered, in milliseconds since 1970.

        It is part of the id. 0 if the id does not contain it.
        """
        return instant_in(self.identity) or 0

    @property
    def hops(self) -> int:
        """The number of handlers that the chain of messages before this one has passed. Retries do not count.

        0 for a message that no handler sent.
        """
        for name, text in self.extensions:  # a loop: this is on the hot path
            if name == HOPS:
                return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else 0
        return 0

    @cached_property
    def expires(self) -> int:
        """The time from which on it is not handled any more, in milliseconds since 1970. 0 for never."""
        return read_expiry(self.extension(EXPIRES))

    @property
    def partition_key(self) -> str:
        """The key of its group or partition on brokers that have one, or empty."""
        return self.extension(PARTITION_KEY)

    def header(self, name: str, default: str = "") -> str:
        """Return the first header of this name, whatever its case, or `default`."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), default)

    @property
    def token(self) -> str:
        """The token of the message, or empty."""
        return self.extension(TOKEN)

    def extension(self, name: str, default: str = "") -> str:
        """Return a CloudEvents extension attribute, or `default`."""
        return next((value for key, value in self.extensions if key == name), default)


class FailureKind(StrEnum):
    """Why handling or sending a message failed.

    LATER and LOCKED do not count as attempts. UNKNOWN counts when it repeats. REJECTED is final. Stored histories have LATER in
    place of LOCKED, and COMMIT in place of UNKNOWN. ALONE means that the message has to run in a unit of its own, and is never
    stored.
    """

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    COMMIT = "commit"
    KILLED = "killed"
    REFUSED = "refused"
    REJECTED = "rejected"
    LATER = "later"
    LOCKED = "locked"
    UNKNOWN = "unknown"
    ALONE = "alone"


class Failure(Struct, frozen=True, kw_only=True):
    """A failure of a message itself, not of a database or broker.

    `at` is the time of the decision about a retry, in milliseconds since 1970, or 0 before it. `delay` is for how many seconds
    a handler asked to wait, for LATER only. `handler` is the module and qualified name of the handler, or empty.
    """

    kind: FailureKind
    reason: str
    traceback: str = ""
    at: int = 0
    delay: float = 0
    handler: str = ""


class Send(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to send.

    * `to`: the endpoint of a command. Empty for an event, which is delivered to every subscriber of its type. Or the text of a
      destination that is not an endpoint, such as "queue:Sales"; see `onceonly.model.destination`.
    * `due`: the time before which it is not delivered, in milliseconds since 1970.
    * `formatted`: whether another format than CloudEvents has written headers, content type and body of the message. They are
      sent as they are, without attributes. A broker that has properties for id, type and conversation shows those.

    A retry copy has more fields. A transport carries them unchanged; `onceonly.formats.cloudevents` writes them as headers.

    * `attempts`, `history`: how often the message failed, and its last failures.
    * `alone`: whether it must run alone, because a process ended while its handler was running.
    * `held`: how many processes ended that had received it, and were not handling it.
    """

    message: Message
    to: str = ""
    due: int = 0
    attempts: int = 0
    history: tuple[Failure, ...] = ()
    alone: bool = False
    held: int = 0
    formatted: bool = False


class Delivery(Struct, frozen=True, kw_only=True):
    """One arrival of one copy of a message, as `Transport.receive` returns it.

    * `receipt`: what the transport needs to ack or release it.
    * `queue`: the name of the queue.
    * `suspect`: whether it is delivered again although no receiver released it. Its process may have died from it.
    * `attempts`, `history`, `alone`, `held`: those of the copy; see `Send`.
    """

    receipt: Hashable
    queue: str
    headers: Headers
    body: bytes
    suspect: bool = False
    attempts: int = 0
    history: tuple[Failure, ...] = ()
    alone: bool = False
    held: int = 0


class Unreadable(Struct, frozen=True, kw_only=True):
    """A delivery that is not a message for this endpoint, and the reason. `message` is set if its identity is known."""

    reason: str
    message: Message | None = None


def expiry_text(instant: int) -> str:
    """Write an instant, in milliseconds since 1970."""
    return (_EPOCH + instant * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(1000)
def read_expiry(text: str) -> int:
    """Read an instant, in milliseconds since 1970. 0 for none, and for what no clock shows: such a message never expires."""
    try:
        moment = datetime.fromisoformat(text)
        return max(1, (moment - _EPOCH) // _MILLISECOND) if moment.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0
