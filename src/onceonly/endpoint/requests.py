"""Requests: what a handler has executed at another service, captured like a message; and the response to follow up."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from onceonly.formats.bodies import BodyError, encode_body, type_name
from onceonly.formats.remote import OPERATION
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
    url_of,
)


class RequestPlace(NamedTuple):
    """The services that an endpoint's handlers can ask, and the types of the messages that its handlers take."""

    peers: tuple[Peer, ...]
    types: frozenset[str]


class Requests:
    """The requests of one handler's run. Valid until the handler ends."""

    def __init__(
        self, place: RequestPlace | None, attempt: str, response: Response | None, follow: Callable[[object, str], None]
    ) -> None:
        """Ask on behalf of this attempt; `follow` sends the endpoint a message that follows up the request at a URL."""
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
            raise InvalidEffect("this message has no response: only messages sent by post(..., then=...) have one")
        return self._response

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

    def _require(self) -> RequestPlace:
        if self._ended:
            raise InvalidEffect("context.http was used after the handler ended: send requests while the handler runs")
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
        known = ", ".join(f"{peer.url}/OPERATION" for peer in place.peers)
        raise InvalidEffect(f"cannot send a request to {url!r:.200}: it is not one of the peers of this endpoint, {known}")


def decided_requests(requests: Requests) -> tuple[tuple[Artifact, ...], tuple[RemoteRequest, ...]]:
    """Close the requests of a handler. Returns the requests to store, and the calls that execute them."""
    return requests._end()  # noqa: SLF001 - for this library, not for handlers
