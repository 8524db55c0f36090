"""Headers of messages: as options, `--header NAME=VALUE`, and in lines of `onceonly send`."""

import json
from collections.abc import Sequence

from onceonly.model.errors import SetupError
from onceonly.model.headers import headers_of, size_problem
from onceonly.model.message import Headers


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
