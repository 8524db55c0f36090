"""The demo's documents of the application: written with the entities, and every half of a batch is found."""

import msgspec
import pytest

from onceonly import Endpoint, testing
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.formats.documents import EntityDocument, encode_entity
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite
from onceonly_demo.audit import JournalRow
from onceonly_demo.entity_handlers import Leg, register_entity_handlers
from onceonly_demo.flight_documents import FlightDocument, FlightDocuments, TotalDocument
from onceonly_demo.flights import LEDGER, LOYALTY, SOURCE, FlightDeparted

KEY = 'entity//["UA"]/Leg/UA-EWR-IAH'
FLIGHTS = FlightDocuments("demo_1_", "flights")
LEG = Leg("UA-EWR-IAH", "UA", 300, [JournalRow(LEDGER, SOURCE, "f1", "m1"), JournalRow(LEDGER, SOURCE, "f2", "m2")])
GOOD = {
    "ledger-f1": FlightDocument("UA-EWR-IAH", 100, "m1"),
    "ledger-f2": FlightDocument("UA-EWR-IAH", 200, "m2"),
    "ledger-UA-EWR-IAH": TotalDocument(2, 300),
}


async def stored(application: dict[str, object]) -> MemoryDocuments:
    """Store the entity with these documents next to it."""
    documents = MemoryDocuments(Live())
    writes = [
        DocumentWrite(address=DocumentAddress("flights", (f"demo_1_{name}",)), body=msgspec.json.encode(document))
        for name, document in application.items()
    ]
    change = Change(key=KEY, body=encode_entity(EntityDocument(msgspec.json.encode(LEG))))
    assert await documents.save_together(change, writes)
    return documents


async def test_documents_that_agree_with_their_entity_are_no_halves() -> None:
    assert await FLIGHTS.half_batches(await stored({**GOOD}), KEY, msgspec.json.encode(LEG)) == 0


async def test_a_flight_that_was_handled_twice_is_no_half() -> None:
    """The control run shows duplicates, not halves: its last attempt counts."""
    again = msgspec.structs.replace(LEG, miles=400, journal=[*LEG.journal, JournalRow(LEDGER, SOURCE, "f1", "m3")])
    documents = await stored({**GOOD, "ledger-f1": FlightDocument("", 100, "m3"), "ledger-UA-EWR-IAH": TotalDocument(3, 400)})
    assert await FLIGHTS.half_batches(documents, KEY, msgspec.json.encode(again)) == 0


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("ledger-f1", None),
        ("ledger-f2", FlightDocument("UA-EWR-IAH", 200, "another attempt")),
        ("ledger-UA-EWR-IAH", None),
        ("ledger-UA-EWR-IAH", TotalDocument(3, 300)),
        ("ledger-UA-EWR-IAH", TotalDocument(2, 400)),
    ],
)
async def test_a_half_is_found(name: str, document: object) -> None:
    """A document that is missing, of another attempt, or ahead of the entity."""
    application = {key: each for key, each in {**GOOD, name: document}.items() if each is not None}
    assert await FLIGHTS.half_batches(await stored(application), KEY, msgspec.json.encode(LEG)) == 1


async def test_the_documents_of_a_run_are_deleted() -> None:
    documents = await stored({**GOOD})
    await FLIGHTS.delete(documents, KEY)
    addresses = [DocumentAddress("flights", (f"demo_1_{name}",)) for name in GOOD]
    assert dict(await documents.read(KEY, addresses)) == {}
    assert set(await documents.load([KEY])) == {KEY}


async def test_a_store_that_cannot_write_them_is_refused() -> None:
    class Alone(MemoryDocuments):
        async def why_not_together(self) -> str:
            return "this server has no transactions"

    await FLIGHTS.check(MemoryDocuments(Live()))
    with pytest.raises(SetupError, match="this server has no transactions"):
        await FLIGHTS.check(Alone(Live()))


async def test_the_handlers_write_them() -> None:
    """A total is read and written by each message; the partition is the carrier."""
    ledger, loyalty = (Endpoint(name, store="memory://flights", transport="memory://flights") for name in (LEDGER, LOYALTY))
    register_entity_handlers(ledger, loyalty, FLIGHTS)
    async with testing.run(ledger) as t:
        for number in (1, 2):
            await t.deliver(FlightDeparted("UA", 100, "UA-EWR-IAH"), id=f"f{number}", copies=2)
        documents = t.store.documents
        (key,) = await documents.keys("entity/")
        assert key == KEY
        addresses = [
            DocumentAddress("flights", (f"demo_1_{name}",)) for name in ("ledger-f1", "ledger-f2", "ledger-UA-EWR-IAH")
        ]
        found = await documents.read(key, addresses)
        assert msgspec.json.decode(found[addresses[2]].body) == {"flights": 2, "miles": 200}
        state = (await t.store.look(key)).state
        assert await FLIGHTS.half_batches(documents, key, state) == 0
