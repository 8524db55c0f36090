"""Destinations that are not endpoints: the text in `Send.to`, and names that are refused at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly import Exchange, Queue, Stream, Subject, Topic
from onceonly.model.destination import KINDS, Carrier, Destination, is_destination, read_destination, write_destination
from onceonly.model.errors import InvalidEffect
from onceonly.model.limits import is_endpoint_name

TEXTS = {
    "queue:Sales": Queue("Sales"),
    "queue:https://sqs.eu-west-1.amazonaws.com/123456789012/Sales": Queue(
        "https://sqs.eu-west-1.amazonaws.com/123456789012/Sales"
    ),
    "queue:a%20b%25%23": Queue("a b%#"),
    "queue:%C3%A4": Queue("ä"),
    "subject:orders.placed": Subject("orders.placed"),
    "stream:shop:orders": Stream("shop:orders"),
    "stream:a%23b#c%23d": Stream("a#b", "c#d"),
    "stream:orders#body": Stream("orders", field="body"),
    "exchange:Sales.Messages:OrderBilled": Exchange("Sales.Messages:OrderBilled"),
    "exchange:orders#order.billed": Exchange("orders", "order.billed"),
    "exchange:a%23b#c%23d": Exchange("a#b", "c#d"),
    "topic:arn:aws:sns:eu-west-1:123456789012:orders": Topic("arn:aws:sns:eu-west-1:123456789012:orders"),
    "carrier:celery:billing%20app": Carrier("celery:billing app"),
}
WRONG = [
    "",
    "sales",
    "queue",
    "queue:",
    "queue:a b",
    "queue:a#b",
    "stream:a#",
    "stream:a#data",
    "stream:a#b#c",
    "queue:%41",
    "queue:%e4",
    "queue:%FF",
    "queue:%",
    "subject:a.*",
    "subject:a..b",
    "exchange:#key",
    "exchange:name#",
    "exchange:a#b#c",
    "Queue:Sales",
    "planet:Mars",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_text_of_a_destination_is_read_back(text: str) -> None:
    """Stored records have the text, and every transport reads it."""
    assert write_destination(TEXTS[text]) == str(TEXTS[text]) == text
    assert read_destination(text) == TEXTS[text]
    assert is_destination(text)


def test_a_carrier_and_its_place_are_in_one_name() -> None:
    """The place may have colons."""
    found = Carrier("celery:a:b")
    assert (found.carrier, found.place) == ("celery", "a:b")


@pytest.mark.parametrize("text", WRONG)
def test_no_other_text_is_a_destination(text: str) -> None:
    """One place has one text, so equal places are counted as one."""
    assert read_destination(text) is None


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_destination_is_a_name_of_an_endpoint(text: str) -> None:
    """A transport tells the two apart by the text alone."""
    assert not is_endpoint_name(text)


@given(name=st.text(min_size=1, max_size=60), key=st.text(max_size=60))
def test_every_name_that_is_accepted_is_read_back(name: str, key: str) -> None:
    """Percent-encoding is exact, also for '%', '#', blanks and letters that are not ASCII."""
    for kind in KINDS.values():
        made: list[Destination] = []
        try:
            made.append(kind(name, key) if kind in {Exchange, Stream} else kind(name))  # type: ignore[call-arg]
        except InvalidEffect:
            continue
        text = write_destination(made[0])
        assert text.isascii()
        assert text.isprintable()
        assert " " not in text
        assert read_destination(text) == made[0]


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "\ud800", "x" * 513, None, 5, b"x"])
def test_a_name_that_no_broker_has_is_refused_at_once(kind: type[Destination], name: object) -> None:
    """The error names the class, so that the line of the mistake is found."""
    with pytest.raises(InvalidEffect, match=kind.__name__):
        kind(name)  # type: ignore[call-arg]


def test_the_field_of_a_stream_is_a_name() -> None:
    """Redis itself takes any bytes."""
    for field in ("", "a\nb", "x" * 513, None):
        with pytest.raises(InvalidEffect, match=r"Stream.*field"):
            Stream("orders", field)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["orders.*", "orders.>", ".orders", "orders.", "a..b", "a b", "$JS.API.INFO", "*", ">"])
def test_a_subject_that_nothing_can_be_published_to_is_refused_at_once(name: str) -> None:
    with pytest.raises(InvalidEffect, match="subject"):
        Subject(name)


def test_names_of_exchanges_have_the_limit_of_amqp() -> None:
    Exchange("x" * 255, "y" * 255)
    with pytest.raises(InvalidEffect, match="name has 256 bytes"):
        Exchange("x" * 256)
    with pytest.raises(InvalidEffect, match="routing_key has 256 bytes"):
        Exchange("x", "ä" * 128)


def test_the_format_is_carried_and_is_no_part_of_the_text() -> None:
    """Two settings for one place go to one place."""
    assert Queue("Sales", format="plain").format == "plain"
    assert str(Queue("Sales", format="plain")) == "queue:Sales"
    assert Exchange("a", "b", format="plain").routing_key == "b"


def test_something_else_has_no_text() -> None:
    with pytest.raises(InvalidEffect, match="one of Queue, Subject, Stream, Topic, Carrier, Exchange"):
        write_destination(Destination())
