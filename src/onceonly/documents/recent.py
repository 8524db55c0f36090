"""Documents as this process read or wrote them last: guesses for `compare_and_set`, which save a load."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from onceonly.ports.documents import Document

MOST_DOCUMENTS = 10_000
MOST_BYTES = 16_000_000
"""Size of all bodies together."""


class RecentDocuments:
    """A bounded number of documents, with the versions of their bodies. The oldest are dropped first.

    A document here may be out of date. Use it only as a guess: a write by it names its version, so it is refused if another
    process has changed the document. Each guess is taken once.
    """

    def __init__(self, *, documents: int = MOST_DOCUMENTS, size: int = MOST_BYTES) -> None:
        """Hold at most this many documents, and `size` bytes of their bodies. A larger document is not held."""
        self._documents = documents
        self._size = size
        self._held: OrderedDict[str, Document] = OrderedDict()
        self._bytes = 0

    def add(self, key: str, document: Document) -> None:
        """Hold a document. It replaces an earlier version of the same key."""
        self.drop(key)
        self._held[key] = document
        self._bytes += len(document.body)
        while len(self._held) > self._documents or self._bytes > self._size:
            self._bytes -= len(self._held.popitem(last=False)[1].body)

    def drop(self, key: str) -> Document | None:
        """Remove a document, and return it if it was held."""
        document = self._held.pop(key, None)
        self._bytes -= len(document.body) if document is not None else 0
        return document

    def take(self, keys: Iterable[str]) -> Mapping[str, Document]:
        """Remove these documents, and return those that were held."""
        return {key: document for key in keys if (document := self.drop(key)) is not None}
