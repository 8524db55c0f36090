"""Messages from a file of JSON (JSON Lines, one document, or one array; bodies or CloudEvents), and headers from options."""

import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import Event, message_of, parse_document
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.model.headers import headers_of, size_problem
from onceonly.model.message import Headers, Message


class BadItem(OnceOnlyError):
    """One item of the input cannot become a message; the text names its place and says why."""


class Item(NamedTuple):
    """One JSON object of the input, exactly as it was written, and its place: `line 3` or `item 3`."""

    place: str
    raw: bytes


class RefusedItem(NamedTuple):
    """An item that is not sent: no receiver could read it, or its headers are wrong. `reason` has the details."""

    place: str
    reason: str


class EventDefaults(Struct, frozen=True, kw_only=True):
    """What a plain body lacks to be a message. CloudEvents bring their own id, source and type, and may add headers."""

    type: str = ""
    source: str = "cli"
    id_from: tuple[str, ...] = ()
    headers: Headers = ()


HEADERS = "headers"
"""The field of a CloudEvent's line with headers of its own, an object."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON of unknown origin raises."""
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_items(lines: Iterable[bytes]) -> Iterator[Item]:
    """Return the JSON objects of a file, one for each line, or the elements when the file is one array or one document.

    Reads line by line, unless the file is a single document over many lines. Raises BadItem at the first that is not JSON.
    """
    numbered = ((number, _text(line, number).strip()) for number, line in enumerate(lines, 1))
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


def to_message(item: Item, form: EventDefaults) -> Message | RefusedItem:
    """Make the message of one item; a RefusedItem if it cannot be sent. Raises BadItem without id or type."""
    if reason := _unreadable(item.raw):
        return RefusedItem(item.place, reason)
    try:
        fields = _raw_object.decode(item.raw)
    except _UNREADABLE as error:
        raise BadItem(f"{item.place} is not a JSON object: {_start(item.raw)}") from error
    if "specversion" in fields:
        return _from_cloudevent(item, fields, form)
    if not form.type:
        raise BadItem(f"{item.place} has no message type: set --type, or send CloudEvents")
    if not form.id_from:
        raise BadItem(f"{item.place} has no id: name its id fields with --id-from, or send CloudEvents")
    name = _joined([_field(item, fields, field) for field in form.id_from])
    return Message(id=name, source=form.source, type=form.type, body=item.raw, headers=form.headers)


def _from_cloudevent(item: Item, fields: dict[str, msgspec.Raw], form: EventDefaults) -> Message | RefusedItem:
    headers, own = form.headers, bytes(fields.get(HEADERS, b""))
    if own.startswith((b"{", b"[")):  # text is an attribute of this name
        try:
            headers = headers_in(own, headers)
        except (ValueError, RecursionError) as error:
            return RefusedItem(item.place, str(error))
        fields = {name: raw for name, raw in fields.items() if name != HEADERS}
    try:
        attributes, body = parse_document(fields)
    except (ValueError, RecursionError) as error:
        raise BadItem(f"{item.place}: {error}") from error
    if not attributes.get("id"):
        raise BadItem(f"{item.place} is a CloudEvent without `id`: add one, duplicates are detected by it")
    attributes.setdefault("type", form.type)
    if not attributes["type"]:
        raise BadItem(f"{item.place} is a CloudEvent without `type`: add one, or set --type")
    event = Event(attributes, headers, body)
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
    """Return one id for these values: alone as it is, several as a JSON list, so that ("ab", "c") and ("a", "bc") differ."""
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
        return b"\\u" in text and _has_lone_surrogates(text)
    return True


def _has_lone_surrogates(text: bytes) -> bool:
    """Return whether this is JSON but for escapes that no character has: its line alone is refused."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _text(line: bytes, number: int) -> bytes:
    """Return a line without the byte order mark of UTF-8. Raises BadItem for UTF-16 and UTF-32, which name themselves."""
    if number > 1:
        return line
    if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)) or b"\0" in line:
        raise BadItem("the file is UTF-16 or UTF-32, not UTF-8: convert it, for example with `iconv -f UTF-16 -t UTF-8`")
    return line.removeprefix(BOM_UTF8)


def _unreadable(raw: bytes) -> str:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start + 1}): convert the file to UTF-8"
    try:
        msgspec.json.decode(raw)
    except _UNREADABLE as error:
        return f"it cannot be read as JSON: {error}"
    return ""


def _start(text: bytes) -> str:
    shown = text[:60].decode(errors="replace")
    return repr(shown + ("..." if len(text) > len(shown) else ""))


def headers_given(texts: Sequence[str]) -> Headers:
    """Read `NAME=VALUE`, each name once. Raises SetupError for what no transport carries."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SetupError("--header: write NAME=VALUE, such as --header tenant=acme")
        if name.lower() in {each.lower() for each in found}:
            raise SetupError(f"--header {name}: it is given twice. Give each name once")
        found[name] = value
    try:
        headers = headers_of(found)
    except ValueError as error:
        raise SetupError(f"--header: {error}") from error
    if problem := size_problem(headers):
        raise SetupError(f"--header: {problem}")
    return headers


def changed_headers(before: Headers, texts: Sequence[str], removed: Sequence[str]) -> Headers:
    """Return headers with some set, in place of those of the same name, and some removed. Raises SetupError."""
    own = headers_given(texts)
    names = {name.lower() for name, _ in before}
    if unknown := [name for name in removed if name.lower() not in names]:
        raise SetupError(f"--remove-header {unknown[0]}: the message has no such header")
    gone = {name.lower() for name, _ in own} | {name.lower() for name in removed}
    return (*(each for each in before if each[0].lower() not in gone), *own)


def headers_in(text: bytes, others: Headers) -> Headers:
    """Return the headers of a line, from its JSON, and those of the others whose names it does not have.

    Raises ValueError, naming the header, for what `--header` refuses.
    """
    given = json.loads(text, object_pairs_hook=_each_once)
    if not isinstance(given, dict):
        raise ValueError("`headers` must be an object with the names and values of headers")  # noqa: TRY004 - as the others
    if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
        raise ValueError(f"the header {wrong[0]!r:.100} must be a string")
    own = headers_of(given)
    names = {name.lower() for name, _ in own}
    headers = (*(each for each in others if each[0].lower() not in names), *own)
    if problem := size_problem(headers):
        raise ValueError(problem)
    return headers


def _each_once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the header {name!r:.100} is given twice")
        found[name] = value
    return found
