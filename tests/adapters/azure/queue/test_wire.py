"""Messages of Azure queues as text: what is written is read, and what other programs write is a delivery."""

import json
from base64 import b64encode
from random import Random

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from onceonly.adapters.azure.queue.address import (
    DEFAULT_MAX_BODY,
    LONGEST_NAME,
    QueueNames,
    read_subscription,
    subscription_metadata,
)
from onceonly.adapters.azure.queue.wire import (
    LONGEST_TEXT,
    MARK_BYTES,
    MESSAGE_ID,
    marked,
    read,
    size_of,
    unmarked,
    write,
)
from onceonly.formats.cloudevents import STRUCTURED, UNREADABLE, encode, take_apart
from onceonly.model.headers import MOST_HEADER_BYTES
from onceonly.model.message import Headers, Message, Send
from onceonly.queues.messages import StructuredMessage
from onceonly_conformance.samples import EVERY_BYTE, rich_message
from tests.adapters.azure.queue.harness import EVENT, event_text, message

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CHANCE = Random(7)  # noqa: S311 - bytes that cannot be compressed
KINDS = st.sampled_from(["application/json", "text/plain", "application/octet-stream", "application/x+json; v=1", ""])


def written(headers: Headers, body: bytes, due: int = 0) -> str:
    """Write what can be written."""
    text = write(headers, body, due=due)
    assert text is not None
    assert size_of(text) <= LONGEST_TEXT
    return text


@given(st.lists(st.tuples(TEXT, TEXT), max_size=8), st.binary(max_size=50), KINDS, st.integers(0, 10**14))
def test_headers_and_body_survive(others: list[tuple[str, str]], body: bytes, kind: str, due: int) -> None:
    """Also names that begin with `ce-`, empty ones, and any bytes."""
    headers = (("ce-specversion", "1.0"), ("ce-id", "x"), ("content-type", kind), *others)
    found = read(written(headers, body, due), "id")
    assert (sorted(found.headers), found.body, found.due) == (sorted(headers), body, due)


@given(st.recursive(st.none() | st.floats(allow_nan=False) | TEXT, lambda inner: st.lists(inner, max_size=3)), TEXT)
def test_json_and_text_survive(document: object, text: str) -> None:
    """Byte for byte, however they are written."""
    for body in (json.dumps(document).encode(), json.dumps(document, ensure_ascii=False, indent=2).encode(), text.encode()):
        for kind in ("application/json", "text/plain; charset=utf-8"):
            headers = (("ce-specversion", "1.0"), ("content-type", kind))
            assert read(written(headers, body), "id") == StructuredMessage(headers, body)


def test_every_field_of_a_message_survives() -> None:
    """In several scripts."""
    headers, body = encode(Send(message=rich_message(), to="shop"))
    assert read(written(headers, body), "id") == StructuredMessage(headers, body)


def test_a_message_is_a_cloudevent_that_other_programs_read() -> None:
    """By the `cloudevents` package, for one."""
    sent = message(subject="köln", headers=(("x-shop", "Zürich"),), extensions=(("causationid", "c 1"),))
    event = JSONFormat().read(CloudEvent, written(*encode(Send(message=sent, to="shop"))))
    assert event.get_data() == {"total": 1}
    known = event.get_attributes()
    assert (known["id"], known["source"], known["type"], known["subject"]) == ("m1", "till", EVENT, "köln")
    assert (known["causationid"], json.loads(known["onceonlyheaders"])) == ("c 1", [["x-shop", "Zürich"]])


@pytest.mark.parametrize(
    ("kind", "body", "member"),
    [
        ("application/json", b'{"a": [1.0, "<&>"]}', '"data":{"a": [1.0, "<&>"]}'),
        ("application/json", b"not JSON", "data_base64"),
        ("application/json", b' {"a": 1}', "data_base64"),
        ("application/json", b'{"a":\r\n1}', "data_base64"),
        ("application/json", b'"\xff"', "data_base64"),
        ("text/plain", "köln 🛫".encode(), '"data":"köln 🛫"'),
        ("text/plain", b"\xff", "data_base64"),
        ("text/html", b"<p>", '"data":"<p>"'),
        ("text/plain", b"\x01" * 90, "data_base64"),
        ("application/octet-stream", EVERY_BYTE, "data_base64"),
    ],
)
def test_a_body_is_json_or_text_where_that_is_exact_and_short(kind: str, body: bytes, member: str) -> None:
    """Otherwise it is in base64: XML would change a carriage return, and JSON writes some letters as six."""
    headers = (("ce-specversion", "1.0"), ("content-type", kind))
    text = written(headers, body)
    assert member in text
    assert read(text, "id").body == body


