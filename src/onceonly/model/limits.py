"""What every transport and every store takes: names of endpoints, and attributes of messages up to a length in bytes of UTF-8.

Names of endpoints are parts of queue names and of commands to brokers, so they come from an allow-list. A name that is read
back, from a broker's subscriptions or from a table, is foreign text until it has passed this rule.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, TypeAlias, TypeGuard
from unicodedata import category

from msgspec import Meta

NAME_RULE = "an endpoint name is a lower-case letter, then at most 62 lower-case letters, digits, '-', '_' or '.'"

_is_name = re.compile(r"[a-z][a-z0-9_.-]{0,62}").fullmatch


def is_endpoint_name(name: object) -> TypeGuard[str]:
    """Return whether an endpoint may have this name."""
    return isinstance(name, str) and _is_name(name) is not None


SHORT, LONG, LONGEST = 255, 1024, 8192
StoredInt: TypeAlias = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""A number that is read from stored JSON, which has no limit. Sums and differences of these fit into a float."""
MOST_HISTORY = 64
"""Entries of a failure history."""
_LIMITS = MappingProxyType(
    dict.fromkeys(("type", "datacontenttype", "specversion", "token", "onceonlyidentity", "onceonlyhops"), SHORT)
    | dict.fromkeys(("id", "source", "subject", "time"), LONG)
    | dict.fromkeys(
        ("causationid", "conversationid", "replyto", "traceparent", "tracestate", "onceonlyrequest", "onceonlyclass"), LONG
    )
)


def limit_of(attribute: str) -> int:
    return _LIMITS.get(attribute, LONGEST)


def too_long(attributes: Iterable[tuple[str, str]]) -> str | None:
    """Return why an attribute is too long, or None."""
    for name, value in attributes:
        size = len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        if size > limit_of(name):
            return f"the attribute `{name}` is {size:,} bytes long, and the limit is {limit_of(name):,}. Send a shorter one"
    return None


@lru_cache(1000)
def type_problem(name: str) -> str | None:
    """Return why no message can be sent as this type, or None. CloudEvents allows no control characters in text."""
    if any(category(letter) in ("Cc", "Cs") for letter in name):
        return "its type has control characters or is not valid Unicode. Use plain text"
    problem = too_long((("type", name),))
    return None if problem is None else problem.replace("the attribute `type`", "its type")
