"""Documents of the application in one unit: read while its handlers run, and written with its commit, all or none."""

from collections.abc import Mapping

from onceonly.ports.documents import Document, DocumentAddress, DocumentWrite, SavesTogether

Writes = Mapping[DocumentAddress, DocumentWrite]


class ApplicationDocuments:
    """What handlers of one unit have read and will write.

    A document that was read is written only if nobody else has changed it since. One that was not read is replaced.
    """

    def __init__(self, documents: SavesTogether, key: str) -> None:
        """Work next to the store's document with this key."""
        self.max_together = documents.max_together
        self._documents = documents
        self._key = key
        self._read: dict[DocumentAddress, Document | None] = {}
        self._writes: dict[DocumentAddress, DocumentWrite] = {}

    async def get(self, address: DocumentAddress) -> bytes | None:
        """Return a document as earlier handlers of this unit left it, or None. Raises as `SavesTogether.read`."""
        if (write := self._writes.get(address)) is not None:
            return write.body
        await self._load(address)
        found = self._read[address]
        return None if found is None else found.body

    def put(self, address: DocumentAddress, body: bytes, *, expires: int = 0) -> str:
        """Write a document with the commit. Returns why it cannot be written, or ""."""
        write = DocumentWrite(address=address, body=body, expected=self._expected(address), expires=expires)
        problem = self._documents.problem_of(self._key, write)
        if not problem and address not in self._writes and len(self._writes) >= self.max_together:
            problem = f"{self.max_together} documents at most can be written with one message"
        if not problem:
            self._writes[address] = write
        return problem

    async def delete(self, address: DocumentAddress) -> None:
        """Delete a document with the commit, if it exists. Raises as `SavesTogether.read`."""
        await self._load(address)
        if expected := self._expected(address):
            self._writes[address] = DocumentWrite(address=address, body=None, expected=expected)
        else:
            self._writes.pop(address, None)

    def writes(self) -> tuple[DocumentWrite, ...]:
        return tuple(self._writes.values())

    def mark(self) -> Writes:
        return dict(self._writes)

    def undo(self, mark: Writes) -> None:
        self._writes = dict(mark)

    async def _load(self, address: DocumentAddress) -> None:
        if address not in self._read:
            self._read[address] = (await self._documents.read(self._key, [address])).get(address)

    def _expected(self, address: DocumentAddress) -> str | None:
        if address not in self._read:
            return None
        found = self._read[address]
        return "" if found is None else found.version