@pytest.mark.parametrize("letters", ["x", '"', "\\", "&", "<", "é", "東", "🛫", "\x01", "\x7f", "\ufffe"])
def test_the_largest_headers_and_body_always_fit(letters: str) -> None:
    """Whatever they consist of, with random bytes in the body; a mark fits, too."""
    body = CHANCE.randbytes(DEFAULT_MAX_BODY)
    value = letters * (MOST_HEADER_BYTES // 4 // len(letters.encode()) - 3)
    headers = tuple((f"x-{number}", value) for number in range(4))
    sent = Message(id="m1" * 50, source="s" * 100, type="t" * 100, body=body, headers=headers)
    encoded, _ = encode(Send(message=sent, to="shop"))
    text = written(encoded, body)
    assert read(text, "id") == StructuredMessage(encoded, body)
    assert unmarked(marked(text, 999_999_999) or "") == (text, 999_999_999)


def test_random_headers_and_body_fit() -> None:
    """Nothing can be compressed there."""
    value = "".join(CHANCE.choices([chr(code) for code in range(33, 127)], k=MOST_HEADER_BYTES // 2 - 3))
    headers = (("content-type", "x/y"), ("x-1", value), ("x-2", value[::-1]))
    body = CHANCE.randbytes(DEFAULT_MAX_BODY)
    assert read(written((("ce-specversion", "1.0"), *headers), body), "id").body == body


def test_what_does_not_fit_is_not_written() -> None:
    """It is refused before it is sent."""
    assert write((("ce-id", "x"),), CHANCE.randbytes(60_000)) is None
    assert write((("ce-id", "\ud800"),), b"") is None


def test_a_text_near_the_limit_has_no_room_for_a_mark() -> None:
    """It comes again as a suspect."""
    assert marked("x" * (LONGEST_TEXT - MARK_BYTES), 1) is not None
    assert marked("x" * LONGEST_TEXT, 1) is None


@pytest.mark.parametrize("text", ["{}", "onceonly-released:x\n{}", " onceonly-released:1\n", "onceonly-released:1{}", ""])
def test_other_texts_have_no_mark(text: str) -> None:
    """And are not changed."""
    assert unmarked(text) == (text, 0)


@pytest.mark.parametrize(
    "encoded", [event_text(data={"order_id": "A"}), b64encode(event_text(data={"order_id": "A"}).encode()).decode()]
)
def test_a_cloudevent_of_a_plain_producer_is_read(encoded: str) -> None:
    """Also in base64, which some clients write by default."""
    event = take_apart(*(content := read(encoded, "id")).headers and (content.headers, content.body))
    assert (event.attributes["id"], event.attributes["type"], json.loads(event.body)) == ("o1", "PlaceOrder", {"order_id": "A"})


@pytest.mark.parametrize(
    "text", ["", "hello", '{"order": 7}', "[1]", "abcd", "\x7f", '{"a": {"b": 1}}', "{", '{"id": "x"}', "x" * 60_000]
)
def test_other_texts_are_bodies_with_the_id_of_the_service(text: str) -> None:
    """An identity rule may find an id in them."""
    assert read(text, "id-7") == StructuredMessage(((MESSAGE_ID, "id-7"),), text.encode())
    assert read(b64encode(b'{"order": 7}').decode(), "id-7").body == b'{"order": 7}'


@pytest.mark.parametrize(
    "text", ['{"specversion": "1.0"', '{"specversion": "1.0", "id": {}}', '{"specversion": "1.0", "ID":1, "id":2}']
)
def test_a_broken_cloudevent_says_what_is_wrong(text: str) -> None:
    """When the endpoint reads it."""
    found = read(text, "id")
    assert found == StructuredMessage((("content-type", STRUCTURED),), text.encode())
    with pytest.raises(ValueError, match="not a CloudEvent in JSON format"):
        take_apart(found.headers, found.body)


@pytest.mark.parametrize(
    "text",
    [
        event_text(onceonlyheaders="{"),
        event_text(onceonlyheaders="[[1]]"),
        event_text(onceonlyheaders=""),
        "onceonly-zlib:",
        "onceonly-zlib:!",
        "onceonly-zlib:" + b64encode(b"nothing").decode(),
    ],
)
def test_a_forged_text_is_unreadable(text: str) -> None:
    """It has a reason, and its bytes."""
    found = read(text, "id")
    assert found.headers[0][0] == UNREADABLE
    assert found.body == text.encode()


def test_what_grows_too_large_when_it_is_decompressed_is_unreadable() -> None:
    """64 KiB of text could become 64 MiB."""
    text = write((("x", "0" * 8_000_000),), b"")
    assert text is not None
    assert "longer than" in read(text, "id").headers[0][1]


@pytest.mark.parametrize("due", ["-1", "x", "", "9" * 40, "٣"])
def test_a_forged_due_time_is_none(due: str) -> None:
    """The message is delivered at once."""
    assert read(event_text(onceonlydue=due), "id").due == 0


NAMES = st.text(st.sampled_from("abzAZ09-_. ü"), min_size=1, max_size=80)


@given(NAMES, NAMES)
def test_names_are_those_that_azure_allows_and_no_two_are_equal(one: str, other: str) -> None:
    """3 to 63 of a-z, 0-9 and single dashes, with a letter or digit at both ends."""
    names = QueueNames("shop")
    found = [names.queue(one), names.delayed(one), names.subscription(one, other)]
    for name in found:
        assert 3 <= len(name) <= LONGEST_NAME
        assert name.replace("-", "").isalnum()
        assert name.isascii()
        assert name == name.lower().strip("-")
        assert "--" not in name
    assert len({*found, QueueNames("shop2").queue(one)}) == 4
    assert (names.queue(one) == names.queue(other)) == (one == other)
    assert names.subscription(one, other).startswith(names.subscribers(one))


@pytest.mark.parametrize("kind", ["shop.order.v1", "köln → 東京", "%", "a b"])
def test_a_subscription_is_read_from_its_metadata(kind: str) -> None:
    """Metadata are headers of HTTP, in which the service may change the case of names."""
    metadata = subscription_metadata(kind, "my_shop", "subscribed")
    assert all(value.isascii() for value in metadata.values())
    assert read_subscription({name.upper(): value for name, value in metadata.items()}) == (kind, "my_shop")


@pytest.mark.parametrize("metadata", [None, {}, {"state": "subscribed"}, subscription_metadata("a", "b", "gone")])
def test_other_metadata_are_no_subscription(metadata: dict[str, str] | None) -> None:
    """Nor is one that has ended."""
    assert read_subscription(metadata) is None
