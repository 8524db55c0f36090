"""How long the attributes of a message may be, in bytes of UTF-8: what every transport and every store takes."""

from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, TypeAlias
from unicodedata import category

from msgspec import Meta

SHORT, LONG, LONGEST = 255, 1024, 8192
StoredInt: TypeAlias = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
"""A number that is read from stored JSON, which has no limit. Sums and differences of these fit into a float."""
MOST_HISTORY = 64
"""Entries of a failure history."""
_LIMITS = MappingProxyType(
    dict.fromkeys(
        ("type", "datacontenttype", "specversion", "token", "onceonlytime", "onceonlyidentity", "onceonlyhops"), SHORT
    )
    | dict.fromkeys(("id", "source", "subject", "time"), LONG)
    | dict.fromkeys(
        ("causationid", "conversationid", "replyto", "traceparent", "tracestate", "onceonlyrequest", "onceonlyclass"), LONG
    )
)


def limit_of(attribute: str) -> int:
    """Give the greatest length of a CloudEvents attribute."""
    return _LIMITS.get(attribute, LONGEST)


def too_long(attributes: Iterable[tuple[str, str]]) -> str | None:
    """Say which attribute is too long, or None."""
    for name, value in attributes:
        size = len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        if size > limit_of(name):
            return f"the attribute `{name}` is {size:,} bytes long, and the limit is {limit_of(name):,}. Send a shorter one"
    return None


@lru_cache(1000)
def type_problem(name: str) -> str | None:
    """Say why no message can be sent as this type, or None. CloudEvents allows no control characters in text."""
    if any(category(letter) in ("Cc", "Cs") for letter in name):
        return "its type has control characters or is not valid Unicode. Use plain text"
    problem = too_long((("type", name),))
    return None if problem is None else problem.replace("the attribute `type`", "its type")
