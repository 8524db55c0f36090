"""From a file of JSON to messages: JSON Lines, one document, or one array; bodies or CloudEvents."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import Event, message_of, parse_structured
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message


class BadItem(OnceOnlyError):
    """One item of the input cannot become a message; the text names its place and says why."""


class Item(NamedTuple):
    """One JSON object of the input, exactly as it was written, and its place: `line 3` or `item 3`."""

    place: str
    raw: bytes


class EventDefaults(Struct, frozen=True, kw_only=True):
    """What a plain body lacks to be a message. CloudEvents bring their own id, source and type."""

    type: str = ""
    source: str = "cli"
    id_from: tuple[str, ...] = ()


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON of unknown origin raises."""
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_items(lines: Iterable[bytes]) -> Iterator[Item]:
    """Give the JSON objects of a file, one for each line, or the elements when the file is one array or one document.

    Reads line by line, unless the file is a single document over many lines. Raises BadItem at the first that is not JSON.
    """
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    filled = ((number, line) for number, line in numbered if line)
    first = next(filled, None)
    if first is None:
        return
    number, line = first
    if line.startswith(b"[") or not _is_json(line):
        yield from _document(b"\n".join([line, *(rest for _, rest in filled)]), number)
        return
    yield Item(f"line {number}", line)
    for number, line in filled:
        if not _is_json(line):
            raise BadItem(f"line {number} is not JSON: {_start(line)}")
        yield Item(f"line {number}", line)


def to_message(item: Item, form: EventDefaults) -> Message:
    """Make the message of one item. Raises BadItem when it has no identity or no type."""
    try:
        fields = _raw_object.decode(item.raw)
    except _UNREADABLE as error:
        raise BadItem(f"{item.place} is not a JSON object: {_start(item.raw)}") from error
    if "specversion" in fields:
        return _from_cloudevent(item, form)
    if not form.type:
        raise BadItem(f"{item.place} has no message type: set --type, or send CloudEvents")
    if not form.id_from:
        raise BadItem(f"{item.place} has no id: name its id fields with --id-from, or send CloudEvents")
    name = _joined([_field(item, fields, field) for field in form.id_from])
    return Message(id=name, source=form.source, type=form.type, body=item.raw)


def _from_cloudevent(item: Item, form: EventDefaults) -> Message:
    try:
        attributes, body = parse_structured(item.raw)
    except (ValueError, RecursionError) as error:
        raise BadItem(f"{item.place}: {error}") from error
    if not attributes.get("id"):
        raise BadItem(f"{item.place} is a CloudEvent without `id`: add one, duplicates are detected by it")
    attributes.setdefault("type", form.type)
    if not attributes["type"]:
        raise BadItem(f"{item.place} is a CloudEvent without `type`: add one, or set --type")
    event = Event(attributes, (), body)
    return message_of(event, source=attributes.get("source") or form.source, id=attributes["id"])


def _field(item: Item, fields: dict[str, msgspec.Raw], name: str) -> str | int:
    try:
        value = msgspec.json.decode(fields[name]) if name in fields else None
    except _UNREADABLE:  # not UTF-8, or a number that no id has
        value = None
    if isinstance(value, int | str) and not isinstance(value, bool) and value != "":
        return value
    found = "is missing" if name not in fields else f"is {bytes(fields[name])[:40].decode(errors='replace')}"
    raise BadItem(f"{item.place}: the field {name!r} of --id-from {found}; an id field must be a string or an integer")


def _joined(values: list[str | int]) -> str:
    """Give one id for these values: alone as it is, several as a JSON list, so that ("ab", "c") and ("a", "bc") differ."""
    return str(values[0]) if len(values) == 1 else msgspec.json.encode(values).decode()


def _document(text: bytes, number: int) -> Iterator[Item]:
    if not _is_json(text):
        raise BadItem(f"line {number} is not the start of JSON Lines or of a JSON document: {_start(text)}")
    if not text.startswith(b"["):
        yield Item("item 1", text)
        return
    for index, raw in enumerate(_raw_list.decode(text), 1):
        yield Item(f"item {index}", bytes(raw))


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except _UNREADABLE:
        return False
    return True


def _start(text: bytes) -> str:
    shown = text[:60].decode(errors="replace")
    return repr(shown + ("..." if len(text) > len(shown) else ""))
