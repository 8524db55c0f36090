"""Bodies, headers and tracebacks as pages show them: a limited part, secrets hidden."""

import re

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import HISTORY, attribute_of
from onceonly.model.escaping import RAW_HEADER
from onceonly.model.message import Headers
from onceonly.model.token import TOKEN

HIDDEN = "hidden"
"""What is shown in the place of a secret."""
SHOWN_BYTES = 64_000
SHOWN_HEX_BYTES = 8192
SHOWN_HEADERS = 200
SHOWN_TRACEBACK = 64_000
DEEPEST_JSON = 100

_SECRET = re.compile(r"auth|cookie|token|secret|passw|api-?key|signature|credential|session", re.IGNORECASE)
_BRACKETS = re.compile(rb"[\[\]{}]")
_HEX_ROW = 16


class Preview(Struct, frozen=True, kw_only=True):
    """A part of a body. `form` is "json", "text", "hex" or "empty"; `cut` is whether there is more than `text` shows."""

    form: str
    text: str
    total: int
    cut: bool = False


def preview(body: bytes) -> Preview:
    """Show a body: JSON with indentation, other text as it is, everything else as hexadecimal digits. At most 64 kB of it."""
    if not body:
        return Preview(form="empty", text="", total=0)
    cut = len(body) > SHOWN_BYTES
    text = _text(body[:SHOWN_BYTES], cut=cut)
    if text is None:
        return Preview(form="hex", text=_hex(body[:SHOWN_HEX_BYTES]), total=len(body), cut=len(body) > SHOWN_HEX_BYTES)
    if not cut and (formatted := _json(body)) is not None:
        return Preview(form="json", text=formatted, total=len(body))
    return Preview(form="text", text=text, total=len(body), cut=cut)


def shown_headers(headers: Headers) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return at most 200 headers, those with secrets hidden, and how many there are. Earlier failures are left out."""
    listed = [pair for pair in headers if pair[0] != RAW_HEADER and attribute_of(pair[0]) != HISTORY]
    shown = [(name, HIDDEN if is_secret(name) else value) for name, value in listed[:SHOWN_HEADERS]]
    return tuple(shown), len(listed)


def shown_traceback(text: str) -> tuple[str, bool]:
    """Return the end of a traceback, where the exception is, and whether something was left out."""
    return (text, False) if len(text) <= SHOWN_TRACEBACK else (text[-SHOWN_TRACEBACK:].partition("\n")[2], True)


def is_secret(name: str) -> bool:
    """Return whether the value of a header with this name is hidden."""
    return bool(_SECRET.search(name)) or attribute_of(name) == TOKEN


def _text(part: bytes, *, cut: bool) -> str | None:
    """Decode UTF-8. A character that is cut in two at the end is left out."""
    for end in range(4 if cut else 1):
        try:
            text = part[: len(part) - end].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def _json(body: bytes) -> str | None:
    """Indent JSON without a change of its numbers and strings. None if it is not JSON, or is nested too deeply."""
    depth = deepest = 0
    for found in _BRACKETS.findall(body):
        depth += 1 if found in b"[{" else -1
        deepest = max(deepest, depth)
    if deepest > DEEPEST_JSON:
        return None
    try:
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, RecursionError):
        return None


def _hex(part: bytes) -> str:
    rows: list[str] = []
    for start in range(0, len(part), _HEX_ROW):
        row = part[start : start + _HEX_ROW]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)  # noqa: PLR2004 - printable ASCII
        rows.append(f"{start:06x}  {row.hex(' '):<47}  {plain}")
    return "\n".join(rows)
