"""Other services over HTTP: requests wait there as artifacts, and are executed, read and deleted by URL.

The protocol is in docs/explanation/http.md.

Nothing here is tried again: what is not said for sure, with the header of the protocol, is OutcomeUnknown.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx

from onceonly.adapters.http.client import Tell, opened_client, own_headers, read_limited
from onceonly.formats.remote import DEADLINE, PROTOCOL, STATUS, VERSION
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown, PeerAway
from onceonly.model.record import Answer
from onceonly.model.remote import MOST_REQUESTS, Peer, RemoteRequest, Response, Verb, name_of, url_of
from onceonly.ports.environment import Clock

ARRIVAL_MS = 600_000
"""Milliseconds within which a PUT must arrive, and for which a deleted request must not come back."""

_REFUSED = frozenset({400, 404, 409, 413, 415, 422})
"""What a PUT is answered that can never be taken."""
_LATER = frozenset({408, 425, 429})
"""What is not for good, although it is a 4xx."""
_TOO_LATE, _NOTHING = 410, 404
_ERRORS = {"PUT": _REFUSED | {_TOO_LATE}, "DELETE": frozenset[int]()}
"""The errors that are answers, where not every 4xx is one. All others, such as 403, are as if nothing was answered."""
_WITH_BODIES = frozenset({"PUT", "GET"})
"""The methods whose answers are read: of the others only the status counts."""
_is_status = re.compile(r"[24][0-9][0-9]").fullmatch


class _ProtocolAnswer(NamedTuple):
    """An answer that has the header of the protocol."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 - what HTTP calls success

    @property
    def is_final(self) -> bool:
        return self.is_success or (400 <= self.status < 500 and self.status not in _LATER)  # noqa: PLR2004 - it is stored

    def description(self, method: str) -> str:
        return f"answered {method} with status {self.status}: {self.body[:200].decode(errors='replace').strip()}".rstrip(": ")


class HttpRemote:
    """The peers of one endpoint, each by its URL: the ArtifactStore and Remote ports. `tell` hears of silent peers."""

    def __init__(self, client: httpx.AsyncClient, peers: Sequence[Peer], *, clock: Clock, tell: Tell) -> None:
        self._client = client
        self._peers = {peer.url: peer for peer in peers}
        self._clock = clock
        self._tell = tell

    async def create(self, artifact: Artifact) -> None:
        url = url_of(artifact.name)
        headers = {
            **dict(artifact.headers),
            "content-type": artifact.content_type,
            DEADLINE: str(self._clock.now() + ARRIVAL_MS),
        }
        reply = await self._request("PUT", url, headers=headers, body=artifact.data)
        if reply.is_success:
            return
        text = f"{_shown(url)} rejected the request: it {reply.description('PUT')}"
        if reply.status == _TOO_LATE:
            raise CommitFailed(f"{text}. It took too long, or the clocks differ by more than {ARRIVAL_MS // 60_000} minutes")
        raise CommitRefused(text)

    async def delete(self, name: str) -> None:
        await self._delete(url_of(name))

    async def read(self, name: str) -> bytes | None:
        response = await self.response(url_of(name))
        return None if response is None else response.body

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List what may be there: peers are asked nothing, so every name that the attempt could have used."""
        return tuple(name_of(prefix.removesuffix("/"), index, url) for url in self._peers for index in range(MOST_REQUESTS))

    async def perform(self, calls: Sequence[RemoteRequest]) -> tuple[Answer, ...]:
        return tuple(await asyncio.gather(*[self._perform(call) for call in calls]))

    async def responses(self, urls: Sequence[str]) -> tuple[Response | OnceOnlyError | None, ...]:
        return tuple(await asyncio.gather(*[self._response(url) for url in urls]))

    async def _response(self, url: str) -> Response | OnceOnlyError | None:
        try:
            return await self.response(url)
        except OnceOnlyError as error:
            return error

    async def response(self, url: str) -> Response | None:
        """Return the stored response of a request, or None. Raises CommitRefused, PeerAway."""
        reply = await self._request("GET", url)
        if reply.status == _NOTHING:
            return None
        status = reply.headers.get(STATUS, "")
        if not reply.is_success or not _is_status(status):
            raise CommitRefused(f"{_shown(url)} {reply.description('GET')}, without the header {STATUS}")
        kind = reply.headers.get("content-type", "application/octet-stream")
        return Response(status=int(status), body=reply.body, content_type=kind)

    async def _perform(self, call: RemoteRequest) -> Answer:
        try:
            if call.verb is Verb.DELETE:
                await self._delete(call.url)
                return Answer.TAKEN
            return Answer.TAKEN if (await self._request("POST", call.url)).is_final else Answer.UNKNOWN
        except CommitRefused as error:  # the peer is no longer configured: no request was sent, so `tell` was not called
            self._tell(call.url.rpartition("/")[0], str(error))
            return Answer.UNKNOWN
        except (CommitFailed, OutcomeUnknown):  # `tell` has heard why
            return Answer.UNKNOWN

    async def _delete(self, url: str) -> None:
        await self._request("DELETE", url, headers={DEADLINE: str(self._clock.now() + 2 * ARRIVAL_MS)})

    async def _request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> _ProtocolAnswer:
        """Ask once.

        Raises PeerAway for everything that is not an answer of the protocol, CommitRefused for a URL at no peer.
        """
        peer = self._peers.get(url.rpartition("/")[0])
        if peer is None:
            raise CommitRefused(
                f"{_shown(url)} does not belong to a peer of the endpoint: add it to Endpoint(..., peers=[...])"
            )
        try:
            reply = await self._exchange(peer, method, url, headers=headers or {}, body=body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OutcomeUnknown) as error:
            reason = str(error) or f"no answer to {method} within {peer.timeout:g} s ({type(error).__name__})"
            self._tell(peer.url, reason)
            raise PeerAway(f"{_shown(url)}: {reason}", peer.url) from error
        self._tell(peer.url, "")
        return reply

    async def _exchange(self, peer: Peer, method: str, url: str, *, headers: Mapping[str, str], body: bytes) -> _ProtocolAnswer:
        sent = {**own_headers(peer), **headers, PROTOCOL: VERSION}
        async with asyncio.timeout(peer.timeout), self._client.stream(method, url, headers=sent, content=body) as answer:
            status = answer.status_code
            if answer.headers.get(PROTOCOL) != VERSION:
                raise OutcomeUnknown(f"answered {method} with status {status}, without the header {PROTOCOL}: {VERSION}")
            reply = _ProtocolAnswer(status, answer.headers, await read_limited(answer) if method in _WITH_BODIES else b"")
        errors = _ERRORS.get(method)
        if not (reply.is_final if errors is None else reply.is_success or reply.status in errors):
            raise OutcomeUnknown(reply.description(method))
        return reply


@asynccontextmanager
async def open_remote(peers: Sequence[Peer], *, clock: Clock, tell: Tell) -> AsyncIterator[HttpRemote]:
    """Return the peers; connects to none of them. What the environment says about proxies does not count."""
    async with opened_client(peers) as client:
        yield HttpRemote(client, peers, clock=clock, tell=tell)


def _shown(url: str) -> str:
    return url[:200]
