"""Text from messages, made safe for a terminal.

A message can hold characters that move the cursor, clear the screen or reverse the order of what follows: C0 and C1 controls,
DEL, bidirectional marks and overrides, invisible characters, lone surrogates. Everything that people read passes through here.
"""

import json
import re
from typing import Any

import msgspec

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
        return json.dumps(msgspec.to_builtins(value), indent=indent).replace("\x7f", "\\u007f")
    if indent is not None:
        encoded = msgspec.json.format(encoded, indent=indent)
    return escape_json(encoded.decode())


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
