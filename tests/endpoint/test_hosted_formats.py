"""Messages that a host hands over, read in the format of the endpoint."""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from onceonly import Context, Endpoint, PlainJson
from onceonly.formats.message_formats import MessageParts, WrittenMessage
from onceonly.model.message import Message
from tests.endpoint.hosted_harness import ONCE


@dataclass
class Placed:
    """What is handed over."""

    id: str


class Enveloped:
    """An envelope that needs headers and the content type, and has the body inside."""

    def read(self, headers: tuple[tuple[str, str], ...], body: bytes) -> MessageParts:
        """Read it."""
        found = dict(headers)
        if found.get("content-type") != "application/vnd.shop+json":
            raise ValueError(f"not of the shop: {found.get('content-type')}")
        envelope = msgspec.json.decode(body)
        return MessageParts(
            id=found.get("shop-id", ""),
            type=found["shop-type"],
            body=msgspec.json.encode(envelope["message"]),
            content_type="application/json",
        )

    def write(self, message: Message) -> WrittenMessage:
        """Write it."""
        body = msgspec.json.encode({"message": msgspec.json.decode(message.body)})
        headers = (("shop-id", message.id), ("shop-type", message.type))
        return WrittenMessage(body=body, headers=headers, content_type="application/vnd.shop+json")


FORMATS: dict[str, tuple[Any, dict[str, object], bytes]] = {
    "plain json": (PlainJson(id="x-id", type="x-type"), {"x-id": b"1", "x-type": "Placed"}, b'{"id": "a"}'),
    "field": (PlainJson(id="$.id", type=None), {}, b'{"id": "a"}'),
    "envelope": (
        Enveloped(),
        {"Shop-Other": 1, "shop-id": "1", "shop-type": "Placed", "content-type": "application/vnd.shop+json"},
        b'{"message": {"id": "a"}}',
    ),
}


def shop(format_: Any, seen: list[Any]) -> Endpoint:
    """Make an endpoint that notes what it handles."""
    endpoint = Endpoint("shop", store=f"memory://{uuid4().hex}", retry=ONCE, format=format_)

    @endpoint.handler
    async def place(placed: Placed, context: Context) -> None:
        seen.append((placed, "shop-other" in {name.lower() for name, _ in context.message.headers}))

    return endpoint


@pytest.mark.parametrize("name", FORMATS)
async def test_a_host_hands_over_messages_in_the_format_of_the_endpoint(name: str) -> None:
    """Values of headers may be of any type that a client library has. A copy is known by the id that the format reads."""
    format_, headers, body = FORMATS[name]
    seen: list[Any] = []
    async with shop(format_, seen).hosted() as hosted:
        for _ in range(2):
            assert (await hosted.handle_one(body, headers=headers)).is_settled
    assert seen == [(Placed("a"), name == "envelope")]


@pytest.mark.parametrize("name", ["plain json", "envelope"])
async def test_the_id_of_the_host_is_used_where_the_format_finds_none(name: str) -> None:
    """Handlers do not see it among the headers."""
    format_, headers, body = FORMATS[name]
    others = {key: value for key, value in headers.items() if key not in {"x-id", "shop-id"}}
    empty = others | {key: " " for key in headers if key in {"x-id", "shop-id"}}
    seen: list[Any] = []
    async with shop(format_, seen).hosted() as hosted:
        for id_ in ("7", "7", "8"):
            assert not (await hosted.handle_one(body, headers=others, id=id_)).is_dead
            assert not (await hosted.handle_one(body, headers=empty, id=f"{id_} too")).is_dead
    assert len(seen) == 4


async def test_a_cloudevents_id_counts_before_that_of_the_host() -> None:
    """As it does without a format: it came with the message, and a host may have a new id for each delivery."""
    format_, headers, body = FORMATS["plain json"]
    seen: list[Any] = []
    async with shop(format_, seen).hosted() as hosted:
        for id_ in ("7", "8"):
            others = {"x-type": headers["x-type"], "ce-id": "E"}
            assert not (await hosted.handle_one(body, headers=others, id=id_)).is_dead
    assert len(seen) == 1
