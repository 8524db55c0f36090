"""Listing what small documents say, in the order of their keys, as far as they can be read."""

from collections.abc import Callable
from typing import TypeVar

from onceonly.model.errors import SchemaTooNew
from onceonly.ports.documents import Document, Documents

Said = TypeVar("Said")
Read = Callable[[str, Document], Said | None]
"""What a document says; None when it is not one of those wanted. Raises SchemaTooNew when that cannot be told."""


async def listed(documents: Documents, prefix: str, read: Read[Said], limit: int) -> tuple[Said, ...]:
    """List what is wanted of the documents with this prefix, at most `limit`.

    One that cannot be read is passed over, and told where there is nothing else: raises SchemaTooNew then. Raises Failed.
    """
    found: list[Said] = []
    unreadable: SchemaTooNew | None = None
    after = ""
    while len(found) < limit and (page := await documents.keys(prefix, after=after)):
        loaded = await documents.load(page)
        for key in (key for key in page if key in loaded):
            try:
                said = read(key, loaded[key])
            except SchemaTooNew as error:
                unreadable = error
            else:
                found += [] if said is None else [said]
        after = page[-1]
    if unreadable is not None and not found:
        raise unreadable
    return tuple(found[:limit])
