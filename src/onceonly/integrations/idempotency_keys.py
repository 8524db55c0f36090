"""The header `Idempotency-Key`: what is a key, and what is refused."""

import re
from collections.abc import Sequence

from onceonly.integrations.problems import RequestProblem

KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = r'^("([ !#-\[\]-~]|\\["\\])+"|[!#-+\--:<-\[\]-~]+)$'
"""The values that are a key, as a regular expression of JSON Schema (ECMA 262)."""
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
_ESCAPED = re.compile(r"\\(.)")


class MalformedKey(ValueError):
    """The header is there and holds no key that could be understood. The message is for the client."""


def read_key(lines: Sequence[str]) -> str | None:
    """Return the key of a request by the header's lines; None without any. Its length is not judged. Raises MalformedKey.

    The header is one string in quotes (draft-ietf-httpapi-idempotency-key-header; RFC 9651, 3.3.3). Many clients leave the
    quotes out, so a bare value of visible ASCII is the same key. Parameters, a list, or the header twice are refused: two
    readers could disagree about them.
    """
    if not lines:
        return None
    if len(lines) > 1:
        raise MalformedKey(f"the header {KEY_HEADER} was sent {len(lines)} times: send it once")
    value = lines[0].strip(" ")
    if quoted := _QUOTED.fullmatch(value):
        return _ESCAPED.sub(r"\1", quoted[1])
    if _BARE.fullmatch(value):
        return value
    raise MalformedKey(
        f'the header {KEY_HEADER} must be one string in quotes, such as {KEY_HEADER}: "8e03978e-40d5-43dd-bc93-6894a57f9324"'
    )


def key_of_request(lines: Sequence[str], *, required: bool) -> str | None:
    """Return the key of a request. Raises RequestProblem for a malformed one, and for none where one is required."""
    try:
        key = read_key(lines)
    except MalformedKey as error:
        raise RequestProblem("malformed-key", str(error)) from error
    if key is None and required:
        repeats = "send a new string in quotes with each new request, the same when you repeat it"
        raise RequestProblem("key-missing", f"the header {KEY_HEADER} is missing: {repeats}")
    return key
