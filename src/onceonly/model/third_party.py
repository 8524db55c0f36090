"""Calls to services that know nothing of this library: how each of them recognizes a repeated request, and what is asked."""

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from onceonly.model.errors import HandlerFailed, SetupError
from onceonly.model.message import Failure, FailureKind, Headers, Message

CALL_TYPE = "onceonly.call"
"""The type of the message that has a call made. An endpoint sends it to itself."""
CALL = "onceonlycall"
"""The extension attribute of such a message: the URL of the peer that is called."""
ANSWERED = "application/vnd.onceonly.answered+json"
"""The media type of the message that follows a call up: its body holds that message's own body and the response."""
MARGIN = timedelta(minutes=10)
"""How long before the end of its time a key is not used any more. Clocks may differ by less than this."""
SHORTEST, LONGEST = timedelta(minutes=15), timedelta(days=365)
HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"
"""The names of headers that may be sent (RFC 9110, section 5.1)."""
METHODS = ("POST", "PUT", "PATCH", "DELETE", "GET")
HttpMethod = Literal["POST", "PUT", "PATCH", "DELETE", "GET"]
"""The methods of calls to services that are not ours."""


@dataclass(frozen=True)
class IdempotencyKey:
    """The service executes requests with the same key once, and answers each of them with the response of the first.

    * `header`: the header with the key, as in draft-ietf-httpapi-idempotency-key-header.
    * `within`: for how long the service remembers a key at least, 15 minutes to 365 days. After this time, less ten minutes for
      clocks that differ, no request is sent with the key again.
    * `in_flight`: the statuses with which the service answers while an earlier request with the key is in progress.

    Raises SetupError for impossible values.
    """

    header: str = "Idempotency-Key"
    within: timedelta = timedelta(hours=24)
    in_flight: Collection[int] = (409, 425)

    def __post_init__(self) -> None:
        if problem := _key_problem(self.header, self.within, self.in_flight):
            raise SetupError(f"IdempotencyKey: {problem}")


@dataclass(frozen=True)
class AtLeastOnce:
    """The service cannot recognize repeated requests: it may execute a request more than once, and at least once.

    A process that dies between the request and the commit of its response sends the request again. Put `context.effect_id(0)`
    into the request where the service stores a reference of its caller, so that repeated ones can be found.
    """


PeerStyle = IdempotencyKey | AtLeastOnce
"""How a service recognizes repeated requests."""


class ApiCall(Struct, frozen=True, kw_only=True):
    """A request to a service that is not a peer of the protocol. It is the same each time it is sent.

    * `key`: the idempotency key. It belongs to this one call.
    * `since`: when the handler asked for it, in milliseconds since 1970.
    * `until`: from when on it is not sent any more, in milliseconds since 1970; 0 for never.
    """

    url: str
    method: str
    key: str
    since: int
    until: int
    body: bytes = b""
    content_type: str = ""
    headers: Headers = ()


class FollowUp(Struct, frozen=True, kw_only=True):
    """The message that follows a call up, without the response: its type, its body, and the class of its sender, if any."""

    type: str
    body: bytes
    content_type: str
    class_name: str = ""


PeerLookup = Callable[[ApiCall], Awaitable[object]]
"""Finds out what became of a call. Returns its `Response`, or None if the service never executed it."""


def called_peer(message: Message) -> str:
    """Return the URL of the peer that a message has called; empty for every other message."""
    return message.extension(CALL)


def outcome_unknown(call: ApiCall, how: str) -> HandlerFailed:
    """Return the error of a call that becomes a dead letter. `how` is the advice for a person."""
    reason = (
        f"outcome unknown: {call.method} {call.url[:200]} has no final response, and the service may have forgotten the "
        f"idempotency key {call.key}, so the request is not sent again. {how}"
    )
    return HandlerFailed(Failure(kind=FailureKind.REJECTED, reason=reason))


_LATER = frozenset({401, 407, 408, 425, 429})
"""Errors of the client's that are not final: credentials that have expired, and requests that came too early or too often."""


def is_final(status: int, style: PeerStyle | None) -> bool:
    """Return whether a status is a service's last word: a success, or an error that the same request would get again."""
    if isinstance(style, IdempotencyKey) and status in style.in_flight:
        return False
    return 200 <= status < 300 or (400 <= status < 500 and status not in _LATER)  # noqa: PLR2004 - HTTP's classes


def _key_problem(header: object, within: object, in_flight: object) -> str:
    if not isinstance(header, str) or not re.fullmatch(HEADER_NAME, header):
        return f"header must be the name of an HTTP header, not {header!r:.100}"
    if not isinstance(within, timedelta) or not SHORTEST <= within <= LONGEST:
        return f"within must be a timedelta from 15 minutes to 365 days, not {within!r}"
    if not isinstance(in_flight, Collection) or not all(is_error_status(status) for status in in_flight):
        return f"in_flight must be statuses from 400 to 599, not {in_flight!r:.100}"
    return ""


def is_error_status(status: object) -> bool:
    return isinstance(status, int) and 400 <= status < 600  # noqa: PLR2004 - HTTP's errors
