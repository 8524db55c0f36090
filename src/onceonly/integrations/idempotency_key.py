r"""The header `Idempotency-Key`, as draft-ietf-httpapi-idempotency-key-header has it: one string in quotes (RFC 9651, 3.3.3).

Many clients leave the quotes out, so a bare value is taken as well, of visible ASCII without `"`, `,`, `;` and `\`. Quoted or
not, it is the same key. Whatever else there could be (parameters, a list, the header twice) is refused: two readers could
disagree about it.
"""

import re
from collections.abc import Sequence

from onceonly.model.transaction import LONGEST_KEY

NAME = "Idempotency-Key"
PATTERN = r'^("([ !#-\[\]-~]|\\["\\])+"|[!#-+\--:<-\[\]-~]+)$'
"""The values that are a key, as a regular expression of JSON Schema (ECMA 262)."""
LONGEST = LONGEST_KEY
"""Characters of a value that is a key in any case. In quotes there may be two more, and one more for each escape."""

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
_ESCAPED = re.compile(r"\\(.)")


class MalformedKey(ValueError):
    """The header is there and holds no key that could be understood. The message is for the client."""


def read_key(lines: Sequence[str]) -> str | None:
    """Give the key of a request by the header's lines; None without any. Its length is not judged. Raises MalformedKey."""
    if not lines:
        return None
    if len(lines) > 1:
        raise MalformedKey(f"the header {NAME} was sent {len(lines)} times: send it once")
    value = lines[0].strip(" ")
    if quoted := _QUOTED.fullmatch(value):
        return _ESCAPED.sub(r"\1", quoted[1])
    if _BARE.fullmatch(value):
        return value
    raise MalformedKey(
        f'the header {NAME} must be one string in quotes, such as {NAME}: "8e03978e-40d5-43dd-bc93-6894a57f9324"'
    )
