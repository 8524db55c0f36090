"""Bodies on their way from a handler to another: media types, lists, generic classes, and classes with one name."""

import logging
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest

from onceonly import Context, Endpoint, testing
from onceonly.endpoint import class_names
from onceonly.model.errors import InvalidEffect, InvalidHandler
from onceonly.model.message import CLASS
from tests.endpoint import other_messages
from tests.log_events import events

T = TypeVar("T")


@dataclass
class Placed:
    """Has the name of a class in `other_messages`."""

    number: str = ""


@dataclass
class Envelope(Generic[T]):
    """A generic dataclass."""

    data: T


@dataclass
class Start:
    """Asks a handler to send what a test wants."""


def sending(body: object, **options: object) -> Endpoint:
    """Return an endpoint whose handler of `Start` sends a body to itself."""
    shop = Endpoint("shop", store="memory://bodies", transport="memory://bodies")

    @shop.handler
    async def start(_start: Start, context: Context) -> None:
        context.send(body, to="shop", **options)  # type: ignore[arg-type]

    return shop


async def test_bytes_have_the_media_type_that_is_chosen() -> None:
    """The receiver sees it."""
    shop = sending(b"a;b\n", type="report", content_type="text/csv")
    seen: list[tuple[bytes, str]] = []

    @shop.handler(type="report")
    async def report(body: bytes, context: Context) -> None:
        seen.append((body, context.message.datacontenttype))

    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
    assert seen == [(b"a;b\n", "text/csv")]


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"x", "text", "must be a media type"),
        (b"x", "text/csv\r\nx: y", "must be a media type"),
        (b"x", 5, "must be a string, not int"),
        (b"x", "application/cloudevents+json", "a whole CloudEvent"),
        (b"x", f"text/csv;x={'x' * 99}", None),
        (b"x", f"{'a' * 100}/{'b' * 100};c=d", "the limit is 200"),
        ({"a": 1}, "text/csv", "for bodies that are bytes"),
        (Placed(), "application/json", "for bodies that are bytes"),
    ],
)
async def test_a_media_type_is_checked(body: object, content_type: object, words: str | None) -> None:
    """A header could be injected, or the body taken for something else."""
    shop = sending(body, type="report", content_type=content_type)

    @shop.handler(type="report")
    async def report(_body: bytes) -> None:
        """Take it."""

    async with testing.run(shop) as kit:
        if words is None:
            await kit.deliver(Start())
            return
        with pytest.raises(InvalidEffect, match=words):
            await kit.deliver(Start())


async def test_a_list_is_a_body() -> None:
    """With typed items where the handler declares them."""
    shop = sending([{"number": "1"}, {"number": "2"}], type="batch")
    seen: list[list[Placed]] = []

    @shop.handler(type="batch")
    async def batch(body: list[Placed]) -> None:
        seen.append(body)

    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
    assert seen == [[Placed("1"), Placed("2")]]


def test_a_list_without_a_type_may_be_meant_as_a_batch() -> None:
    """The error names both."""
    shop = Endpoint("shop", store="memory://bodies", transport="memory://bodies")

    @shop.handler
    async def many(_body: list[Placed]) -> None:
        """Take them."""

    with pytest.raises(InvalidHandler, match="For a batch of messages, set batch=True"):
        shop.topology()


async def test_a_generic_class_arrives_with_what_is_inside() -> None:
    """The handler names the parameter."""
    shop = sending(Envelope[Placed](Placed("7")))
    seen: list[Envelope[Placed]] = []

    @shop.handler
    async def envelope(body: Envelope[Placed]) -> None:
        seen.append(body)

    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
    assert seen == [Envelope(Placed("7"))]


@pytest.fixture
def fresh_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have logged."""
    monkeypatch.setattr(class_names, "_handled", {})
    class_names._warned.clear()


@pytest.mark.usefixtures("fresh_names")
async def test_another_class_of_the_same_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It would be read with all defaults."""
    shop = sending(other_messages.Placed("x", 1.5))

    @shop.handler
    async def placed(_placed: Placed) -> None:
        """Take it."""

    async with testing.run(shop) as kit:
        for _ in range(2):
            await kit.deliver(Start())
        await kit.settle()
        assert {sent.message.extension(CLASS) for sent in kit.sent} == {"tests.endpoint.other_messages.Placed"}
    found = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert events(found) == ["message has another class of the same name"]
    assert "sent=tests.endpoint.other_messages.Placed" in found[0].getMessage()


@pytest.mark.usefixtures("fresh_names")
async def test_two_handlers_of_classes_with_one_name_are_logged_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """Two endpoints of one process."""
    shop = Endpoint("shop", store="memory://bodies", transport="memory://bodies")
    mail = Endpoint("mail", store="memory://bodies", transport="memory://bodies")

    @shop.handler
    async def placed(_placed: Placed) -> None:
        """Take it."""

    @mail.handler
    async def other(_placed: other_messages.Placed) -> None:
        """Take it."""

    async with shop.opened(), mail.opened(), mail.opened():
        pass
    assert events(each for each in caplog.records if each.levelno == logging.WARNING) == ["message classes with the same name"]


async def test_a_handler_that_names_the_type_does_not_compare_classes() -> None:
    """Nor is the class sent with a type that was chosen."""
    shop = sending(other_messages.Placed("x", 1.5), type="Placed")

    @shop.handler(type="Placed")
    async def placed(_placed: Placed) -> None:
        """Take it."""

    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
        assert [sent.message.extension(CLASS) for sent in kit.sent] == [""]
