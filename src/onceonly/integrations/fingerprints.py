"""What two requests have in common that are the same, whatever bytes their client wrote.

query       pairs of name and value, decoded, ordered by name. Equal names stay in their order.
JSON        the values. A number is its digits, so 1, 1.0 and 1e0 are three.
form        as the query.
multipart   the parts, without the boundary.
other       the bytes.

JSON that another program could read in another way stays bytes: a name that comes twice, NaN, a nesting too deep. So does a
body with a Content-Encoding, or a charset other than UTF-8.
"""

import json
from collections.abc import Sequence
from email.message import Message
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl


def query_form(query: bytes) -> object:
    return ["pairs", _pairs(query)]


def body_form(types: Sequence[str], body: bytes, *, is_encoded: bool = False) -> object:
    """Return the canonical form of a body: JSON's own types, with a word that tells the kind.

    `types` are the lines of the header Content-Type. `is_encoded`: there is a Content-Encoding.
    """
    if len(types) == 1 and not is_encoded:
        parsed = Message()
        parsed["content-type"] = types[0]
        kind, charset = parsed.get_content_type(), str(parsed.get_param("charset") or "utf-8").lower()
        boundary = parsed.get_param("boundary")
        if (kind == "application/json" or kind.endswith("+json")) and charset in ("utf-8", "utf8"):
            return _json(body)
        if kind == "application/x-www-form-urlencoded" and charset in ("utf-8", "utf8"):
            return ["pairs", _pairs(body)]
        if kind == "multipart/form-data" and isinstance(boundary, str) and boundary:
            return _multipart(body, boundary.encode("latin-1", "replace"))
    return _bytes(body)


def _bytes(body: bytes) -> object:
    return ["bytes", sha256(body).hexdigest()]


def _pairs(text: bytes) -> list[list[str]]:
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    return sorted((list(pair) for pair in pairs), key=lambda pair: pair[0])


class _Ambiguous(ValueError):
    """Two programs could read this JSON differently."""


def _json(body: bytes) -> object:
    try:
        text = body.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_constant)
        return ["json", sha256(json.dumps(_tagged(value)).encode()).hexdigest()]
    except (ValueError, RecursionError):
        return _bytes(body)


class _Number(str):
    __slots__ = ()


def _number(digits: str) -> _Number:
    return _Number(digits)


def _constant(name: str) -> Any:
    raise _Ambiguous(name)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Ambiguous
    return found


def _tagged(value: Any) -> Any:
    """Mark texts and numbers, so that "1" and 1 differ, and order the names of objects."""
    if isinstance(value, dict):
        return {name: _tagged(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    if isinstance(value, str):
        return ("n" if isinstance(value, _Number) else "s") + value
    return value


def _multipart(body: bytes, boundary: bytes) -> object:
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if first or not parts or parts[-1].strip() != b"--":
        return _bytes(body)
    return ["parts", [sha256(part).hexdigest() for part in parts[:-1]]]
