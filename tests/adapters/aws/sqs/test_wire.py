"""Messages as SQS carries them."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceonly.adapters.aws.sqs.address import SqsNames
from onceonly.adapters.aws.sqs.wire import BODY, DUE, HEADERS, MESSAGE_ID, group_of, read, write
from onceonly.formats.cloudevents import UNREADABLE
from tests.adapters.aws.sqs.harness import plain

ALLOWED = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")  # what AWS documents, and no empty text
TEXTS = st.one_of(st.text(), st.binary().map(lambda value: value.decode("utf-8", "surrogateescape")))


@given(st.lists(st.tuples(TEXTS, TEXTS)), st.binary(), st.sampled_from([0, 1_700_000_000_000]))
@example([("x", "\ufffe\x00\udcff")], b"\x00", 0)
@example([], b"", 1)
@example([], "\ufffe".encode(), 0)
def test_every_message_arrives_as_it_was_written(headers: list[tuple[str, str]], body: bytes, due: int) -> None:
    """Whatever is in it, also what SQS itself refuses."""
    content = write(tuple(headers), body, due=due)
    assert ALLOWED.fullmatch(content.body)
    values = {name: each["StringValue"] for name, each in content.attributes.items()}
    assert all(ALLOWED.fullmatch(value) for value in values.values())
    got = read({"Body": content.body, "MessageAttributes": content.attributes})
    assert (got.headers, got.body, got.due) == (tuple(headers), body, due)
    counted = [content.body, *values, *values.values(), *("String" for _ in values)]
    assert content.size == sum(len(each.encode()) for each in counted)


def test_text_is_sent_as_it_is() -> None:
    """So that a person and other programs can read it."""
    content = write((("ce-subject", "köln"),), "né".encode())
    assert content.body == "né"
    assert dict(content.attributes) == {HEADERS: {"DataType": "String", "StringValue": '[["ce-subject","köln"]]'}}


def test_attributes_of_other_programs_are_headers() -> None:
    """Texts, numbers and bytes, beside the id that SQS gave."""
    given_attributes = {"ce-id": "1", "raw": b"\xff", **plain({})}
    got = read({"Body": "x", "MessageId": "id", "MessageAttributes": plain(given_attributes)})
    assert got.headers == ((MESSAGE_ID, "id"), ("ce-id", "1"), ("raw", "\udcff"))
    number = {"n": {"DataType": "Number.int", "StringValue": "7"}}
    assert read({"Body": "x", "MessageAttributes": number}).headers[1:] == (("n", "7"),)


@pytest.mark.parametrize("text", ["", "{", "{}", "[[1, 2]]", '[["a"]]', '["ab"]', "[" * 100_000, '[["a", "b", "c"]]', "null"])
def test_malformed_headers_are_unreadable_with_all_attributes(text: str) -> None:
    """A dead letter shows them."""
    got = read({"Body": "x", "MessageAttributes": plain({HEADERS: text, "other": "o"})})
    assert got.headers[0][0] == UNREADABLE
    assert got.headers[1:] == ((HEADERS, text), ("other", "o"))
    again = read({"Body": "x", "MessageAttributes": write(got.headers, got.body).attributes})
    assert again.headers == got.headers


@pytest.mark.parametrize(("kind", "body"), [("base64", "%"), ("base64", "a"), ("gzip", "x"), ("", "")])
def test_a_body_that_is_not_what_its_attribute_says(kind: str, body: str) -> None:
    """It is unreadable. An empty attribute says nothing."""
    got = read({"Body": body, "MessageAttributes": plain({HEADERS: "[]", BODY: kind})})
    assert (got.headers[:1] == ()) is (kind == "")
    assert got.body == body.encode()


@pytest.mark.parametrize("due", ["soon", "-1", "9" * 16, "1.5", ""])
def test_a_forged_due_time_is_none(due: str) -> None:
    """The message is delivered at once."""
    assert read({"Body": "x", "MessageAttributes": plain({DUE: due})}).due == 0


@given(st.dictionaries(st.sampled_from([HEADERS, BODY, DUE, "ce-id"]), st.one_of(st.text(), st.binary())), st.text())
def test_reading_never_raises(attributes: dict[str, object], body: str) -> None:
    """Whatever a producer sends."""
    read({"Body": body, "MessageAttributes": plain(attributes)})
    read({"Body": body, "MessageAttributes": write((("x", json.dumps(list(attributes))),), b"").attributes})


@pytest.mark.parametrize("key", ["customer 7", "köln", "x" * 129, "\x00"])
def test_a_key_that_is_no_group_is_hashed(key: str) -> None:
    """Equal keys are one group, and different keys are not."""
    group = group_of((("ce-partitionkey", key),))
    assert re.fullmatch("[0-9a-f]{32}", group)
    assert group == group_of((("ce_partitionkey", key),)) != group_of((("ce-partitionkey", key + "x"),))
    assert group_of((("ce-partitionkey", "c7"),)) == "c7"
    assert group_of(()) == ""


@pytest.mark.parametrize("kind", ["a.b", "*", "a b", "köln", "_2e", "%", "x" * 1000, "a_2eb"])
def test_names_are_those_of_aws_and_no_two_are_equal(kind: str) -> None:
    """Types are any text; a long one is a hash."""
    names = SqsNames("p" * 30, fifo=True)
    topic = names.topic(kind)
    assert re.fullmatch("[A-Za-z0-9_-]{1,251}[.]fifo", topic)
    assert names.kind_of(topic) == (kind if len(kind) < 1000 else None)
    for queue in (names.queue(kind), names.delayed(kind)):
        assert re.fullmatch("[A-Za-z0-9_-]{1,75}([.]fifo)?", queue)
    assert names.delayed_of(names.queue(kind)) == names.delayed(kind) != names.queue(kind)
    assert names.kind_of("a-topic-of-others.fifo") is None
    assert SqsNames("p").delayed(kind) == SqsNames("p").queue(kind)
