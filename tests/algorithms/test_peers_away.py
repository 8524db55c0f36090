"""A peer that is away for an hour is an outage: nothing is counted, and only the messages that need it wait."""

import logging
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from onceonly.algorithms.remote_call import callers_of, responses_of
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitRefused, OnceOnlyError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.remote import HTTP, REQUEST, Response
from onceonly.ports.effects import Responses
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.observe.observed_ports import observed
from onceonly_conformance.ring_subject import at
from tests.algorithms.test_ring_delivery import Answering, Place

HOUR_MS = 3_600_000
DEAD, ALIVE = "http://dead.example/x", "http://alive.example/x"


class Peers:
    """The peers themselves."""

    def __init__(self, error: OnceOnlyError) -> None:
        self.error: OnceOnlyError | None = error
        self.asked: list[str] = []

    async def responses(self, urls: Sequence[str]) -> tuple[Response | OnceOnlyError | None, ...]:
        """Answer, unless it is away."""
        self.asked += urls
        return tuple(self.error if self.error and url.startswith(DEAD) else Response(body=b"") for url in urls)


class Effects(Answering):
    """What an endpoint with these peers does."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self.peers = peers

    async def responses(self, messages: Sequence[Message]) -> Responses:
        """Ask as an endpoint does."""
        return await responses_of(messages, self.peers)  # type: ignore[arg-type]


def following(message: Message, url: str) -> Message:
    """Make it follow a request up."""
    return replace(message, extensions=((REQUEST, url),))


async def test_a_peer_that_is_away_for_an_hour_counts_nothing_and_stops_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    """Messages of one batch: two need it, one needs another peer, one needs none."""
    caplog.set_level(logging.INFO)
    place = Place()
    peers = Peers(OutcomeUnknown("Connection refused"))
    place.ports = observed(place.ports._replace(effects=Effects(peers)), Logs())
    now = place.clock.now()
    waiting = [following(at(now, name), f"{DEAD}/{name}") for name in ("first", "second")]
    report = await place.deliver(waiting[0], at(now, "plain"), waiting[1], following(at(now, "other"), f"{ALIVE}/r"))
    assert sorted(place.handlers.handled) == ["other", "plain"]
    assert (report.handled, report.retried, report.failed, report.dead) == (2, 2, 0, 0)
    assert sorted(peers.asked[:3]) == sorted([f"{DEAD}/first", f"{DEAD}/second", f"{ALIVE}/r"])  # at the same time
    end = now + HOUR_MS
    while place.clock.now() < end:
        place.clock.advance(8_000)
        report = await place.deliver()
        assert (report.failed, report.dead, report.unknown) == (0, 0, 0)
    assert await place.reasons() == []
    said = [record.message for record in caplog.records]
    assert not [words for words in said if "failed" in words or "call " in words], said
    peers.error = None
    place.clock.advance(8_000)
    assert (await place.deliver()).handled == 2
    assert sorted(place.handlers.handled) == ["first", "other", "plain", "second"]


async def test_a_peer_that_answers_with_an_error_counts() -> None:
    """That is no outage: its message becomes a dead letter, with the answer."""
    place = Place()
    place.ports = place.ports._replace(effects=Effects(Peers(CommitRefused("answered GET with status 403"))))
    now = place.clock.now()
    await place.deliver(following(at(now, "first"), f"{DEAD}/first"))
    for _ in range(20):
        place.clock.advance(HOUR_MS)
        await place.deliver()
    (reason,) = await place.reasons()
    assert "403" in reason


def test_a_file_with_the_url_of_a_peer_in_its_name_waits_for_no_peer() -> None:
    """Only requests do. The name of a request ends with its peer's URL, and a file's name may, too."""
    name = f"1/a {DEAD}"
    records = [Record(Identity("shop", kind), artifacts=(Artifact(kind=kind, name=name, data=b""),)) for kind in ("blob", HTTP)]
    assert callers_of(DEAD, records) == {Identity("shop", HTTP)}


def test_an_attempt_asks_the_peer_of_any_of_its_artifacts() -> None:
    """Also if a file was made before the request, or another peer was asked first."""
    own = Artifact(kind=HTTP, name=f"1/a {DEAD}", data=b"")
    files = Artifact(kind="blob", name="1/b", data=b""), Artifact(kind=HTTP, name=f"1/c {ALIVE}", data=b"")
    records = [Record(Identity("shop", first.kind), artifacts=(first, own)) for first in files]
    assert callers_of(DEAD, records) == {Identity("shop", "blob"), Identity("shop", HTTP)}
    assert callers_of(ALIVE, records) == {Identity("shop", HTTP)}
