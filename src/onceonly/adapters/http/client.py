"""What both kinds of services need from HTTP: the client, the headers of a peer, and bodies up to a limit."""

from collections.abc import Callable, Mapping, Sequence

import httpx

from onceonly.model.errors import CommitRefused, OutcomeUnknown
from onceonly.model.remote import LARGEST, Peer, headers_problem

Tell = Callable[[str, str], None]
"""Told of a peer, and of what is wrong with it, empty when nothing is any more."""


def opened_client(peers: Sequence[Peer]) -> httpx.AsyncClient:
    """Return a client that sends each request once, follows no redirects, and ignores the environment."""
    transport = httpx.AsyncHTTPTransport(retries=0, trust_env=False)
    longest = max((peer.timeout for peer in peers), default=30.0)
    return httpx.AsyncClient(transport=transport, timeout=longest, follow_redirects=False, trust_env=False)


async def read_limited(answer: httpx.Response) -> bytes:
    """Read a body as far as it may be long. Raises CommitRefused."""
    body = bytearray()
    async for portion in answer.aiter_bytes():
        body += portion
        if len(body) > LARGEST:
            raise CommitRefused(f"the response is longer than {LARGEST:,} bytes, which is the limit")
    return bytes(body)


def own_headers(peer: Peer) -> Mapping[str, str]:
    """Return the headers that the user wants sent. Raises OutcomeUnknown if they are not known now."""
    try:
        headers = peer.current_headers()
    except Exception as error:
        raise OutcomeUnknown(f"its headers cannot be computed: {type(error).__name__}") from error
    if problem := headers_problem(headers):
        raise OutcomeUnknown(problem)
    return headers
