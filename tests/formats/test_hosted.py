"""Headers that a host hands over, whatever its client library makes of them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import arrival
from onceonly.formats.hosted import headers_of
from onceonly.model.hosted import HostedMessage
from onceonly.model.message import Message, Unreadable
from tests.endpoint.harness import STILL, endpoint
from tests.endpoint.hosted_harness import Order
from tests.fuzzing import Inputs

NAMES = ("ce-id", "ce_id", "cloudEvents:source", "ce-type", "content-type", "x", "Ce-Time", "ce-onceonlyattempts")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (b"t\xc3\xa4", "tä"),
        (b"\xff", "\udcff"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        ([{"count": 1, "queue": b"q"}], '[{"count": 1, "queue": "q"}]'),
    ],
)
def test_a_value_becomes_text(value: object, text: str) -> None:
    """As AMQP's values do."""
    assert headers_of(HostedMessage(b"", {"x": value, "none": None})) == (("x", text),)


def test_the_id_of_the_host_is_for_messages_without_one() -> None:
    """Under any of the prefixes."""
    assert headers_of(HostedMessage(b"", id="7")) == (("ce-id", "7"),)
    assert headers_of(HostedMessage(b"", [("cloudEvents:id", "own")], id="7")) == (("cloudEvents:id", "own"),)


def test_a_host_may_have_neither_headers_nor_an_id() -> None:
    """Client libraries have None for both. An id `"None"` would make all these messages copies of one."""
    assert headers_of(HostedMessage(b"", None, id=None)) == ()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (HostedMessage(b"", "x: y"), "mapping or pairs of name and value, not str"),  # type: ignore[arg-type]
        (HostedMessage(b"", 7), "mapping or pairs of name and value, not int"),  # type: ignore[arg-type]
        (HostedMessage(b"", [("x", "y", "z")]), r"not a sequence of \('x', 'y', 'z'\)"),  # type: ignore[list-item]
        (HostedMessage(b"", ["x: y"]), "not a sequence of 'x: y'"),  # type: ignore[list-item]
        (HostedMessage(b"", id=b"7"), "id must be text or None, not bytes: decode it"),  # type: ignore[arg-type]
    ],
)
def test_headers_and_ids_of_other_types_are_refused(message: HostedMessage, words: str) -> None:
    """The error has what was found, and what is expected."""
    with pytest.raises(TypeError, match=words):
        headers_of(message)


def test_fuzz_messages_of_a_host() -> None:
    """Anything is a message or unreadable with a reason, and nothing else is raised."""
    inputs, shop = Inputs(), endpoint()

    @shop.handler
    def take(_: Order) -> None:
        """Do nothing."""

    read = host_of(shop).handlers(STILL).read
    for _ in inputs.rounds():
        headers: list[tuple[str, Any]] = [
            (
                inputs.choice(NAMES) if inputs.random() < 0.8 else inputs.word(),
                inputs.choice((inputs.word, inputs.data, inputs.scalar))(),
            )
            for _ in range(inputs.randrange(5))
        ]
        message = HostedMessage(inputs.data(), headers, inputs.word(), queue=inputs.word())
        found = read(arrival(0, message.queue or "shop", headers_of(message), message.body, suspect=False))
        assert isinstance(found, Message | Unreadable)
        assert isinstance(found, Message) or found.reason
