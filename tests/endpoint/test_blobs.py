"""Blobs: what a handler creates is captured with its messages; impossible ones are refused at once."""

# ruff: noqa: ARG001 - handlers under test need not use what they are given

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import Context, Endpoint
from onceonly.endpoint import blobs
from onceonly.endpoint.blobs import Blobs
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidEffect
from onceonly.model.artifact import Artifact
from onceonly.model.errors import HandlerFailed, OutcomeUnknown
from onceonly.model.message import Failure, FailureKind
from onceonly.model.record import Decision
from onceonly.ports.effects import ArtifactStore
from tests.endpoint.harness import STILL, endpoint, incoming, resources

ATTEMPT = "a" * 32


@dataclass
class Order:
    """A message."""

    id: str


class Shelf:
    """Blobs that are there, or a place that is away."""

    def __init__(self, *, is_away: bool = False, **data: bytes) -> None:
        self._is_away = is_away
        self._data = data

    async def create(self, artifact: Artifact) -> None:
        """Make none: handlers only capture."""
        raise AssertionError(artifact.name)

    async def delete(self, name: str) -> None:
        """Unmake none."""
        raise AssertionError(name)

    async def read(self, name: str) -> bytes | None:
        """Return what is there."""
        if self._is_away:
            raise OutcomeUnknown("no answer")
        return self._data.get(name)

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List them."""
        return tuple(self._data)


def shop(work: Callable[[Blobs], Awaitable[object]], **settings: Any) -> Endpoint:
    """Make an endpoint whose handler does this with its blobs."""
    made = endpoint(**{"blobs": "folder:///var/lib/shop"} | settings)

    @made.handler
    async def take(order: Order, context: Context) -> None:
        """Work with blobs, and announce what came of it."""
        context.publish({"result": str(await work(context.blobs))}, type="done")

    return made


async def decided(made: Endpoint, *, attempt: str = ATTEMPT, artifacts: ArtifactStore | None = None) -> Decision:
    """Run the handler."""
    return await host_of(made).handlers(STILL, blobs=artifacts).handle(incoming(), await resources(), attempt)


async def refused(made: Endpoint, *, attempt: str = ATTEMPT, artifacts: ArtifactStore | None = None) -> Failure:
    """Run the handler, which must fail, and say how."""
    with pytest.raises(HandlerFailed) as caught:
        await decided(made, attempt=attempt, artifacts=artifacts)
    return caught.value.failure


async def test_what_is_created_is_decided_under_the_attempts_own_name() -> None:
    """The name to announce is the one it gets."""

    async def work(place: Blobs) -> str:
        await place.create("b.txt", bytearray(b"2"))
        return await place.create("bills/1.pdf", b"1", content_type="application/pdf")

    decision = await decided(shop(work))
    assert decision.artifacts == (
        Artifact(kind="blob", name=f"{ATTEMPT}/b.txt", data=b"2"),
        Artifact(kind="blob", name=f"{ATTEMPT}/bills/1.pdf", data=b"1", content_type="application/pdf"),
    )
    assert f"{ATTEMPT}/bills/1.pdf".encode() in decision.effects[0].message.body


async def test_a_handler_that_creates_none_decides_none() -> None:
    """Also one that only looked."""

    async def work(place: Blobs) -> None:
        pass

    assert (await decided(shop(work))).artifacts == ()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "a.",
        "a ",
        "a\\b",
        "c:d",
        "a\0",
        "a\n",
        "\ud800",
        "x" * 201,
        "a/" * 200 + "a",
        5,
    ],
)
async def test_a_name_that_not_every_place_takes_is_refused(name: Any) -> None:
    """Dead at once: it can never be made."""
    failed = await refused(shop(lambda place: place.create(name, b"")))
    assert failed.kind is FailureKind.REJECTED
    assert "cannot create the blob" in failed.reason


@pytest.mark.parametrize("name", ["a", ".a", "a b", "ä/ü.txt", "x" * 200, "x/" * 199 + "xx"])
async def test_other_names_are_fine(name: str) -> None:
    """Up to the limits."""
    (artifact,) = (await decided(shop(lambda place: place.create(name, b"")))).artifacts
    assert artifact.name == f"{ATTEMPT}/{name}"


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
async def test_two_blobs_that_no_folder_can_hold_are_refused(first: str, second: str) -> None:
    """The same name, or a file that would be a folder."""

    async def work(place: Blobs) -> None:
        await place.create(first, b"")
        await place.create(second, b"")

    assert (await refused(shop(work))).kind is FailureKind.REJECTED


async def test_data_must_be_bytes_of_a_size_that_can_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over the limit is refused when it is captured."""
    text: Any = "text"
    assert "data must be bytes, not a str" in (await refused(shop(lambda place: place.create("a", text)))).reason
    monkeypatch.setattr(blobs, "MAX_DATA", 3)
    assert (await decided(shop(lambda place: place.create("a", b"123")))).artifacts[0].data == b"123"
    assert "its data has 4 bytes; the limit is 3" in (await refused(shop(lambda place: place.create("a", b"1234")))).reason


