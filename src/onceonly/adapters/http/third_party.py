"""Services that are not ours, over HTTP: a request with its key, and what each answer means.

Nothing is repeated here: the message with the call comes again. A service that fails is left alone for a while, so that a
backlog does not wait for its time-out again and again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime

import httpx

from onceonly.adapters.http.client import Tell, opened_client, own_headers, read_limited
from onceonly.model.errors import CommitRefused, HandlerFailed, OnceOnlyError, OutcomeUnknown, PeerAway, Reject, error_text
from onceonly.model.message import Failure, FailureKind
from onceonly.model.remote import Peer, Response, third_party_at
from onceonly.model.third_party import ApiCall, IdempotencyKey, is_final, outcome_unknown
from onceonly.ports.environment import Clock

FAILURES = 5
"""After this many failures without a success between them, a service is left alone."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 60_000
LONGEST_WAIT_MS = 3_600_000
"""The longest time, in milliseconds, that a service may ask for by Retry-After."""
KNOWN = 1_000
"""The most responses that a process remembers until their messages are handled."""


class _Health:
    """Whether one service is to be called now."""

    def __init__(self) -> None:
        self.closed_until = 0
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = self.closed_until = 0

    def failed(self, now: int, wait: int) -> None:
        """Count a failure; `wait` are the milliseconds that the service asked for, or 0."""
        self._failures += 1
        more = self._failures - FAILURES
        pause = min(FIRST_PAUSE_MS << min(more, 10), LONGEST_PAUSE_MS) if more >= 0 else 0
        self.closed_until = max(self.closed_until, now + max(wait, pause))


class HttpThirdParties:
    """The services of one endpoint, each by its URL: the ThirdParties port. `tell` hears of those that fail."""

    def __init__(self, client: httpx.AsyncClient, peers: Sequence[Peer], *, clock: Clock, tell: Tell) -> None:
        self._client = client
        self._peers = peers
        self._clock = clock
        self._tell = tell
        self._health = {peer.url: _Health() for peer in peers}
        self._slots = {peer.url: asyncio.Semaphore(peer.at_once) for peer in peers}
        self._known: OrderedDict[str, Response] = OrderedDict()

    async def execute(self, calls: Sequence[ApiCall]) -> tuple[Response | OnceOnlyError, ...]:
        return tuple(await asyncio.gather(*[self._execute(call) for call in calls]))

    async def find(self, call: ApiCall) -> Response | OnceOnlyError | None:
        peer = third_party_at(call.url, self._peers)
        if peer is None or peer.lookup is None:
            how = "Look it up at the service. If it was not executed, edit the message: set a new `key`, and `until` to 0"
            return outcome_unknown(call, f"{how}, or give its Peer a lookup=")
        try:
            async with asyncio.timeout(peer.timeout):
                found = await peer.lookup(call)
        except Reject as error:
            return outcome_unknown(call, f"lookup= rejected it: {error}")
        except Exception as error:  # noqa: BLE001 - a function of the user's
            self._tell(peer.url, f"lookup= raised {error_text(error)}")
            return PeerAway(f"{peer.url}: lookup= raised {error_text(error)}", peer.url)
        if found is None or isinstance(found, Response):
            return found
        reason = f"lookup= of {peer.url} must return a Response or None, not {type(found).__name__}"
        return HandlerFailed(Failure(kind=FailureKind.REJECTED, reason=reason))

    async def _execute(self, call: ApiCall) -> Response | OnceOnlyError:
        known = self._known.get(call.key)
        if known is not None:  # the unit of its message was not committed, and runs again
            return known
        try:
            response = await self._ask(call)
        except (CommitRefused, PeerAway) as error:
            return error
        self._known[call.key] = response
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        return response

    async def _ask(self, call: ApiCall) -> Response:
        """Send a request, unless its service is to be left alone. Raises PeerAway, CommitRefused."""
        peer = third_party_at(call.url, self._peers)
        if peer is None:
            raise CommitRefused(f"{call.url[:200]} belongs to no peer with a style: add it to Endpoint(..., peers=[...])")
        health = self._health[peer.url]
        wait = health.closed_until - self._clock.now()
        if wait > 0:
            raise PeerAway(f"{peer.url} is left alone for {wait / 1000:.0f} s more", peer.url, wait / 1000)
        try:
            async with self._slots[peer.url], asyncio.timeout(peer.timeout):
                response = await self._exchange(peer, call)
        except CommitRefused:
            raise
        except PeerAway as error:
            raise self._failed(peer, str(error), error.delay) from error
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OutcomeUnknown) as error:
            reason = str(error) or f"no answer within {peer.timeout:g} s ({type(error).__name__})"
            raise self._failed(peer, reason, 0.0) from error
        health.succeeded()
        self._tell(peer.url, "")
        return response

    def _failed(self, peer: Peer, reason: str, delay: float) -> PeerAway:
        self._health[peer.url].failed(self._clock.now(), round(delay * 1000))
        self._tell(peer.url, reason)
        return PeerAway(f"{peer.url}: {reason}", peer.url, delay)

    async def _exchange(self, peer: Peer, call: ApiCall) -> Response:
        """Send a request. Raises PeerAway for an answer that is not final, CommitRefused for one that is of no use."""
        sent: dict[str, str] = {**own_headers(peer), **dict(call.headers)}
        if call.content_type:
            sent["content-type"] = call.content_type
        if isinstance(peer.style, IdempotencyKey):
            sent[peer.style.header] = call.key
        async with self._client.stream(call.method, call.url, headers=sent, content=call.body) as answer:
            status = answer.status_code
            if 300 <= status < 400:  # noqa: PLR2004 - HTTP's redirects
                where = answer.headers.get("location", "")[:200]
                raise CommitRefused(f"{call.url[:200]} redirects to {where!r} ({status}): call the service at its own URL")
            if is_final(status, peer.style):
                kind = answer.headers.get("content-type", "application/octet-stream")
                return Response(status=status, body=await read_limited(answer), content_type=kind)
            words = (await _beginning(answer)).decode(errors="replace").strip()
            delay = _retry_after(answer.headers, self._clock.now())
        raise PeerAway(f"answered {call.method} with status {status}: {words}".rstrip(": "), peer.url, delay)


async def _beginning(answer: httpx.Response) -> bytes:
    """Return the first bytes of a body, for a reason."""
    async for portion in answer.aiter_bytes(200):
        return portion
    return b""


def _retry_after(headers: Mapping[str, str], now: int) -> float:
    """Return for how many seconds a service wants to be left alone (RFC 9110, section 10.2.3); 0 if it does not say."""
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        wait = int(given[:9]) * 1000
    else:
        try:
            wait = round(parsedate_to_datetime(given).timestamp() * 1000) - now
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return max(0, min(wait, LONGEST_WAIT_MS)) / 1000


@asynccontextmanager
async def open_third_parties(peers: Sequence[Peer], *, clock: Clock, tell: Tell) -> AsyncIterator[HttpThirdParties]:
    """Return the services; connects to none of them. What the environment says about proxies does not count."""
    async with opened_client(peers) as client:
        yield HttpThirdParties(client, peers, clock=clock, tell=tell)
