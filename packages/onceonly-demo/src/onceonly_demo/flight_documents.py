"""Documents of the application next to the entities, as handlers write them, and the check that no half of them is there."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from onceonly import Context, SetupError
from onceonly.formats.documents import decode_entity
from onceonly.ports.documents import Change, Document, DocumentAddress, Documents, DocumentWrite, SavesTogether
from onceonly_demo.entity_handlers import Leg
from onceonly_demo.flights import LEDGER, LOYALTY


class FlightDocument(msgspec.Struct):
    """What was counted for one message, and the mark of the attempt that counted it last."""

    leg: str
    miles: int
    mark: str


class TotalDocument(msgspec.Struct):
    """What was counted on one leg by one endpoint, added up by each message in turn."""

    flights: int = 0
    miles: int = 0


_leg = msgspec.json.Decoder(Leg).decode
_flight = msgspec.json.Decoder(FlightDocument).decode
_total = msgspec.json.Decoder(TotalDocument).decode


class FlightDocuments(NamedTuple):
    """Where the documents of a run are. All keys begin with `prefix`."""

    prefix: str
    collection: str = ""

    async def write(self, leg: Leg, miles: int, mark: str, context: Context) -> None:
        """Write a document for this message, and add it to the total of its leg: with the entity, or not at all."""
        documents, own = context.documents, f"{context.endpoint}-{leg.leg}"
        total = await documents.get(self._key(own), TotalDocument, collection=self.collection) or TotalDocument()
        total = TotalDocument(total.flights + 1, total.miles + miles)
        documents.put(self._key(own), total, collection=self.collection)
        flight = FlightDocument(leg.leg, miles, mark)
        documents.put(self._key(f"{context.endpoint}-{context.message.id}"), flight, collection=self.collection)

    async def half_batches(self, documents: Documents, key: str, state: bytes) -> int:
        """Count the documents next to an entity that disagree with it, including those that are missing."""
        leg, found = _leg(state), await self._read(documents, key, state)
        endpoint = leg.journal[0].endpoint
        marks = {self._flight_of(endpoint, row.id): row.mark for row in leg.journal}  # of the last attempt
        wrong = [at for at, mark in marks.items() if at not in found or _flight(found[at].body).mark != mark]
        total = found.get(self._total_of(endpoint, leg.leg))
        is_right = total is not None and _total(total.body) == TotalDocument(len(leg.journal), leg.miles)
        return len(wrong) + (not is_right)

    async def delete(self, documents: Documents, key: str) -> None:
        """Delete the documents next to an entity. The entity stays as it is."""
        stored = (await documents.load([key]))[key]
        state = decode_entity(key, stored.body).state
        if state is None:
            return
        together, found = _together(documents), await self._read(documents, key, state)
        deletes = [DocumentWrite(address=at, body=None, expected=each.version) for at, each in found.items()]
        version = stored.version
        for start in range(0, len(deletes), together.max_together):
            change = Change(key=key, body=stored.body, expected=version)
            version = await together.save_together(change, deletes[start : start + together.max_together]) or ""

    async def check(self, documents: Documents) -> None:
        """Check that the store can write them. Raises SetupError."""
        problem = "it does not write several documents at once"
        if isinstance(documents, SavesTogether):
            write = DocumentWrite(address=self._total_of(LOYALTY, "leg"), body=msgspec.json.encode(TotalDocument()))
            problem = await documents.why_not_together() or documents.problem_of(f'entity//["UA"]/{LEDGER}', write)
        if problem:
            raise SetupError(f"--documents cannot be used with this store: {problem}")

    async def _read(self, documents: Documents, key: str, state: bytes) -> dict[DocumentAddress, Document]:
        leg = _leg(state)
        endpoint = leg.journal[0].endpoint
        addresses = [self._total_of(endpoint, leg.leg), *(self._flight_of(endpoint, row.id) for row in leg.journal)]
        return dict(await _together(documents).read(key, list(dict.fromkeys(addresses))))

    def _flight_of(self, endpoint: str, message: str) -> DocumentAddress:
        return DocumentAddress(self.collection, (self._key(f"{endpoint}-{message}"),))

    def _total_of(self, endpoint: str, leg: str) -> DocumentAddress:
        return DocumentAddress(self.collection, (self._key(f"{endpoint}-{leg}"),))

    def _key(self, name: str) -> str:
        return self.prefix + name


async def count_half_batches(
    flight_documents: FlightDocuments, documents: Documents, states: Sequence[tuple[str, bytes]]
) -> int:
    """Count the application's documents that disagree with their entity, given each key and state."""
    return sum([await flight_documents.half_batches(documents, key, state) for key, state in states])


def _together(documents: Documents) -> SavesTogether:
    assert isinstance(documents, SavesTogether)  # noqa: S101 - `check` found it at the start
    return documents
