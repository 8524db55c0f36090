"""The janitor's journal in a document of its own, beside the entities."""

import msgspec

from onceonly.documents.compare_and_set import compare_and_set
from onceonly.model.errors import SchemaTooNew
from onceonly.model.journal import Journal
from onceonly.ports.documents import Change, Document, Documents

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Journal).decode


class DocumentJournals:
    """The journal of one endpoint. Implements the Journals port; the key begins with `janitor/`."""

    def __init__(self, documents: Documents, endpoint: str) -> None:
        """Use a place for documents."""
        self._documents = documents
        self._key = f"janitor/{endpoint}"

    async def read(self) -> Journal | None:
        """Read it; see the port."""
        found = (await self._documents.load([self._key])).get(self._key)
        try:
            return None if found is None else _decode(found.body)
        except msgspec.DecodeError as error:
            raise SchemaTooNew(f"{self._key!r} is no journal that this onceonly can read ({error})") from error

    async def write(self, journal: Journal) -> None:
        """Write it; the last one stays."""

        def replaced(key: str, found: Document | None) -> Change:
            return Change(key=key, body=_encode(journal), expected=found.version if found else "")

        await compare_and_set(self._documents, [self._key], replaced)

    async def longest_retention(self) -> int:
        """Give this endpoint's: nobody shares what its store keeps."""
        journal = await self.read()
        return journal.retention if journal else 0
