"""Headers that an application adds to a message: which names and values every transport carries unchanged."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from unicodedata import category

from onceonly.model.limits import SHORT
from onceonly.model.message import Headers

LONGEST_NAME, LONGEST_VALUE = 128, 8192
"""The longest name and the longest value of a header, in bytes of UTF-8."""
MOST_HEADER_BYTES = 16 * 1024
"""The limit for the names and values of all headers of a message together."""

_is_name = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}").fullmatch
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_is_media_type = re.compile(rf"{_WORD}/{_WORD}(?: *;(?: *{_WORD}=(?:{_WORD}|{_QUOTED}))?)*").fullmatch
_RESERVED = frozenset({"content-type", "cc", "bcc"})
_RESERVED_PREFIXES = (
    "ce-",
    "ce_",
    "cloudevents",
    "onceonly",
    "x-onceonly",
    "x-death",
    "x-first-death-",
    "x-last-death-",
    "x-delivery-count",
    "x-acquired-count",
)


def content_type_problem(given: object, *, longest: int = SHORT) -> str:
    """Return why a content type cannot be sent or stored everywhere; empty when it can.

    It is a media type, with parameters or without (RFC 9110, 8.3.1), in ASCII and without control characters.
    """
    if not isinstance(given, str):
        return f"must be a string, not {type(given).__name__}"
    if len(given) > longest:
        return f"has {len(given):,} characters; the limit is {longest}"
    if not _is_media_type(given):
        return f"must be a media type in ASCII, such as 'text/csv' or 'text/plain; charset=utf-8', not {given!r:.80}"
    return ""


def headers_of(given: object) -> Headers:
    """Check the headers that an application gives; the names stay as they are written. Raises ValueError, saying why."""
    if not isinstance(given, Mapping):
        raise ValueError(f"headers= must map names to texts, not be a {type(given).__name__}")  # noqa: TRY004 - as the others
    for name, value in given.items():
        if problem := _name_problem(name) or _value_problem(name, value):
            raise ValueError(problem)
    names: dict[str, str] = {}
    for name in given:
        if (other := names.setdefault(name.lower(), name)) != name:
            raise ValueError(f"the names of the headers {other!r} and {name!r} differ only in case. Use one of them")
    return tuple(given.items())


def names_problem(names: object) -> str | None:
    """Return what is wrong with a list of names of headers, or None."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        return f'it must be a list of names, such as ["tenant", "locale"], not {names!r:.100}'
    return next((problem for name in names if (problem := _name_problem(name))), None)


def size_problem(headers: Headers) -> str | None:
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers)
    if size <= MOST_HEADER_BYTES:
        return None
    return f"its headers are {size:,} bytes long, and the limit is {MOST_HEADER_BYTES:,}. Put the data into the body"


def carried(names: Iterable[str], incoming: Headers, own: Headers) -> Headers:
    """Return those headers of a message whose names are listed, in lower case, and not given by the handler itself.

    Raises ValueError for a value that cannot be sent.
    """
    wanted = frozenset(names) - {name.lower() for name, _ in own}
    found = tuple((name, value) for name, value in incoming if name.lower() in wanted)
    for name, value in found:
        if problem := _value_problem(name, value):
            raise ValueError(f"{problem}. It came with the message, and carry_headers= lists it")
    return found


def _name_problem(name: object) -> str | None:
    return f"a header's name is text, not {name!r:.100}" if not isinstance(name, str) else _text_problem(name)


@lru_cache(1000)
def _text_problem(name: str) -> str | None:
    if not _is_name(name):
        return (
            f"{name!r:.100} cannot be the name of a header. Use letters, digits, `.`, `_` and `-`, begin with a letter or "
            f"digit, and use {LONGEST_NAME} characters at most"
        )
    lower = name.lower()
    if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
        return f"the header {name!r} is reserved for CloudEvents, onceonly or the broker. Use another name"
    return None


def _value_problem(name: str, value: object) -> str | None:
    """Return what is wrong with a value. It is not shown: it may be a secret."""
    if not isinstance(value, str):
        return f"the header {name!r} must be text, not {type(value).__name__}. Use str(...)"
    if value.isascii() and value.isprintable():
        size = len(value)
    else:
        if any(category(letter) in ("Cc", "Cs") for letter in value):
            return f"the header {name!r} has control characters or is not valid Unicode. Use plain text of one line"
        size = len(value.encode())
    if size > LONGEST_VALUE:
        return f"the header {name!r} is {size:,} bytes long, and the limit is {LONGEST_VALUE:,}. Put the data into the body"
    return None
