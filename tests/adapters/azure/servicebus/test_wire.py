"""Messages of Service Bus: what is written is read, what does not fit is refused, and names that the service takes."""

import string
from random import Random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given
from hypothesis import strategies as st

from onceonly.adapters.azure.servicebus.address import LONGEST_NAME, LONGEST_SUBSCRIPTION, EntityNames
from onceonly.adapters.azure.servicebus.wire import MORE, MOST_PROPERTY_BYTES, OWN, headers_of, outgoing, to_properties
from onceonly.model.message import Headers
from tests.servers.servicebus.codec import (
    Array,
    Described,
    Int,
    Malformed,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    decode,
    encode,
)

TEXT = st.text(max_size=20)
CHANCE = Random(7)  # noqa: S311 - bytes for a test


class Received:
    """A message as it arrives: texts are bytes."""

    def __init__(self, sent: ServiceBusMessage) -> None:
        self.content_type = sent.content_type
        named: Any = sent.application_properties or {}
        self.application_properties = {name.encode(): value.encode() for name, value in named.items()}
        self.message_id = sent.message_id
        self.correlation_id = self.reply_to = self.subject = self.session_id = None


def read_again(headers: Headers) -> list[tuple[str, str]]:
    """Write headers, and read them."""
    properties = to_properties(headers)
    assert properties is not None
    received: Any = Received(outgoing(properties, b"", message_id="1"))
    return sorted(headers_of(received))


@given(st.lists(st.tuples(TEXT, TEXT), max_size=8))
def test_headers_survive(headers: list[tuple[str, str]]) -> None:
    """Also empty names, names that come twice, and text that is not Unicode."""
    assert read_again(tuple(headers)) == sorted(headers)


@pytest.mark.parametrize(
    "headers",
    [
        (("content-type", "a"), ("content-type", "b")),
        (("content-type", "x" * 300),),
        (("content-type", "\ud800"),),
        ((MORE, "forged"), ("x", "1")),
        (("x", "1"), ("x", "2"), ("X", "3")),
        (("\udcff", "\udcfe"),),
        (("message-id", "m"), ("session-id", "s")),
    ],
)
def test_headers_without_a_property_of_their_own_survive(headers: Headers) -> None:
    """They are pairs in a property."""
    assert read_again(headers) == sorted(headers)


def test_headers_that_the_service_does_not_take_are_refused() -> None:
    """One value of more than 32 KB, or more than 64 KB in all."""
    assert to_properties((("x", "x" * (MOST_PROPERTY_BYTES - 20)),)) is not None
    assert to_properties((("x", "x" * MOST_PROPERTY_BYTES),)) is None
    assert to_properties(tuple((f"x{number}", "x" * 20_000) for number in range(4))) is None


def test_each_copy_has_a_message_id_of_its_own() -> None:
    """It is a sign of messages of this library, and of nothing else."""
    assert outgoing((None, {}), b"", message_id="7").message_id == f"{OWN}7"


NAMES = st.text(st.sampled_from("abzAZ09-_./ ü"), min_size=1, max_size=260)


@given(NAMES, NAMES)
def test_names_are_those_that_the_service_takes_and_no_two_are_equal(one: str, other: str) -> None:
    """The service does not distinguish upper and lower case, and has limits."""
    names = EntityNames("shop_")
    letters = set(string.ascii_lowercase + string.digits + "-._")
    found = [names.queue(one), names.topic(one), names.subscription(one)]
    for name, longest in zip(found, (LONGEST_NAME + 5, LONGEST_NAME + 12, LONGEST_SUBSCRIPTION), strict=True):
        assert set(name) <= letters
        assert len(name) <= longest
        assert name[-1] not in "-."
    assert (names.queue(one) == names.queue(other)) == (one == other)
    assert (names.subscription(one) == names.subscription(other)) == (one == other)
    assert names.kind_of(names.topic(one)) in (one, None)
    assert names.queue(one) != names.topic(other)


@pytest.mark.parametrize("name", ["shop_other", "event__", "shop_event__%", "shop_event___zz", "shop_event___ff", "other"])
def test_other_topics_have_no_type(name: str) -> None:
    """They are not listed."""
    assert EntityNames("shop_").kind_of(name) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=300)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
    | st.uuids()
    | st.builds(Symbol, st.sampled_from(["a", "x-opt"]))
    | st.integers(0, 255).map(UByte)
    | st.integers(0, 2**32 - 1).map(UInt)
    | st.integers(0, 2**64 - 1).map(ULong)
    | st.integers(-(2**31), 2**31 - 1).map(Int)
    | st.integers(0, 2**60).map(Timestamp),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | inner.map(lambda value: Described(ULong(7), value))
        | st.lists(st.integers(-9, 9), max_size=3).map(lambda values: Array(0x81, tuple(values)))
    ),
)


@given(VALUES)
def test_the_stand_in_reads_what_it_writes(value: object) -> None:
    """Every type that it has."""
    found, end = decode(encode(value))
    assert (found, type(found), end) == (value, type(value), len(encode(value)))


def test_the_stand_in_reads_no_random_bytes() -> None:
    """Or reads some value: it never fails in another way."""
    for _ in range(2000):
        data = CHANCE.randbytes(CHANCE.randint(0, 20))
        try:
            decode(data)
        except Malformed:
            continue
