"""Why a body cannot be read: the field, what is expected, and what is there, on one line.

What is there is cut and escaped. It is not shown where the name or the type of the field marks a secret.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from onceonly.formats.body_fields import is_secret_field
from onceonly.formats.escaping import escape

LONGEST_SHOWN = 60
"""Characters of a value."""
MOST_PROBLEMS = 3
"""Problems that one reason lists."""

_AT = re.compile(r"^(?P<problem>.*?) - at `(?:key in )?\$?(?P<path>[^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_NOTHING = object()


def native_reason(error: Exception, body: bytes, kind: Any) -> str:
    """Return the reason of a validation error of msgspec's."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return one_line(text)
    found = _AT.match(text)
    if found is None:
        return one_line(text)
    path = [_step(*step) for step in _STEP.findall(found["path"])]
    value = _follow(body, path)
    return f"{one_line(text)}{_found(value, path, kind)}"


def pydantic_reason(error: Any, kind: Any) -> str:
    """Return the reason of a validation error of pydantic's: at most three problems."""
    if not hasattr(error, "errors"):
        return one_line(str(error))
    try:
        problems = error.errors(include_url=False, include_context=False)
    except Exception:  # noqa: BLE001 - an error that a validator of the user's made
        return type(error).__name__
    lines = [_pydantic_problem(each, kind) for each in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"and {len(problems) - MOST_PROBLEMS} more")
    return "; ".join(lines)


def one_line(text: str) -> str:
    """Escape what would break a line or move a cursor."""
    return escape(text, multiline=False)


def _pydantic_problem(problem: Any, kind: Any) -> str:
    path = list(problem["loc"])
    text = f"{'.'.join(map(str, path)) or 'body'}: {problem['msg']}"
    value = _NOTHING if problem["type"] in ("missing", "json_invalid") else problem.get("input", _NOTHING)
    return f"{one_line(text)}{_found(value, path, kind)}"


def _step(name: str, index: str) -> str | int:
    return name or (int(index) if index.isdigit() else index)


def _follow(body: bytes, path: Iterable[str | int]) -> Any:
    """Return the value at a path of a document, or `_NOTHING` where the path is not exact."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _NOTHING
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return _NOTHING
    return value


def _found(value: Any, path: Iterable[object], kind: Any) -> str:
    if value is _NOTHING or isinstance(value, dict | list) or is_secret_field(kind, path):
        return ""
    text = one_line(ascii(value)).replace("`", "'")
    return f"; found `{text[:LONGEST_SHOWN]}{'...' if len(text) > LONGEST_SHOWN else ''}`"
