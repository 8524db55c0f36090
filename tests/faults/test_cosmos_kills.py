"""A process is killed at each of its calls of Cosmos DB, on the stand-in: what belongs together is never half there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from onceonly.assembly import open_transport
from onceonly.assembly.documents import create
from onceonly.ports.transport import Topology
from tests import ROOT
from tests.faults.cosmos_program import ACCOUNT, AMOUNT, RECEIVER, TENANT
from tests.servers.available import MEASURED
from tests.servers.cosmosdb.harness import CosmosStandIn

BEFORE = {"entity": None, "total": None, "receipt": None, "draft": {"n": 1}}
AFTER = {"entity": AMOUNT, "total": {"n": AMOUNT}, "receipt": {"amount": AMOUNT}, "draft": None}
DATA_CALLS = frozenset({"read", "write", "batch", "query"})


class Bank(NamedTuple):
    """One container with the draft of a document, and one queue."""

    server: CosmosStandIn
    container: str
    transport: str

    def start(self) -> subprocess.Popen[bytes]:
        """Start a process that handles the message."""
        store = self.server.place(self.container, "?partition_key=/tenantId")
        program = [sys.executable, "-m", "tests.faults.cosmos_program", store, self.transport]
        return subprocess.Popen(program, cwd=ROOT)

    def seen(self) -> dict[str, Any]:
        """Return what is there of what belongs together."""
        items = {item["id"]: item for item in self.server.items(self.container) if item["tenantId"] == TENANT}
        entity = items.get(f"entity=2FAccount=2F{ACCOUNT}")
        state = entity["onceonly"]["body"]["state"] if entity else None
        found: dict[str, Any] = {"entity": state["balance"] if state else None}
        for name in ("total", "receipt", "draft"):
            item = items.get(name)
            found[name] = {key: item[key] for key in ("n", "amount") if key in item} if item else None
        return found

    async def sent(self) -> set[str]:
        """Take what was sent to the receiver, by its ids: a copy has the same id."""
        async with open_transport(self.transport, RECEIVER) as queue:
            await queue.declare([Topology(endpoint=RECEIVER)])
            got = await queue.receive(100, 0)
            return {value for delivery in got for name, value in delivery.headers if name == "ce-id"}


@pytest.fixture
def banks(cosmos_standin: CosmosStandIn, tmp_path: Path) -> Iterator[Any]:
    """Return what makes a bank of its own."""

    async def make() -> Bank:
        bank = Bank(cosmos_standin, f"t{uuid4().hex[:12]}", f"sqlite:///{tmp_path}/{uuid4().hex}.db")
        await create(cosmos_standin.place(bank.container, "?partition_key=/tenantId"))
        cosmos_standin.put(bank.container, TENANT, {"id": "draft", "tenantId": TENANT, "n": 1})
        async with open_transport(bank.transport, "bank") as queue:
            await queue.declare([Topology(endpoint="bank"), Topology(endpoint=RECEIVER)])
        return bank

    yield make
    cosmos_standin.release()


@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_nothing_is_half_written_wherever_the_process_is_killed(banks: Any) -> None:
    """Before each request is applied, which happens after the death all the same, and after it, before its answer."""
    whole = await banks()
    whole.server.log()
    assert whole.start().wait() == 0
    calls = [kind for kind in whole.server.log()[0] if kind in DATA_CALLS]
    assert (whole.seen(), calls.count("batch"), len(await whole.sent())) == (AFTER, 1, 1)
    moments = {"nothing": 0, "all": 0}
    for number in range(len(calls)):
        for when in ("before", "after"):
            bank: Bank = await banks()
            bank.server.fault("any", "hold", when=when, skip=number)
            process = bank.start()
            bank.server.held()
            process.kill()
            process.wait()
            bank.server.release()
            seen = bank.seen()
            assert seen in (BEFORE, AFTER), f"killed {when} call {number + 1}, {calls[number]}: {seen}"
            moments["all" if seen == AFTER else "nothing"] += 1
            assert bank.start().wait() == 0
            assert (bank.seen(), len(await bank.sent())) == (AFTER, 1)
    assert all(moments.values()), moments
    MEASURED.append(f"killed at {len(calls)} calls of Cosmos DB ({', '.join(calls)}), twice each: half batches 0, {moments}")
