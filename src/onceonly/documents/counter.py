"""A counter on documents: a number that outlives processes, to which several may add."""

import msgspec
from msgspec import Struct

from onceonly.model.errors import Failed, SchemaTooNew
from onceonly.ports.documents import Change, Document, Documents

TRIES = 20
"""How often adding is tried again after another worker was faster."""


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
        for _ in range(TRIES):
            found = await self._find()
            body = _encode(Count(self._read(found) + count))
            change = Change(key=self._key, body=body, expected=found.version if found else "")
            if (await self._documents.save([change]))[0] is not None:
                return
        raise Failed(f"{self._key!r} was written by others {TRIES} times in a row; try again")

    async def read(self) -> int:
        """Give it; 0 where nobody ever added."""
        return self._read(await self._find())

    async def _find(self) -> Document | None:
        return (await self._documents.load([self._key])).get(self._key)

    def _read(self, found: Document | None) -> int:
        try:
            return _decode(found.body).count if found else 0
        except msgspec.DecodeError as error:
            raise SchemaTooNew(f"{self._key!r} is no counter that this onceonly can read ({error})") from error
