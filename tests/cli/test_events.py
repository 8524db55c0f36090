"""Reading messages from files: every item becomes a message with an identity, or a complaint that names its place."""

import json
import re
from contextlib import suppress

import pytest

from onceonly.cli.events import BadItem, EventDefaults, RefusedItem, read_items, to_message
from onceonly.model.message import Message

FORM = EventDefaults(type="PlaceOrder", source="cli", id_from=("order_id",))
EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "placed", "data": {"total": 3}, "traceparent": "00-1"}


def messages(text: str, form: EventDefaults = FORM) -> list[Message]:
    """Read a whole file."""
    return [to_message(item, form) for item in read_items(text.encode().splitlines(keepends=True))]


def test_each_line_is_a_body_kept_byte_for_byte() -> None:
    """Bodies are not re-encoded: their fingerprint is that of what was written."""
    found = messages('{"order_id": "1",  "total": 2}\n\n{"order_id": "2"}')
    assert [(m.id, m.source, m.type) for m in found] == [("1", "cli", "PlaceOrder"), ("2", "cli", "PlaceOrder")]
    assert found[0].body == b'{"order_id": "1",  "total": 2}'


def test_an_empty_file_has_no_messages() -> None:
    """Nothing in, nothing out."""
    assert messages("") == messages("\n \n") == []


@pytest.mark.parametrize("indent", [None, 2])
def test_one_document_and_an_array_of_documents_are_read_however_they_are_laid_out(indent: int | None) -> None:
    """A document may span lines, and so may an array."""
    assert [m.id for m in messages(json.dumps(EVENT, indent=indent))] == ["7"]
    assert [m.id for m in messages(json.dumps([EVENT, {"order_id": 8}], indent=indent))] == ["7", "8"]


def test_a_cloudevent_keeps_its_own_identity_type_and_extensions() -> None:
    """What the event says wins over the options."""
    (message,) = messages(json.dumps(EVENT))
    assert (message.id, message.source, message.type) == ("7", "/shop", "placed")
    assert json.loads(message.body) == {"total": 3}
    assert message.extension("traceparent") == "00-1"


def test_options_fill_in_what_a_cloudevent_leaves_out() -> None:
    """Source and type may come from the command line; the id never does."""
    (message,) = messages('{"specversion": "1.0", "id": "7", "data": 1}')
    assert (message.source, message.type) == ("cli", "PlaceOrder")


def test_ids_of_several_fields_never_meet() -> None:
    """("ab", "c") and ("a", "bc") are two messages, and so are 1 and "1"."""
    form = EventDefaults(type="T", id_from=("a", "b"))
    lines = ['{"a": "ab", "b": "c"}', '{"a": "a", "b": "bc"}', '{"a": "1", "b": 1}', '{"a": 1, "b": "1"}']
    assert len({m.id for m in messages("\n".join(lines), form)}) == len(lines)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"order_id": 1}\n{"other": 1}', "line 2: the field 'order_id' of --id-from is missing"),
        ('{"order_id": 1}\n\n{"order_id": ""}', "line 3: the field 'order_id' of --id-from is \"\""),
        ('{"order_id": null}', "is null"),
        ('{"order_id": true}', "is true"),
        ('{"order_id": 1.5}', "is 1.5"),
        ('{"order_id": 1}\n{"order_id', "line 2 is not JSON"),
        ("id,total", "line 1 is not the start of JSON Lines or of a JSON document"),
        ('{"order_id": 1}\n3', "line 2 is not a JSON object"),
        ('[{"order_id": 1}, 4]', "item 2 is not a JSON object"),
        ('{"specversion": "1.0", "source": "s", "type": "t"}', "line 1 is a CloudEvent without `id`"),
        ('{"specversion": "1.0", "id": "", "source": "s", "type": "t"}', "without `id`"),
    ],
)
def test_what_is_no_message_is_named_with_its_place(text: str, complaint: str) -> None:
    """The complaint says where, and what is wrong there."""
    with pytest.raises(BadItem, match=re.escape(complaint)):
        messages(text)


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"order_id": "\xff"}',
        b"[" * 100_000,
        b'{"order_id": ' + b"9" * 5000 + b"}",
        b'{"order_id": "\\ud800"}',
        b'{"order_id": 1e400}',
    ],
    ids=["not UTF-8", "nested 100,000 deep", "5,000 digits", "lone surrogate", "no number"],
)
@pytest.mark.parametrize("envelope", [b"%b", b'{"specversion": "1.0", "id": "7", "type": "t", "source": "s", "data": %b}'])
def test_hostile_json_is_a_complaint_or_a_message(hostile: bytes, envelope: bytes) -> None:
    """Never another error."""
    with suppress(BadItem):
        for item in read_items([envelope % hostile]):
            to_message(item, FORM)


