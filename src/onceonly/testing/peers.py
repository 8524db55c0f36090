"""The other services of a test: they return the responses that the test sets, execute each request once, and record it."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from onceonly.endpoint.http_app import rejection, response_for
from onceonly.formats.bodies import BodyError, codec_for, encode_body
from onceonly.formats.remote import OPERATION
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, HandlerFailed, OnceOnlyError, PeerAway, Reject
from onceonly.model.message import Headers
from onceonly.model.record import Answer
from onceonly.model.remote import MOST_REQUESTS, Peer, RemoteRequest, Response, Verb, name_of, peer_of, third_party_at, url_of
from onceonly.model.third_party import ApiCall, IdempotencyKey, is_final, outcome_unknown

_Body = TypeVar("_Body")


class Posted:
    """One request that another service has executed. Equal to a body with the same encoding: `t.posted == [Charge("1")]`.

    `url` and `headers` are those of the handler's request. `response` is its result.
    """

    def __init__(self, url: str, body: bytes, content_type: str, headers: Headers) -> None:
        self.url = url
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.response: Response | None = None

    def read(self, kind: type[_Body]) -> _Body:
        """Return the body as an object of this class. Raises BodyError if it cannot be decoded."""
        body: _Body = codec_for(kind).decode(self.body)
        return body

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Posted):
            return (self.url, self.body, self.headers) == (other.url, other.body, other.headers)
        try:
            return _comparable(*encode_body(other)) == _comparable(self.body, self.content_type)
        except BodyError:
            return False

    def __hash__(self) -> int:
        return hash((self.url, self.body))

    def __repr__(self) -> str:
        return f"<POST {self.url} {self.body[:200].decode(errors='replace')}>"


class SimulatedPeers:
    """The other services of an endpoint's handlers, as they are in a test. They survive the endpoint's crashes."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = tuple(peers)
        self._answers: dict[str, object] = {}
        self._waiting: dict[str, Posted] = {}
        self._responses: dict[str, Response] = {}
        self._buried: set[str] = set()
        self._executed: dict[str, Response] = {}
        self.posted: list[Posted] = []

    @property
    def left(self) -> int:
        """The number of requests and responses that are not deleted yet."""
        return len(self._waiting.keys() | self._responses.keys())

    def answer(self, url: str, answer: object) -> None:
        """Set the response at a URL for later requests. Raises ValueError."""
        third_party = third_party_at(url, self._peers)
        if not third_party and not any(peer.operation(url) for peer in self._peers):
            known = ", ".join(peer.url + ("" if peer.is_third_party else "/OPERATION") for peer in self._peers)
            raise ValueError(f"{url!r} is not a URL of a peer of the endpoint: use one of {known or '(no peers)'}")
        if not callable(answer) and not third_party:
            _checked(url, answer)
        self._answers[url] = answer

    async def create(self, artifact: Artifact) -> None:
        """Store a request. Raises AssertionError if the test set no response."""
        request, posted = url_of(artifact.name), _posted(artifact)
        if request in self._buried:
            raise CommitFailed("it was deleted before it arrived")
        if posted.url not in self._answers:
            raise AssertionError(f"{posted!r}: no answer is set; call t.answer({posted.url!r}, ...) before the request")
        self._waiting[request] = posted

    async def delete(self, name: str) -> None:
        """Delete a request and its response, and never accept it again."""
        self._delete(url_of(name))

    async def read(self, name: str) -> bytes | None:
        response = self._responses.get(url_of(name))
        return None if response is None else response.body

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        return tuple(
            name_of(prefix.removesuffix("/"), index, peer.url) for peer in self._peers for index in range(MOST_REQUESTS)
        )

    async def perform(self, calls: Sequence[RemoteRequest]) -> tuple[Answer, ...]:
        """Make the calls, each of which is answered for sure."""
        for call in calls:
            if call.verb is Verb.DELETE:
                self._delete(call.url)
            else:
                self._execute(call.url)
        return (Answer.TAKEN,) * len(calls)

    async def responses(self, urls: Sequence[str]) -> tuple[Response | None, ...]:
        return tuple(self._responses.get(url) for url in urls)

    async def execute(self, calls: Sequence[ApiCall]) -> tuple[Response | OnceOnlyError, ...]:
        """Execute calls of services with a style: each key once, where the service recognizes keys."""
        return tuple(self._call(call) for call in calls)

    async def find(self, call: ApiCall) -> Response | OnceOnlyError | None:
        """Ask the `lookup` of the peer."""
        lookup = self._third_party(call).lookup
        if lookup is None:
            return outcome_unknown(call, "The peer has no lookup=")
        try:
            found = await lookup(call)
        except Reject as error:
            return outcome_unknown(call, str(error))
        assert found is None or isinstance(found, Response), f"lookup= returned {found!r}"  # noqa: S101 - the user's test
        return found

    def _call(self, call: ApiCall) -> Response | OnceOnlyError:
        peer, url = self._third_party(call), call.url.partition("?")[0]
        has_keys = isinstance(peer.style, IdempotencyKey)
        if has_keys and call.key in self._executed:
            return self._executed[call.key]
        if url not in self._answers:
            raise AssertionError(f"{call.method} {url}: no answer is set; call t.answer({url!r}, ...) before the request")
        posted = Posted(call.url, call.body, call.content_type, call.headers)
        response = self._respond(posted, url)
        if not is_final(response.status, peer.style):
            return PeerAway(f"{url} answered with status {response.status}", peer.url)
        self._executed[call.key] = posted.response = response
        self.posted.append(posted)
        return response

    def _third_party(self, call: ApiCall) -> Peer:
        peer = third_party_at(call.url, self._peers)
        assert peer is not None, f"{call.url} belongs to no peer with a style"  # noqa: S101 - a handler's request has one
        return peer

    def _execute(self, url: str) -> None:
        posted = self._waiting.get(url)
        if posted is None or url in self._responses:
            return
        self._responses[url] = posted.response = self._respond(posted, posted.url)
        self.posted.append(posted)

    def _respond(self, posted: Posted, url: str) -> Response:
        answer: Any = self._answers[url]
        try:
            left = answer(posted) if callable(answer) else answer
        except Reject as error:
            return rejection(str(error))
        if isinstance(left, Response) and third_party_at(url, self._peers):
            return left
        try:
            return _checked(posted.url, left)
        except ValueError as error:
            raise AssertionError(str(error)) from error

    def _delete(self, url: str) -> None:
        self._waiting.pop(url, None)
        self._responses.pop(url, None)
        self._buried.add(url)


def _posted(artifact: Artifact) -> Posted:
    """Return the request that waits as an artifact."""
    headers = dict(artifact.headers)
    url = f"{peer_of(artifact.name)}/{headers.pop(OPERATION, '')}"
    return Posted(url, artifact.data, artifact.content_type, tuple(headers.items()))


def _checked(url: str, answer: object) -> Response:
    """Return the response for an answer. Raises ValueError for an answer that no service could return."""
    try:
        return response_for(answer)
    except HandlerFailed as error:
        raise ValueError(f"{url}: {error.failure.reason}") from error


def _comparable(body: bytes, content_type: str) -> object:
    """Return a body so that neither the order of fields nor blanks count where it is JSON."""
    return (content_type, json.loads(body) if content_type == "application/json" else body)
