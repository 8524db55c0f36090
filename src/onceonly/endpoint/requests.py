"""Requests: what a handler has executed at another service, captured like a message; and the response to follow up."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from onceonly.formats.bodies import BodyError, body_kind, encode_body, type_name
from onceonly.formats.remote import OPERATION
from onceonly.formats.third_party import encode_call
from onceonly.model.artifact import Artifact
from onceonly.model.errors import InvalidEffect
from onceonly.model.message import Headers
from onceonly.model.remote import (
    HTTP,
    LARGEST,
    MOST_REQUESTS,
    Peer,
    RemoteRequest,
    Response,
    Verb,
    headers_problem,
    name_of,
    peer_of,
    third_party_at,
    url_of,
)
from onceonly.model.third_party import MARGIN, METHODS, ApiCall, FollowUp, HttpMethod, IdempotencyKey

_NOTHING: Any = object()


class RequestPlace(NamedTuple):
    """The services that an endpoint's handlers can ask, and the types of the messages that its handlers take.

    `third_parties` are those of the services that do not implement the protocol of docs/explanation/http.md.
    """

    peers: tuple[Peer, ...]
    types: frozenset[str]
    third_parties: tuple[Peer, ...] = ()


class CallSender(NamedTuple):
    """What a handler's calls of third parties need: the keys of its calls, by their number, and what sends them."""

    key: Callable[[str], str]
    now: int
    send: Callable[[bytes, str], None]
    """Sends the endpoint the body of a message that has a call made, of a peer at this URL."""