def test_a_body_without_a_type_or_an_id_says_which_option_is_missing() -> None:
    """The complaint says what to do."""
    with pytest.raises(BadItem, match="--type"):
        messages('{"order_id": 1}', EventDefaults(id_from=("order_id",)))
    with pytest.raises(BadItem, match="--id-from"):
        messages('{"order_id": 1}', EventDefaults(type="T"))


def headed(**headers: object) -> str:
    """Return a line with a CloudEvent and headers."""
    return json.dumps({**EVENT, "headers": headers})


def test_a_cloudevent_may_have_headers() -> None:
    """They replace those of the options whose names they have, in upper or lower case, and are no attributes."""
    form = EventDefaults(headers=(("tenant", "other"), ("colour", "red")))
    own, plain = messages(f"{headed(Tenant='acme', locale='de')}\n{json.dumps(EVENT)}", form)
    assert own.headers == (("colour", "red"), ("Tenant", "acme"), ("locale", "de"))
    assert own.extensions == plain.extensions
    assert plain.headers == form.headers
    assert messages(json.dumps({**EVENT, "headers": {}}), form)[0].headers == form.headers


def test_headers_as_text_are_an_attribute() -> None:
    """CloudEvents allows an attribute of this name, which is never an object. In a body the field belongs to the body."""
    (event,) = messages(json.dumps({**EVENT, "headers": "a"}))
    assert (event.extension("headers"), event.headers) == ("a", ())
    (body,) = messages('{"order_id": "1", "headers": {"a": 1}}')
    assert (body.headers, json.loads(body.body)["headers"]) == ((), {"a": 1})


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ('{"ce-id": "1"}', "the header 'ce-id' is reserved"),
        ('{"a b": "1"}', "'a b' cannot be the name of a header"),
        ('{"": "1"}', "'' cannot be the name of a header"),
        ('{"tenant": "a\\nb"}', "the header 'tenant' has control characters"),
        ('{"tenant": 5}', "the header 'tenant' must be a string"),
        ('{"tenant": null}', "the header 'tenant' must be a string"),
        ('{"tenant": {"a": "b"}}', "the header 'tenant' must be a string"),
        ('{"tenant": "a", "tenant": "b"}', "the header 'tenant' is given twice"),
        ('{"tenant": "a", "Tenant": "b"}', "the headers 'tenant' and 'Tenant' differ only in case"),
        ('{"tenant": "%s"}' % ("x" * 9000), "the header 'tenant' is 9,000 bytes long"),
        ('{"a": "%s", "b": "%s", "c": "%s"}' % (("x" * 8000,) * 3), "its headers are 24,003 bytes long"),
        ('["tenant"]', "`headers` must be an object"),
    ],
)
def test_a_line_with_wrong_headers_is_refused(headers: str, reason: str) -> None:
    """With its place; nothing of the line becomes a message. Values are not shown, because they may be secrets."""
    line = json.dumps(EVENT)[:-1] + f', "headers": {headers}}}'
    (_, item) = read_items([json.dumps(EVENT).encode(), line.encode()])
    refused = to_message(item, FORM)
    assert isinstance(refused, RefusedItem)
    assert refused.place == "line 2"
    assert reason in refused.reason
