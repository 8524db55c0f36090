"""A document store in memory, the ports around it, and the algorithm's steps taken by hand."""

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from onceonly.documents.register import DocumentRegister
from onceonly.documents.store import DocumentStore
from onceonly.formats.documents import EntityDocument, decode_entity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.documents import DocumentLimits
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import effects, message
from onceonly_conformance.suite import ENDPOINT
from tests.documents.fakes import RecordingDocuments

WEEK = timedelta(days=7)
ORDER = "order/17"
ENTITY = f"entity/{ORDER}"
ONE_EFFECT = effects()[:1]


class StoreHarness:
    """One place for documents, told, and stores on it."""

    def __init__(self, *, body: int = 0) -> None:
        self.documents = RecordingDocuments()
        self.clock = ManualClock()
        if body:
            self.documents.limits = DocumentLimits(service="this service", key=1024, body=body)
            self.documents.inner.limits = self.documents.limits

    def store(self, history: timedelta | None = WEEK) -> DocumentStore:
        """Open a store, as a process of its own would."""
        return DocumentStore(self.documents, ENDPOINT, clock=self.clock, history=history)

    def register(self) -> DocumentRegister:
        """Open a register likewise."""
        return DocumentRegister(self.store())

    async def entity(self, key: str = ENTITY) -> EntityDocument:
        """Read a document."""
        found = await self.documents.inner.load([key])
        return decode_entity(key, found[key].body if key in found else None)

    async def kept(self) -> list[str]:
        """List the keys of all documents."""
        return list(await self.documents.inner.keys(""))


def about(name: str = "m1", unit: str = ORDER, **fields: object) -> Message:
    """Make a message about an entity."""
    return replace(message(name), unit=unit, **fields)


async def handle(store: DocumentStore, asked: Message, decided: Sequence[object] = ()) -> Record:
    """Handle one message up to its commit; gives its record."""
    unit = await store.begin([asked])
    record = Record(asked.identity, tuple(decided), unit=unit.key, token=asked.token)  # type: ignore[arg-type]
    await unit.commit([record])
    return record
