"""Messages, the deliveries that bring them, and the sends that carry them away."""

from collections.abc import Hashable
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from onceonly.model.identity import Identity, fingerprint, instant_in
from onceonly.model.ring import INSTANT, read_instant
from onceonly.model.token import TOKEN

__all__ = ["Delivery", "Failure", "FailureKind", "Headers", "Message", "Send", "Unreadable"]

Headers = tuple[tuple[str, str], ...]
"""Names and values, in the order of arrival. A name may occur more than once."""


class Message(Struct, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """One logical message: CloudEvents attributes and a body. All copies carry the same (source, id).

    `time` is RFC 3339 text or empty. `extensions` are CloudEvents extension attributes (lower-case names), such as
    `causationid`, `conversationid`, `replyto`, `traceparent`; `headers` are the transport's own headers, kept as they came.
    `unit` is the key of the entity that its handler works on, as the endpoint reads it; empty for others, and never sent.
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
        """What makes this message itself."""
        return Identity(self.source, self.id)

    @cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes of the body's hash."""
        return fingerprint(self.body)

    @cached_property
    def instant(self) -> int:
        """When its sender stored it, or wants it delivered: milliseconds since 1970, from its id; 0 when that contains none."""
        return self._own_instant or 0

    @cached_property
    def former_instant(self) -> int:
        """By which instant a version that reads it from the header claims this message; 0 when its id says where it is."""
        return read_instant(self.extension(INSTANT)) if self._own_instant is None else 0

    @cached_property
    def _own_instant(self) -> int | None:
        return instant_in(self.identity)

    @property
    def token(self) -> str:
        """The token it came with, or empty."""
        return self.extension(TOKEN)

    def extension(self, name: str, default: str = "") -> str:
        """Give one CloudEvents extension attribute, or `default`."""
        return next((value for key, value in self.extensions if key == name), default)


class FailureKind(StrEnum):
    """Why a message did not get through. LATER and LOCKED are not counted; UNKNOWN is when it repeats; REJECTED is final.

    LOCKED and UNKNOWN are never stored: histories hold LATER and COMMIT in their place, which older versions can read.
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


class Failure(Struct, frozen=True, kw_only=True):
    """One failure of a message's own, never of the systems around it.

    `at` is when it was judged, milliseconds since 1970, 0 before; `delay` is what a handler asked to wait, in seconds
    (kind LATER only).
    """

    kind: FailureKind
    reason: str
    traceback: str = ""
    at: int = 0
    delay: float = 0


class Send(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message on its way out: the effect that every handler may have, and the form of a retry copy.

    `to` names an endpoint (a command: it must be routable) or is empty (an event: whoever subscribed gets it, and nobody
    is fine). `due` is the instant before which it is not delivered, milliseconds since 1970. `attempts`, `history`, `alone`
    and `held` are carried by retry copies only: how often the message failed, its last failures, whether it must run with
    its process to itself because a process died that held it, and how many processes died that only held it.
    """

    message: Message
    to: str = ""
    due: int = 0
    attempts: int = 0
    history: tuple[Failure, ...] = ()
    alone: bool = False
    held: int = 0


class Delivery(Struct, frozen=True, kw_only=True):
    """One arrival of one copy, as the transport saw it; what gets acknowledged or released.

    `receipt` is the transport's own handle. `suspect` says that it came again although nobody released it, so the process
    that held it may have been killed by it. `attempts`, `history`, `alone` and `held` are those of the copy
    that arrived.
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
    """Why a delivery cannot become a message of this endpoint; `message` is there when at least its identity is known."""

    reason: str
    message: Message | None = None
