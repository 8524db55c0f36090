"""Requests to other services that are executed once: the peers, what is asked and answered, and what is left after a commit."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.model.message import Headers, Message
from onceonly.model.projection import ProjectedWrite
from onceonly.model.third_party import CALL, HEADER_NAME, AtLeastOnce, IdempotencyKey, PeerLookup, PeerStyle

MOST_REQUESTS = 4
"""How many requests one handler may make of one peer: this many names are deleted there when its attempt came to nothing."""
PeerHeaders = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""Headers of every request to a peer, or a function that returns them, called before each request."""

_OPERATION = r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}"
_URL = r"[\x21-\x7e]{1,1000}"
_VALUE = r"[\x20-\x7e\x80-\xff\t]{0,4000}"


@dataclass(frozen=True)
class Peer:
    """Another service at `url`, which handlers call.

    * `headers` are sent with every request, for example to authenticate the caller. A function is called before each request.
      They are never stored.
    * `timeout`: after this many seconds, a request has no answer.
    * `style`: how a service that is not ours recognizes repeated requests: `IdempotencyKey(...)` or `AtLeastOnce()`. None for
      one that implements the protocol of docs/explanation/http.md.
    * `lookup`: an async function that finds out what became of an `ApiCall` once its idempotency key cannot be used any more.
      It returns the `Response`, or None if the service never executed the call, which is then sent again. If it raises, it is
      called again later. If it raises `Reject`, the call becomes a dead letter.
    * `at_once`: the most calls of a process to this service at the same time, for a service with a `style`.

    Raises SetupError that lists all problems.
    """

    url: str
    headers: PeerHeaders = field(default_factory=dict, repr=False)
    timeout: float = 30.0
    style: PeerStyle | None = None
    lookup: PeerLookup | None = None
    at_once: int = 8

    def __post_init__(self) -> None:
        """Check, and drop the last slash."""
        problems = tuple(self._problems())
        if problems:
            raise SetupError("; ".join(f"Peer: {problem}" for problem in problems))
        object.__setattr__(self, "url", self.url.rstrip("/"))

    def operation(self, url: str) -> str:
        """Return the operation that a URL names at this peer, or an empty string."""
        base, _, name = url.rpartition("/")
        return name if base == self.url and is_operation(name) else ""

    @property
    def is_third_party(self) -> bool:
        """Whether it does not implement the protocol of docs/explanation/http.md."""
        return self.style is not None

    def covers(self, url: object) -> bool:
        """Return whether a URL is at this service, or below it. No part of its path may be `.` or `..`."""
        if not isinstance(url, str) or not re.fullmatch(_URL, url) or "#" in url or "\\" in url:
            return False
        path = url.partition("?")[0]
        if any(part.lower().replace("%2e", ".") in {".", ".."} for part in path.split("/")):
            return False
        return path == self.url or path.startswith(f"{self.url}/")

    def current_headers(self) -> Mapping[str, str]:
        return self.headers() if callable(self.headers) else self.headers

    def _problems(self) -> Iterator[str]:
        if not _is_plain(self.url):
            yield 'url must be an http or https URL without user and query, such as "https://payments.example/onceonly"'
        if not callable(self.headers) and (problem := headers_problem(self.headers)):
            yield problem
        if not 0 < self.timeout <= 3600:  # noqa: PLR2004 - an hour
            yield f"timeout must be a number of seconds above 0, at most an hour, not {self.timeout!r}"
        if self.style is not None and not isinstance(self.style, IdempotencyKey | AtLeastOnce):
            yield f"style must be IdempotencyKey(...), AtLeastOnce() or None, not {self.style!r:.100}"
        if self.lookup is not None and not isinstance(self.style, IdempotencyKey):
            yield "lookup= needs style=IdempotencyKey(...): only its keys cannot be used any more after a time"
        if not 1 <= self.at_once <= 1000:  # noqa: PLR2004 - connections
            yield f"at_once must be a number from 1 to 1000, not {self.at_once!r}"


def third_party_at(url: object, peers: Iterable[Peer]) -> Peer | None:
    """Return the third party at a URL. Where one is below another, it is the one with the longest URL."""
    found = (peer for peer in peers if peer.is_third_party and peer.covers(url))
    return max(found, key=lambda peer: len(peer.url), default=None)


def _is_plain(url: object) -> bool:
    """Return whether this is a URL that more can be put behind, and that holds no secret."""
    try:
        parts = urlsplit(url) if isinstance(url, str) and re.fullmatch(_URL, url) else None
    except ValueError:  # such as a bracket without its other half
        return False
    if parts is None or parts.query or parts.fragment or "@" in parts.netloc:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def name_of(attempt: str, index: int, peer: str) -> str:
    """Name one request of an attempt, as the thing that it is."""
    return f"{attempt}/{index} {peer}"


def url_of(name: str) -> str:
    request, _, peer = name.partition(" ")
    return f"{peer}/{request.replace('/', '.')}"


def peer_of(name: str) -> str:
    return name.partition(" ")[2]


def is_operation(name: object) -> bool:
    """Return whether an operation may be called this: it is the last part of a URL."""
    return isinstance(name, str) and re.fullmatch(_OPERATION, name) is not None


def headers_problem(headers: object) -> str:
    if not isinstance(headers, Mapping):
        return f"headers must map names to texts, not be a {type(headers).__name__}"
    for name, value in headers.items():
        if not isinstance(name, str) or not re.fullmatch(HEADER_NAME, name) or name.lower().startswith("onceonly-"):
            return f"the header {name!r:.100} cannot be set: use another name"
        if not isinstance(value, str) or not re.fullmatch(_VALUE, value):
            return f"the value of header {name!r} must be text on one line"  # and is not shown: it may be a password
    return ""


HTTP = "http"
"""The kind of artifact that a waiting request is."""
REQUEST = "onceonlyrequest"
"""The extension of a follow-up message that says where the response is."""


LARGEST = 1024 * 1024
"""Bytes of a request's body, and of a response's."""


class Verb(StrEnum):
    """What is left to do after a commit: have a request executed, have request and response forgotten, write a projection."""

    POST = "POST"
    DELETE = "DELETE"
    WRITE = "WRITE"


class RemoteRequest(Struct, frozen=True, omit_defaults=True):
    """One call to make after the commit, as often as it takes; `url` is that of one request, which belongs to one attempt.

    A call with a `write` goes to a projection, and not to a peer.
    """

    verb: Verb
    url: str
    write: ProjectedWrite | None = None


class Request(Struct, frozen=True, kw_only=True):
    """What is asked of another service: which of its operations, with what."""

    operation: str
    body: bytes
    content_type: str = "application/json"
    headers: Headers = ()


class Response(Struct, frozen=True, kw_only=True):
    """The response of another service: a status of 200 to 299 or of 400 to 499, and a body."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"

    @property
    def is_success(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300  # noqa: PLR2004 - what HTTP calls success

    def json(self, kind: Any = Any) -> Any:
        """Decode the body, as `kind` if given. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body, type=kind)


def requested(message: Message) -> str:
    """Return the URL of the request that a message follows up; empty for every other message."""
    return message.extension(REQUEST)


_ASKING = frozenset({REQUEST, CALL})


def asks(message: Message) -> bool:
    """Return whether another service is asked for something before the message is handled."""
    for name, _ in message.extensions:  # noqa: SIM110 - a generator for each message costs more
        if name in _ASKING:
            return True
    return False
