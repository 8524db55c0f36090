"""Text from messages, made safe for stores and for terminals.

A transport keeps bytes that are not UTF-8 as lone surrogates (PEP 383), which no store takes. A message can also hold
characters that move the cursor, clear the screen or reverse the order of what follows: C0 and C1 controls, DEL, bidirectional
marks and overrides, invisible characters. Everything that people read passes through here.
"""

import re
from base64 import b64encode
from typing import Any

import msgspec

RAW_HEADER = "onceonly-raw-header"
"""The header of a dead letter with the exact bytes of a header that is not UTF-8: name and value, each in base64."""


def is_utf8(text: str) -> bool:
    """Return whether a text can be stored and sent."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def raw(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that no byte decodes to
        return text.encode("utf-8", "surrogatepass")


def readable(text: str) -> str:
    r"""Write bytes that are not UTF-8 as `\xff`; other text stays as it is."""
    return text if is_utf8(text) else raw(text).decode("utf-8", "backslashreplace")


def readable_headers(headers: tuple[tuple[str, str], ...], *, exact: bool = False) -> tuple[tuple[str, str], ...]:
    """Make headers storable. With `exact`, append the bytes of those that were not UTF-8."""
    if all(is_utf8(name) and is_utf8(value) for name, value in headers):
        return headers
    shown = [(readable(name), readable(value)) for name, value in headers]
    if exact:
        odd = [pair for pair in headers if not (is_utf8(pair[0]) and is_utf8(pair[1]))]
        shown += [(RAW_HEADER, " ".join(b64encode(raw(part)).decode() for part in pair)) for pair in odd]
    return tuple(shown)


_LINES = frozenset("\n\t")
_CANDIDATES = re.compile(r"[^\x20-\x7e]")
_encode = msgspec.json.Encoder().encode


def escape(text: str, *, multiline: bool = True) -> str:
    r"""Replace unprintable characters by escapes such as `\x1b`. Line feeds and tabs stay, unless `multiline` is false."""
    if text.isprintable():
        return text
    kept = _LINES if multiline else frozenset()
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def escape_json(document: str) -> str:
    r"""Replace unprintable characters of a JSON document by `\uXXXX`: the same document for a parser. Line feeds stay."""
    return document if document.isprintable() else _CANDIDATES.sub(_json_escape, document)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write a value as JSON that is safe to print. Lone surrogates are allowed; `indent` is the number of spaces."""
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which msgspec neither writes nor formats
        import json  # noqa: PLC0415 - rarely needed

        return json.dumps(msgspec.to_builtins(value), indent=indent).replace("\x7f", "\\u007f")
    if indent is not None:
        encoded = msgspec.json.format(encoded, indent=indent)
    return escape_json(encoded.decode())


def _json_escape(found: re.Match[str]) -> str:
    import json  # noqa: PLC0415 - rarely needed

    character = found[0]
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
