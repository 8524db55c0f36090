"""Several relays on documents share what waits: each record is sent by one of them, and each relay has its part."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_relay, open_transport
from onceonly.assembly.documents import open_documents
from onceonly.cli.relay_once import relay_endpoint_once
from onceonly.documents.pending import DocumentPending, ListedRecord
from onceonly.ports.documents import Change
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from tests.endpoint.left_documents import commit
from tests.servers.available import MEASURED

RECORDS = 300
RELAYS = 2
LEDGER = Topology(endpoint="ledger", commands=("Noted",))


class CountSent:
    """An observer that counts the messages that one relay sends."""

    def __init__(self) -> None:
        self.sent = 0

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count after the call."""
        yield
        if call.point is Point.DISPATCH:
            self.sent += len(call.items)


async def relay_until_empty(store: str, transport: str) -> list[int]:
    """Run the relays until nothing waits. Returns how many messages each has sent."""
    desk = Endpoint("desk", store=store, transport=transport, relay_after=0.05)
    stop, are_open, counts = asyncio.Event(), asyncio.Barrier(RELAYS), [CountSent() for _ in range(RELAYS)]

    async def run(count: CountSent) -> None:
        async with open_relay(desk.settings, observer=count) as ports:
            found = ports.for_relay()
            assert found is not None
            await are_open.wait()
            await Relay(by_relay(found), after=0.05, grace=5.0, notifier=Notifier()).run(stop)

    relaying = [asyncio.create_task(run(count)) for count in counts]
    async with open_relay(desk.settings) as ports:
        assert ports.pending is not None
        while await ports.pending.undispatched(1 << 52, 1):  # noqa: ASYNC110 - documents have no events
            await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*relaying)
    return [count.sent for count in counts]


async def test_two_relays_share_what_waits(redis_url: str, tmp_path: Path) -> None:
    """No record is sent twice, and both have sent some."""
    transport = f"sqlite:///{tmp_path}/queue.db"
    async with open_documents(redis_url, clock=LIVE.clock) as documents, open_transport(transport, "ledger") as ledger:
        await ledger.declare([LEDGER])
        await commit(documents, *(f"n{number}" for number in range(RECORDS)))
        parts = await relay_until_empty(redis_url, transport)
        MEASURED.append(f"two relays on Redis, {RECORDS} records: {parts} sent")
        assert (await ledger.depth("ledger")).waiting == RECORDS == sum(parts)
        assert min(parts) > 0


@pytest.mark.slow
async def test_without_leases_records_are_sent_twice(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the count above can fail."""

    async def given(_: DocumentPending, wanted: Sequence[ListedRecord], *__: object) -> Sequence[ListedRecord]:
        return wanted

    monkeypatch.setattr(DocumentPending, "_lease", given)
    transport = f"sqlite:///{tmp_path}/queue.db"
    async with open_documents(redis_url, clock=LIVE.clock) as documents, open_transport(transport, "ledger") as ledger:
        await ledger.declare([LEDGER])
        await commit(documents, *(f"n{number}" for number in range(RECORDS)))
        parts = await relay_until_empty(redis_url, transport)
        MEASURED.append(f"two relays on Redis without leases, {RECORDS} records: {parts} sent")
        assert (await ledger.depth("ledger")).waiting == sum(parts) > RECORDS


async def test_what_cannot_be_sent_or_read_does_not_stop_the_others(redis_url: str, tmp_path: Path) -> None:
    """The earliest has no queue, the next is a document of another program, and one has a body that is not JSON."""
    transport = f"sqlite:///{tmp_path}/queue.db"
    desk = Endpoint("desk", store=redis_url, transport=transport, relay_after=0.05)
    async with open_documents(redis_url, clock=LIVE.clock) as documents, open_transport(transport, "ledger") as ledger:
        await ledger.declare([LEDGER])
        await commit(documents, "lost", to="nowhere")
        foreign = Change(key="entity/Note/foreign", body=b"not JSON", pending_for=("desk",), pending_since=LIVE.clock.now())
        await documents.save([foreign])
        await commit(documents, "odd", body=b"\xff\x00 not JSON")
        await commit(documents, "a", "b")
        done = await relay_endpoint_once(desk.settings)
        assert (done.sent, done.left, done.is_over) == (3, 1, False)
        assert done.examples == ("Noted to nowhere, sent-lost",)
        found = await ledger.receive(10, 1.0)
        assert {each.body for each in found} == {b"{}", b"\xff\x00 not JSON"}
        assert len(found) == 3
