"""What every adapter for documents checks before it sends anything."""

from collections.abc import Iterable

from onceonly.model.errors import CommitRefused
from onceonly.ports.documents import Change, DocumentLimits

_SHOWN = 80


def check_limits(changes: Iterable[Change], limits: DocumentLimits) -> None:
    """Make sure that a service holds all of these. Raises CommitRefused, which names the first that it does not."""
    for change in changes:
        shown = change.key[:_SHOWN]
        if not change.key:
            raise CommitRefused("a document must have a key of one character at least")
        try:
            length = len(change.key.encode())
        except UnicodeEncodeError as error:
            raise CommitRefused(f"the key {shown!r} is no text: it has half a surrogate pair") from error
        if length > limits.key:
            raise CommitRefused(f"the key {shown!r}... has {length} bytes; {limits.service} holds keys of {limits.key}")
        size = len(change.body or b"")
        if size > limits.body:
            raise CommitRefused(f"the document {shown!r} has {size} bytes; {limits.service} holds {limits.body}")