async def test_one_message_can_have_so_many_blobs_and_no_more() -> None:
    """They are all held in memory until the commit."""

    async def work(place: Blobs, count: int) -> None:
        for number in range(count):
            await place.create(str(number), b"")

    most = blobs.MAX_BLOBS
    assert len((await decided(shop(lambda place: work(place, most)))).artifacts) == most
    assert "at most" in (await refused(shop(lambda place: work(place, most + 1)))).reason


@pytest.mark.parametrize("content_type", ["", "pdf", "a/b\r\nx: y", "text/plain; charset=ü", None])
async def test_an_impossible_content_type_is_refused(content_type: Any) -> None:
    """It becomes a header somewhere."""
    failed = await refused(shop(lambda place: place.create("a", b"", content_type=content_type)))
    assert "content_type must be a" in failed.reason


async def test_a_content_type_may_have_a_parameter() -> None:
    """Such as a charset."""
    content_type = "text/plain; charset=utf-8"
    (artifact,) = (await decided(shop(lambda place: place.create("a", b"", content_type=content_type)))).artifacts
    assert artifact.content_type == content_type


async def test_without_a_place_nothing_can_be_created_or_read() -> None:
    """Told with what to write."""
    for work in (lambda place: place.create("a", b""), lambda place: place.read("a")):
        failed = await refused(shop(work, blobs=None))
        assert failed.kind is FailureKind.REJECTED
        assert 'blobs="folder:///var/lib/shop"' in failed.reason


async def test_without_a_register_nothing_can_be_created() -> None:
    """Nobody could clean up after it."""
    failed = await refused(shop(lambda place: place.create("a", b"")), attempt="")
    assert "no reservation" in failed.reason


async def test_nothing_can_be_created_after_the_handler_has_ended() -> None:
    """It would be in nobody's decision."""
    kept: list[Blobs] = []

    async def work(place: Blobs) -> None:
        kept.append(place)

    await decided(shop(work))
    with pytest.raises(InvalidEffect, match="handler ended"):
        await kept[0].create("a", b"")


async def test_a_handler_reads_a_blob_by_the_name_that_announced_it() -> None:
    """Or learns that there is none."""
    there = Shelf(known=b"data")
    assert b"b'data'" in (await decided(shop(lambda place: place.read("known")), artifacts=there)).effects[0].message.body
    assert b"None" in (await decided(shop(lambda place: place.read("other")), artifacts=there)).effects[0].message.body


async def test_a_place_that_is_away_is_nobodys_fault() -> None:
    """The message comes again later, uncounted."""
    failed = await refused(shop(lambda place: place.read("known")), artifacts=Shelf(is_away=True))
    assert (failed.kind, failed.delay) == (FailureKind.LATER, blobs.RETRY_SECONDS)
