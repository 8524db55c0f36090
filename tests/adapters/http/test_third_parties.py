"""Services that are not ours, over real HTTP: what each answer means, and when a service is left alone."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from email.utils import formatdate

import pytest

from onceonly import AtLeastOnce, IdempotencyKey, Peer, Reject, Response, SetupError
from onceonly.adapters.http.third_party import FAILURES, HttpThirdParties, open_third_parties
from onceonly.model.errors import CommitRefused, HandlerFailed, OnceOnlyError, PeerAway
from onceonly.model.remote import LARGEST
from onceonly.model.third_party import ApiCall, PeerLookup, PeerStyle
from onceonly_conformance.clock import ManualClock


class Service:
    """Answers each connection with the next of these bytes, or never."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.asked: list[str] = []
        self.told: list[str] = []
        self.url = ""
        self.clock = ManualClock()
        self.calls: HttpThirdParties
        self.at_once = self.most_at_once = 0
        self.held: asyncio.Event | None = None

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer one connection."""
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length")), 0)
        self.asked.append(head + (await reader.readexactly(length)).decode())
        if self.held is not None:
            await self.held.wait()
        self.at_once -= 1
        if self.answers:
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()
        else:
            await reader.read()
        writer.close()

    def call(self, key: str = "k1", path: str = "/charges") -> ApiCall:
        """Make a call."""
        headers = (("x-trace", "7"),)
        return ApiCall(
            url=f"{self.url}{path}",
            method="POST",
            key=key,
            since=0,
            until=10,
            body=b"a=1",
            content_type="application/x-www-form-urlencoded",
            headers=headers,
        )

    async def ask(self, key: str = "k1") -> Response | OnceOnlyError:
        """Make it once."""
        (found,) = await self.calls.execute([self.call(key)])
        return found


@asynccontextmanager
async def playing(
    *, style: PeerStyle | None = None, seconds: float = 10.0, lookup: PeerLookup | None = None, at_once: int = 8
) -> AsyncIterator[Service]:
    """Start the service, and open it as a peer."""
    service = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    peer = Peer(
        service.url,
        headers={"authorization": "Bearer secret"},
        timeout=seconds,
        style=style or IdempotencyKey(),
        lookup=lookup,
        at_once=at_once,
    )
    opened = open_third_parties([peer], clock=service.clock, tell=lambda _, reason: service.told.append(reason))
    async with server, opened as service.calls:
        yield service


def answer(status: int, body: bytes = b"", headers: str = "") -> bytes:
    """Write an answer."""
    return f"HTTP/1.1 {status} Status\r\n{headers}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize("status", [200, 201, 204, 400, 402, 403, 404, 410, 422])
async def test_a_final_answer_is_a_response(status: int) -> None:
    """With its body, where it has one."""
    async with playing() as service:
        service.answers = [answer(status, b"" if status == 204 else b'{"a":1}')]
        found = await service.ask()
        assert isinstance(found, Response)
        assert found.status == status
        assert service.told == [""]


@pytest.mark.parametrize("status", [401, 407, 408, 409, 425, 429, 500, 502, 503, 599])
async def test_what_is_not_final_is_an_absence(status: int) -> None:
    """Whether the request was executed or not."""
    async with playing() as service:
        service.answers = [answer(status, b"words")]
        found = await service.ask()
        assert isinstance(found, PeerAway)
        assert service.told == [f"answered POST with status {status}: words"]


async def test_which_statuses_are_in_flight_is_a_setting() -> None:
    """Some services have a meaning of their own for 409."""
    async with playing(style=IdempotencyKey(in_flight=(423,))) as service:
        service.answers = [answer(409), answer(423)]
        assert isinstance(await service.ask("a"), Response)
        assert isinstance(await service.ask("b"), PeerAway)


async def test_the_request_has_its_key_and_the_headers_of_the_peer() -> None:
    """And its own body and headers."""
    async with playing() as service:
        service.answers = [answer(200)]
        await service.ask()
        (asked,) = service.asked
        assert asked.startswith("POST /v1/charges HTTP/1.1\r\n")
        lines = asked.lower().split("\r\n")
        assert {"idempotency-key: k1", "authorization: bearer secret", "x-trace: 7"} <= set(lines)
        assert "content-type: application/x-www-form-urlencoded" in lines
        assert lines[-1] == "a=1"


async def test_a_service_without_keys_gets_none() -> None:
    """It would not know what to do with one."""
    async with playing(style=AtLeastOnce()) as service:
        service.answers = [answer(200)]
        await service.ask()
        assert "idempotency-key" not in service.asked[0].lower()


async def test_a_redirect_is_not_followed() -> None:
    """It says where it leads, and counts as a failure of the message."""
    async with playing() as service:
        service.answers = [answer(307, headers="location: http://evil.example/\r\n")]
        found = await service.ask()
        assert isinstance(found, CommitRefused)
        assert "redirects to 'http://evil.example/' (307)" in str(found)
        assert len(service.asked) == 1


async def test_a_response_that_is_too_long_is_refused() -> None:
    """It could not be stored."""
    async with playing() as service:
        service.answers = [answer(200, b"x" * (LARGEST + 1))]
        assert isinstance(await service.ask(), CommitRefused)


async def test_a_service_that_does_not_answer_in_time_is_away() -> None:
    """The reason names the time."""
    async with playing(seconds=0.05) as service:
        found = await service.ask()
        assert isinstance(found, PeerAway)
        assert "no answer within 0.05 s" in str(found)


async def test_a_url_of_no_peer_is_not_called() -> None:
    """Also if it only looks like one of a peer."""
    async with playing() as service:
        (found,) = await service.calls.execute([service.call(path="/../admin")])
        assert isinstance(found, CommitRefused)
        assert not service.asked


@pytest.mark.parametrize(
    ("given", "seconds"), [("7", 7.0), ("Thu, 01 Jan 1970 00:00:09 GMT", 0.0), ("x", 0.0), ("999999", 3600.0)]
)
async def test_retry_after_is_respected(given: str, seconds: float) -> None:
    """Until then no request is sent; an hour at most."""
    async with playing() as service:
        service.answers = [answer(429, headers=f"retry-after: {given}\r\n"), answer(200)]
        found = await service.ask()
        assert isinstance(found, PeerAway)
        assert found.delay == seconds
        if seconds:
            assert isinstance(await service.ask("other"), PeerAway)
            assert len(service.asked) == 1
        service.clock.advance(round(seconds * 1000))
        assert isinstance(await service.ask(), Response)


async def test_retry_after_may_be_a_date() -> None:
    """RFC 9110 has both."""
    async with playing() as service:
        now = service.clock.now() // 1000
        date = formatdate(now + 60, usegmt=True)
        service.answers = [answer(503, headers=f"retry-after: {date}\r\n")]
        found = await service.ask()
        assert isinstance(found, PeerAway)
        assert 59 <= found.delay <= 60


async def test_a_service_that_fails_is_left_alone_for_a_while() -> None:
    """The first call after it shows whether it works again."""
    async with playing() as service:
        service.answers = [answer(500)]
        for _ in range(FAILURES + 3):
            assert isinstance(await service.ask(), PeerAway)
        assert len(service.asked) == FAILURES
        service.clock.advance(1_000)
        assert isinstance(await service.ask(), PeerAway)
        assert len(service.asked) == FAILURES + 1
        service.clock.advance(1_000)
        assert isinstance(await service.ask(), PeerAway)
        assert len(service.asked) == FAILURES + 1  # twice as long now
        service.clock.advance(1_000)
        service.answers = [answer(200)]
        assert isinstance(await service.ask("a"), Response)
        assert isinstance(await service.ask("b"), Response)


async def test_a_response_is_not_asked_for_again_in_the_same_process() -> None:
    """The unit of its message may have to run again. Other keys have other responses."""
    async with playing() as service:
        service.answers = [answer(200, b"1"), answer(200, b"2")]
        assert await service.ask() == await service.ask()
        assert len(service.asked) == 1
        assert await service.ask("other") != await service.ask()


async def test_calls_at_the_same_time_are_limited() -> None:
    """The others wait for their turn."""
    async with playing(at_once=2) as service:
        service.answers = [answer(200)]
        service.held = asyncio.Event()
        asking = asyncio.create_task(service.calls.execute([service.call(str(number)) for number in range(5)]))
        while len(service.asked) < 2:  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.001)
        service.held.set()
        assert all(isinstance(found, Response) for found in await asking)
        assert service.most_at_once == 2


async def test_without_a_lookup_the_outcome_is_unknown() -> None:
    """The reason says which key to look for, and what to do."""
    async with playing() as service:
        found = await service.calls.find(service.call())
        assert isinstance(found, HandlerFailed)
        assert "idempotency key k1" in str(found)
        assert "Look it up at the service" in str(found)


async def test_a_lookup_that_fails_is_asked_again() -> None:
    """It may be that the service is away."""

    async def lookup(_: ApiCall) -> None:
        raise OSError("away")

    async with playing(lookup=lookup) as service:
        found = await service.calls.find(service.call())
        assert isinstance(found, PeerAway)
        assert service.told == ["lookup= raised OSError: away"]


@pytest.mark.parametrize(("left", "kind"), [(None, type(None)), (Response(), Response), ("yes", HandlerFailed)])
async def test_what_a_lookup_returns(left: object, kind: type) -> None:
    """A response, or None; all else is a mistake that a person must correct."""

    async def lookup(_: ApiCall) -> object:
        return left

    async with playing(lookup=lookup) as service:
        assert isinstance(await service.calls.find(service.call()), kind)


async def test_a_lookup_may_reject() -> None:
    """A person must decide."""

    async def lookup(_: ApiCall) -> None:
        raise Reject("two payments have this reference")

    async with playing(lookup=lookup) as service:
        found = await service.calls.find(service.call())
        assert isinstance(found, HandlerFailed)
        assert "two payments have this reference" in str(found)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: IdempotencyKey("a b"), "header must be the name of an HTTP header"),
        (lambda: IdempotencyKey(within=timedelta(minutes=14)), "from 15 minutes to 365 days"),
        (lambda: IdempotencyKey(within=3600), "from 15 minutes to 365 days"),  # type: ignore[arg-type]
        (lambda: IdempotencyKey(in_flight=(200,)), "statuses from 400 to 599"),
        (lambda: Peer("http://a/x", style="keys"), "style must be IdempotencyKey"),  # type: ignore[arg-type]
        (lambda: Peer("http://a/x", lookup=print), "lookup= needs style="),  # type: ignore[arg-type]
        (lambda: Peer("http://a/x", at_once=0), "at_once must be a number from 1 to 1000"),
    ],
)
def test_impossible_settings_are_refused(make: object, words: str) -> None:
    """With what is possible."""
    with pytest.raises(SetupError, match=words):
        make()  # type: ignore[operator]
