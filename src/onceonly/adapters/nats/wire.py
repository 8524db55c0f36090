"""Messages in the words of NATS: headers are lines of text, and CloudEvents attributes begin with `ce-`.

Values of attributes are percent-encoded, as CloudEvents writes them in headers. Others are written as they are. A name or value
that a line cannot carry is encoded under a name of this library, and so are headers that begin with `Nats-`: the server acts on
those. In a copy of a message `Nats-Msg-Id` would make it drop the copy.
"""

import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from onceonly.formats.cloudevents import PREFIX, RAW_PROPERTIES, UNREADABLE
from onceonly.model.escaping import raw
from onceonly.model.message import Headers

VERSION = b"NATS/1.0"
ESCAPED = "x-onceonly-escaped-"
MSG_ID = "Nats-Msg-Id"
MOVED = "onceonly-delayed-"
"""How the `Nats-Msg-Id` of a delayed message begins that was moved to its queue."""
MOST_BYTES = 65_000
"""The headers that a message may have: JetStream takes 65,535 bytes, and some are for `Nats-Msg-Id`."""
SERVERS_MOST_BYTES = 65_535
"""The headers that JetStream takes."""
_END = b"\r\n"
_BLANK = b" \t"
_SERVERS = "nats-"
_REPEATED = frozenset({"ce-specversion", "ce-source", "ce-type", "content-type"})
"""The headers whose values are the same in most messages. Their lines are cached."""
_REPEATED_BYTES = frozenset(name.encode() for name in _REPEATED)
_plain_value = re.compile(r"(?![ \t])[^\r\n\x00]*(?<![ \t])").fullmatch
_plain_name = re.compile(r"[!-9;-~]+").fullmatch
_to_encode = re.compile(rb"[^!#$&-~]")
_is_safe = re.compile(r"[!#$&-~]*").fullmatch


def write_headers(headers: Headers, *, msg_id: str = "") -> bytes:
    """Return the lines for these headers, with the version and the empty line at the end."""
    lines = [VERSION, *[_repeated_line(*header) if header[0] in _REPEATED else _line(*header) for header in headers]]
    if msg_id:
        lines.append(f"{MSG_ID}: {msg_id}".encode())
    return _END.join((*lines, b"", b""))


def read_headers(given: bytes) -> Headers:
    """Return the headers of a message that arrived. Never raises: what cannot be read is unreadable, with its bytes.

    Two different byte strings are never read as one value, but for the blanks around it and for percent-encoded attributes.
    """
    if not given:
        return ()
    first, *lines = given.split(_END)
    if first.rstrip(_BLANK) != VERSION:
        return _unreadable(given, "the headers do not begin with NATS/1.0")
    found: list[tuple[str, str]] = []
    for line in lines:
        if not line:
            continue
        name, colon, value = line.partition(b":")
        if not colon or not name.strip(_BLANK):
            return _unreadable(given, "a header line has no name and colon")
        header = _repeated_header(name, value) if name in _REPEATED_BYTES else _header(name, value)
        if header is not None:
            found.append(header)
    return tuple(found)


def copied_headers(given: bytes, *, msg_id: str, unreadable: str = "", most: int = SERVERS_MOST_BYTES) -> bytes:
    """Return the lines for a copy of a message, as they came, but for those that the server would act on.

    With `unreadable` the copy is unreadable for this reason. `most` is how many bytes it may have. Where the additions do not
    fit, they are left out: without its id the server may store a second copy, which deduplication drops.
    """
    first, *rest = given.split(_END) if given else [VERSION]
    lines = [line for line in rest if line]
    kept = [copied for line in lines if (copied := _copied_line(line)) is not None]
    named = [f"{MSG_ID}: {msg_id}".encode()] if _plain_value(msg_id) else []
    marks = [_line(UNREADABLE, unreadable)] if unreadable else []
    start = VERSION if unreadable else first
    plain = [*marks, *(line for line in lines if not _is_servers(line))]
    tried = [*marks, *kept, *named], [*marks, *kept], plain, marks or plain
    most = min(most, SERVERS_MOST_BYTES)
    written = (_END.join((start, *each, b"", b"")) for each in tried)
    return next((each for each in written if len(each) <= most), given)


def _is_servers(line: bytes) -> bool:
    return line.lower().lstrip(_BLANK).startswith(_SERVERS.encode())


def _copied_line(line: bytes) -> bytes | None:
    """Return a line for a copy; None for one that is not part of the message."""
    if not _is_servers(line):
        return line
    name, _, value = line.partition(b":")
    header = _header(name, value)
    return None if header is None else _line(*header)


def is_unreadable(headers: Headers) -> bool:
    return bool(headers) and headers[0][0] == UNREADABLE


def _line(name: str, value: str) -> bytes:
    kind = _kind(name)
    if kind == "attribute":
        return _name(name) + _encoded(value)
    if kind == "plain" and _plain_value(value):
        return _name(name) + raw(value)
    return ESCAPED.encode() + _encoded(name).replace(b":", b"%3A") + b": " + _encoded(value)


_repeated_line = lru_cache(1000)(_line)


def _header(name_bytes: bytes, value_bytes: bytes) -> tuple[str, str] | None:
    name, value = _text(name_bytes.strip(_BLANK)), _text(value_bytes.strip(_BLANK))
    if name.startswith(ESCAPED):
        return _decoded(name.removeprefix(ESCAPED)), _decoded(value)
    if name == MSG_ID and value.startswith(MOVED):
        return None
    if _kind(name) != "attribute" or "%" not in value:
        return name, value
    decoded = _decoded(value)
    # A producer that does not encode may mean the percent sign itself. Only what an encoder writes is decoded.
    return name, decoded if _encoded(decoded) == raw(value) else value


_repeated_header = lru_cache(1000)(_header)


def _unreadable(given: bytes, why: str) -> Headers:
    return (UNREADABLE, f"the NATS headers cannot be decoded: {why}. Correct the sender"), (
        RAW_PROPERTIES,
        b64encode(given).decode(),
    )


@lru_cache(1000)
def _kind(name: str) -> str:
    lower = name.lower()
    if not _plain_name(name) or lower.startswith((_SERVERS, ESCAPED)):
        return "escaped"
    return "attribute" if lower.startswith(PREFIX) else "plain"


@lru_cache(1000)
def _name(name: str) -> bytes:
    return name.encode() + b": "


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _encoded(value: str) -> bytes:
    """Percent-encode as the HTTP binding of CloudEvents does (section 3.1.3.2)."""
    if _is_safe(value):
        return value.encode()
    return _to_encode.sub(lambda found: b"%%%02X" % found[0][0], raw(value))


def _decoded(value: str) -> str:
    return _text(unquote_to_bytes(raw(value)))
