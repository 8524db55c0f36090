"""The records that relays find on documents: shared by relays that take at once, whatever one document contains."""

import asyncio
from collections.abc import Sequence
from typing import Any

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.pending import DocumentPending
from onceonly.documents.store import DocumentStore
from onceonly.model.identity import Identity
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock

ENDPOINT = "desk"
LEASE_MS = 10_000
BEHIND = 1 << 52
"""An instant later than any commit."""


class Desk:
    """Records of one endpoint, and relays that take them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = Live()
        self.documents = MemoryDocuments(self.driver)
        self.store = DocumentStore(self.documents, ENDPOINT, clock=self.clock, history=None)

    def relay(self, documents: MemoryDocuments | None = None) -> DocumentPending:
        """Return what another process has."""
        documents = documents or MemoryDocuments(self.driver)
        return DocumentPending(DocumentStore(documents, ENDPOINT, clock=self.clock, history=None), documents)

    async def commit(self, count: int) -> set[Identity]:
        """Commit this many records, each in a document of its own."""
        records = []
        for number in range(count):
            about = Message(id=f"m{number}", source="web", type="Note", body=b"{}", unit=f"Note/{number}")
            unit = await self.store.begin([about])
            send = Send(message=Message(id=f"s{number}", source=ENDPOINT, type="Noted", body=b"{}"), to="ledger")
            records.append(Record(about.identity, unit=unit.key, effects=(send,)))
            await unit.commit(records[-1:])
        return {record.identity for record in records}


def identities(records: Sequence[Record]) -> set[Identity]:
    """Return of which messages these are."""
    return {record.identity for record in records}


async def test_relays_that_take_at_once_each_have_a_part() -> None:
    """The one that is late with its lease goes on behind what others have taken, and does not come away with nothing."""
    desk = Desk()
    committed = await desk.commit(300)
    parts = await asyncio.gather(*(desk.relay(Together(desk.driver)).take(BEHIND, 100, lease=LEASE_MS) for _ in range(3)))
    assert [len(part) for part in parts] == [100, 100, 100]
    assert set().union(*(identities(part) for part in parts)) == committed


class Together(MemoryDocuments):
    """Documents whose leases are read by all relays before any of them writes."""

    async def load(self, keys: Sequence[str]) -> Any:
        """Let the others read as well."""
        found = await super().load(keys)
        for _ in range(10):
            await asyncio.sleep(0)
        return found


async def test_a_document_of_other_programs_does_not_stop_the_records_of_others() -> None:
    """Nor one of a newer version, nor one with a record that cannot be read. They stay, and the others are given."""
    desk = Desk()
    committed = await desk.commit(4)
    broken = (b"no JSON", b'{"onceonly": 99}', b'{"onceonly": 1, "records": {"x": {"body": "00", "owes": 5}}}')
    for number, body in enumerate(broken):
        key = f"entity/Note/{number}"
        version = (await desk.documents.load([key]))[key].version
        change = Change(key=key, body=body, expected=version, pending_for=(ENDPOINT,), pending_since=1)
        assert await desk.documents.save([change]) != (None,)
    relay = desk.relay()
    (left,) = await relay.take(BEHIND, 100, lease=LEASE_MS)
    assert left.identity in committed
    assert identities(await relay.undispatched(BEHIND, 100)) == {left.identity}
    assert await relay.find([left.identity]) == (left,)
