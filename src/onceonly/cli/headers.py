"""Headers of messages as options: `--header NAME=VALUE`."""

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