class Requests:
    """The requests of one handler's run. Valid until the handler ends."""

    def __init__(
        self,
        place: RequestPlace | None,
        attempt: str,
        response: Response | None,
        *,
        follow: Callable[[object, str], None],
        calls: CallSender,
    ) -> None:
        """Ask on behalf of this attempt; `follow` sends the endpoint a message that follows up the request at a URL."""
        self._calls = calls
        self._called = 0
        self._place = place
        self._attempt = attempt
        self._response = response
        self._follow = follow
        self._artifacts: list[Artifact] = []
        self._ended = False

    @property
    def response(self) -> Response:
        """The final response of the other service to the request that this handler's message follows up.

        Raises InvalidEffect if the message does not follow up a request.
        """
        if self._response is None:
            raise InvalidEffect(
                "this message has no response: only messages sent by post(..., then=...) or request(...) have one"
            )
        return self._response

    def request(  # noqa: PLR0913 - the parts of a request, by name
        self,
        method: HttpMethod,
        url: str,
        *,
        then: object,
        json: object = _NOTHING,
        form: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "application/octet-stream",
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Call a service that is not ours, if this handler is committed. Then handle `then` here.

        `url` is at or below the URL of a `Peer` with a `style`. At most one of `json` (what a message's body may be), `form` (a
        form, URL-encoded) and `content` (bytes, with their `content_type`) is the body. `headers` are sent with the request and
        stored, so secrets belong to `Peer(headers=...)`. `then` is a message for a handler of this endpoint, which finds the
        final response in `context.http.response`, also if its status is 4xx. Can be called in `async def` and `def` handlers.

        Returns the idempotency key of the call: the same each time this handler runs for this message. Nothing is sent before
        the commit. Raises InvalidEffect for a URL at none of these peers, and for a request that is too large or has more than
        one body.
        """
        self._require_open()
        what = f"cannot call {url!r:.200}"
        peer = third_party_at(url, self._third_parties)
        if peer is None:
            known = ", ".join(each.url for each in self._third_parties) or "none"
            raise InvalidEffect(f"{what}: it belongs to none of the endpoint's peers with a style= ({known})")
        if method not in METHODS:
            raise InvalidEffect(f"{what}: the method must be one of {', '.join(METHODS)}, not {method!r:.20}")
        if problem := headers_problem(headers or {}):
            raise InvalidEffect(f"{what}: {problem}")
        body, kind = _body_of(what, json=json, form=form, content=content, content_type=content_type)
        follow = self._followed(what, then)
        key = self._calls.key(f"call {self._called}")
        self._called += 1
        until = 0
        if isinstance(peer.style, IdempotencyKey):
            until = self._calls.now + (peer.style.within - MARGIN) // timedelta(milliseconds=1)
        call = ApiCall(
            url=url,
            method=method,
            key=key,
            since=self._calls.now,
            until=until,
            body=body,
            content_type=kind,
            headers=tuple((headers or {}).items()),
        )
        self._calls.send(encode_call(call, follow), peer.url)
        return key

    @property
    def _third_parties(self) -> tuple[Peer, ...]:
        return () if self._place is None else self._place.third_parties

    def _followed(self, what: str, then: object) -> FollowUp:
        """Write the message that follows a call up. Raises InvalidEffect."""
        known = body_kind(then.__class__)
        if self._place is None or known.type is None or known.type not in self._place.types:
            raise InvalidEffect(f"{what}: no handler of this endpoint handles {type(then).__name__}, its then=")
        try:
            encoded = known.encode(then)
        except BodyError as error:
            raise InvalidEffect(f"{what}: then= {error}") from error
        return FollowUp(type=known.type, body=encoded, content_type=known.content_type, class_name=known.class_name)

    async def post(self, url: str, body: object, *, then: object, headers: Mapping[str, str] | None = None) -> str:
        """Make another service execute a request once, if this handler is committed. Then handle `then` here.

        `url` is the URL of a peer followed by the name of an operation. `body` may be what a message's body may be. `then` is
        a message for a handler of this endpoint, which finds the response in `context.http.response`, also if its status is
        4xx. `headers` are sent with the request.

        Returns the URL of this one request. Nothing is executed before the commit. Raises InvalidEffect for a URL at none of
        the endpoint's peers, a request that is too large, and more than 4 requests to one peer.
        """
        place = self._require()
        peer, operation = self._peer_of(place, url)
        if problem := headers_problem(headers or {}):
            raise InvalidEffect(f"cannot send a request to {url!r:.200}: {problem}")
        if type_name(type(then)) not in place.types:
            raise InvalidEffect(
                f"cannot send a request to {url!r:.200}: no handler of this endpoint handles {type(then).__name__}, its then="
            )
        try:
            encoded, kind = encode_body(body)
        except BodyError as error:
            raise InvalidEffect(f"cannot send a request to {url!r:.200}: {error}") from error
        if len(encoded) > LARGEST:
            raise InvalidEffect(
                f"cannot send a request to {url!r:.200}: it is {len(encoded):,} bytes long; the limit is {LARGEST:,}"
            )
        count = sum(peer_of(artifact.name) == peer.url for artifact in self._artifacts)
        if count >= MOST_REQUESTS:
            raise InvalidEffect(
                f"a handler can send at most {MOST_REQUESTS} requests to {peer.url}: send messages and let their "
                "handlers send the others"
            )
        name = name_of(self._attempt, count, peer.url)
        self._follow(then, url_of(name))
        sent: Headers = (*((each.lower(), value) for each, value in (headers or {}).items()), (OPERATION, operation))
        self._artifacts.append(Artifact(kind=HTTP, name=name, data=encoded, content_type=kind, headers=sent))
        return url_of(name)

    def _end(self) -> tuple[tuple[Artifact, ...], tuple[RemoteRequest, ...]]:
        self._ended = True
        return tuple(self._artifacts), tuple(RemoteRequest(Verb.POST, url_of(artifact.name)) for artifact in self._artifacts)

    def _require_open(self) -> None:
        if self._ended:
            raise InvalidEffect("context.http was used after the handler ended: send requests while the handler runs")

    def _require(self) -> RequestPlace:
        self._require_open()
        if self._place is None:
            raise InvalidEffect(
                "this endpoint has no peers: list the services it may call, such as Endpoint(..., "
                'peers=["https://payments.example/onceonly"])'
            )
        if not self._attempt:
            raise InvalidEffect(
                "no request can be sent here: this attempt has no reservation, so the request could not be cleaned up"
            )
        return self._place

    def _peer_of(self, place: RequestPlace, url: object) -> tuple[Peer, str]:
        if isinstance(url, str):
            for peer in place.peers:
                if operation := peer.operation(url):
                    return peer, operation
        if third_party_at(url, place.third_parties):
            raise InvalidEffect(f"cannot post to {url!r:.200}: its peer has a style=. Use context.http.request('POST', ...)")
        known = ", ".join(f"{peer.url}/OPERATION" for peer in place.peers)
        raise InvalidEffect(f"cannot send a request to {url!r:.200}: it is not one of the peers of this endpoint, {known}")


def _body_of(
    what: str, *, json: object, form: Mapping[str, str] | None, content: bytes | None, content_type: str
) -> tuple[bytes, str]:
    """Return the body of a call and its media type, both empty without one. Raises InvalidEffect."""
    if (json is not _NOTHING) + (form is not None) + (content is not None) > 1:
        raise InvalidEffect(f"{what}: json=, form= and content= exclude each other: use one of them")
    body, kind = b"", ""
    if form is not None:
        body, kind = urlencode(form).encode(), "application/x-www-form-urlencoded"
    elif content is not None:
        body, kind = content, content_type
    elif json is not _NOTHING:
        try:
            body, kind = encode_body(json)
        except BodyError as error:
            raise InvalidEffect(f"{what}: {error}") from error
    if len(body) > LARGEST:
        raise InvalidEffect(f"{what}: its body is {len(body):,} bytes long; the limit is {LARGEST:,}")
    return body, kind


def decided_requests(requests: Requests) -> tuple[tuple[Artifact, ...], tuple[RemoteRequest, ...]]:
    """Close the requests of a handler. Returns the requests to store, and the calls that execute them."""
    return requests._end()  # noqa: SLF001 - for this library, not for handlers
