"""A counter on documents: a number that outlives processes, to which several may add."""

import msgspec
from msgspec import Struct

from onceonly.documents.compare_and_set import compare_and_set
from onceonly.model.errors import SchemaTooNew
from onceonly.ports.documents import Change, Document, Documents


class Count(Struct, frozen=True):
    """The body of a counter's document."""

    count: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Count).decode


class DocumentCounter:
    """A counter in one document. Implements the Counter port."""

    def __init__(self, documents: Documents, name: str) -> None:
        """Use a place for documents; the key begins with `count/`."""
        self._documents = documents
        self._key = f"count/{name}"

    async def add(self, count: int) -> None:
        """Add to it; see the port."""

        def added(key: str, found: Document | None) -> Change:
            return Change(key=key, body=_encode(Count(self._read(found) + count)), expected=found.version if found else "")

        await compare_and_set(self._documents, [self._key], added)

    async def read(self) -> int:
        """Give it; 0 where nobody ever added."""
        return self._read((await self._documents.load([self._key])).get(self._key))

    def _read(self, found: Document | None) -> int:
        try:
            return _decode(found.body).count if found else 0
        except msgspec.DecodeError as error:
            raise SchemaTooNew(f"{self._key!r} is no counter that this onceonly can read ({error})") from error
