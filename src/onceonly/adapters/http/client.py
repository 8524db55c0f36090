"""What both kinds of services need from HTTP: the headers of a peer, bodies up to a limit, and who hears of failures."""

from collections.abc import Callable, Mapping

import httpx

from onceonly.model.errors import CommitRefused, OutcomeUnknown
from onceonly.model.remote import LARGEST, Peer, headers_problem

Tell = Callable[[str, str], None]
"""Told of a peer, and of what is wrong with it, empty when nothing is any more."""


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
