"""Bodies on their way from a handler to another: media types, lists, generic classes, and classes with one name."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import attrs
import pydantic
import pytest

from onceonly import Context, Endpoint, testing
from onceonly.endpoint import message_types
from onceonly.model.errors import InvalidEffect, InvalidHandler
from onceonly.model.message import CLASS
from tests.endpoint import other_messages
from tests.log_events import events

T = TypeVar("T")


@dataclass
class Placed:
    """Has the name of a class in `other_messages`."""

    number: str = ""


class Model(pydantic.BaseModel):
    """Which msgspec cannot read inside a list."""

    number: str


@attrs.define
class Bought:
    """Which is read by calling the class."""

    number: str = attrs.field(converter=str)


class Colour(Enum):
    """Its members are no bodies."""

    RED = "red"


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
        ({"a": 1}, "application/vnd.masstransit+json", None),
        (Placed(), "application/vnd.placed+json; charset=utf-8", None),
        ("a", "text", "must be a media type"),
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


async def received(body: object, handler: Callable[[Endpoint, list[object]], None], **options: object) -> list[object]:
    """Have a handler send a body to another one. Returns what that one got."""
    seen: list[object] = []
    shop = sending(body, type="report", **options)
    handler(shop, seen)
    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
    return seen


def takes(kind: Any) -> Callable[[Endpoint, list[object]], None]:
    """Register a handler whose first parameter has this annotation."""

    def register(shop: Endpoint, seen: list[object]) -> None:
        async def report(body: Any) -> None:
            seen.append(body)

        report.__annotations__["body"] = kind
        shop.handler(type="report")(report)

    return register


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("Grüße", str),
        ("", str),
        (2**70, int),
        (-1, int),
        (0.1, float),
        (True, bool),
        (None, None),
        ([1, "a", None], list),
        ([], list[int]),
        ([1, 2], list[int]),
        ({"a": [1]}, dict[str, list[int]]),
        ([Placed("1"), Placed("2")], list[Placed]),
        ([Model(number="1")], list[Model]),
        ([Bought("1")], list[Bought]),
    ],
)
async def test_what_json_has_is_a_body(body: object, kind: Any) -> None:
    """Text, numbers, lists and null, and lists of objects, arrive equal and of the same type."""
    (found,) = await received(body, takes(kind))
    assert (type(found), found) == (type(body), body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (float("nan"), "JSON has no nan|nan"),
        (Colour.RED, "must be a dataclass.*not Colour"),
        ([Placed("1"), Model(number="2")], "item 1 is of class Model: .* objects of one class, Placed"),
        ([Placed("1"), None], "item 1 is of class NoneType"),
        ([1, Placed("1")], "not one of JSON's own types"),
        ([Placed(None)], "item 0: Placed cannot be encoded"),  # type: ignore[arg-type]
        ("\ud800", "surrogates"),
        ((1, 2), "must be a dataclass.*not tuple"),
    ],
)
async def test_what_would_arrive_as_something_else_is_refused(body: object, words: str) -> None:
    """At the call, so that nothing is committed."""
    with pytest.raises(InvalidEffect, match=words):
        await received(body, takes(str))


@pytest.mark.parametrize("kind", [str, int, bool, list[int], list[Model], None])
def test_what_has_no_type_of_its_own_needs_one(kind: Any) -> None:
    """The error names the option."""
    shop = Endpoint("shop", store="memory://bodies", transport="memory://bodies")

    async def many(_body: Any) -> None:
        """Take it."""

    many.__annotations__["_body"] = kind
    shop.handler(many)
    with pytest.raises(InvalidHandler, match=r'message type of .* is unknown: set @handler\(type="..."\)'):
        shop.topology()


async def test_a_batch_may_have_numbers() -> None:
    """Only batch=True makes a list a batch."""
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://bodies")
    seen: list[object] = []

    @shop.handler(type="number", batch=True)
    async def numbers(values: list[int]) -> None:
        seen.append(values)

    @shop.handler(type="numbers")
    async def lists(values: list[int]) -> None:
        seen.append(values)

    async with testing.run(shop) as kit:
        await kit.deliver_batch([kit.message(1, type="number"), kit.message(2, type="number")])
        await kit.deliver(kit.message([1, 2], type="numbers"))
    assert seen == [[1, 2], [1, 2]]


async def test_json_may_have_a_media_type_of_its_own() -> None:
    """As envelopes of other libraries have."""
    shop = sending(Placed("1"), content_type="application/vnd.shop+json")
    seen: list[str] = []

    @shop.handler
    async def placed(_body: Placed, context: Context) -> None:
        seen.append(context.message.datacontenttype)

    async with testing.run(shop) as kit:
        await kit.deliver(Start())
        await kit.settle()
    assert seen == ["application/vnd.shop+json"]


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
    monkeypatch.setattr(message_types, "_handled", {})
    message_types._warned.clear()


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
