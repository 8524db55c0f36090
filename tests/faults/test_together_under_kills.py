"""Workers are killed around their commits: an account and two documents of the application are written together, each once."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
import pytest

from onceonly.assembly import open_transport, temporary_transport
from onceonly.assembly.documents import create, open_documents
from onceonly.config.location import locate
from onceonly.model.message import Message, Send
from onceonly.ports.documents import DocumentAddress, SavesTogether
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from tests import ROOT
from tests.faults.together_program import (
    APART,
    STORE,
    TRANSPORT,
    Deposit,
    account_key,
    receipt_of,
    total_of,
)
from tests.servers.available import MEASURED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

KILLS, ACCOUNTS = 10, ("A", "B", "C")
IN_ROUND = 2
"""Deposits of each account that are sent before each kill. Those of one account may share a commit."""
EACH = KILLS * IN_ROUND
POINTS = ("during-commit", "before-commit", "after-commit")
AT_COMMIT = 2
"""The commit of a process at which it is killed: there are three accounts, so it always comes to that."""
PATIENCE = 450.0
DEPOSITS = [Deposit(account, number) for number in range(EACH) for account in ACCOUNTS]
TOPOLOGY = Topology(endpoint="bank", commands=(Deposit.__name__,))


class Counts(NamedTuple):
    """What the accounts, the totals and the receipts say, for each account, and the kills."""

    accounts: list[int]
    totals: list[int]
    receipts: list[list[int]]
    kills: int

    @property
    def lost(self) -> int:
        """Return how many deposits have no receipt."""
        return sum(each.count(0) for each in self.receipts)

    @property
    def doubled(self) -> int:
        """Return how many deposits were counted more often than once."""
        return sum(each > 1 for receipts in self.receipts for each in receipts) + max(0, sum(self.accounts) - len(DEPOSITS))

    @property
    def half(self) -> int:
        """Return how many deposits are in one of the three and not in another."""
        rows = zip(self.accounts, self.totals, map(sum, self.receipts), strict=True)
        return sum(max(row) - min(row) for row in rows)


@pytest.fixture(params=[pytest.param("dynamodb", marks=pytest.mark.repeated), "azure-table"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a table that does not exist yet."""
    name = f"bank{uuid4().hex[:12]}"
    if request.param == "dynamodb":
        yield f"dynamodb://test:test@eu-central-1/{name}?endpoint={request.getfixturevalue('ministack_endpoint')}"
    else:
        yield request.getfixturevalue("azurite_storage").url("table", name)


@asynccontextmanager
async def worker(settings: dict[str, str], point: str, times: int) -> AsyncIterator[Process]:
    """Run a worker, and kill it at the end."""
    command = (sys.executable, "-m", "tests.faults.together_program", point, str(times))
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env={**os.environ, **settings})
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def read(documents: SavesTogether, store: str, kills: int) -> Counts:
    """Read what there is."""
    accounts, totals, receipts = [], [], []
    for account in ACCOUNTS:
        key = account_key(store, account)
        names = [total_of(account), *(receipt_of(each) for each in DEPOSITS if each.account_id == account)]
        addresses = [DocumentAddress("", (name,)) for name in names]
        found = await documents.read(key, addresses)
        counts = [msgspec.json.decode(found[each].body)["count"] if each in found else 0 for each in addresses]
        loaded = await documents.load([key])  # type: ignore[attr-defined] # they are documents as well
        state = msgspec.json.decode(loaded[key].body)["state"] if key in loaded else {"deposits": 0}
        accounts.append(state["deposits"])
        totals.append(counts[0])
        receipts.append(counts[1:])
    return Counts(accounts, totals, receipts, kills)


async def run(store: str, folder: Path, *, apart: bool) -> Counts:
    """Send each deposit twice, kill ten workers, and let the last one finish. Whenever nobody works, count halves."""
    transport = f"sqlite:///{folder}/queue.db?lease=1"
    settings = {STORE: store, TRANSPORT: transport, APART: str(int(apart))}
    place, points, half = locate(store, "store"), cycle(POINTS), 0
    await create(place)
    messages = [
        Message(id=f"{each.account_id}-{each.number}", source="web", type="Deposit", body=msgspec.json.encode(each))
        for each in DEPOSITS
    ]
    async with (
        temporary_transport(transport, [TOPOLOGY]),
        open_transport(transport, "bank") as queue,
        open_documents(place, clock=SystemClock()) as documents,
        asyncio.timeout(PATIENCE),
    ):
        assert isinstance(documents, SavesTogether)
        await queue.declare([TOPOLOGY])
        for kills in range(KILLS):
            some = messages[kills * IN_ROUND * len(ACCOUNTS) :][: IN_ROUND * len(ACCOUNTS)]
            await queue.send([Send(message=each, to="bank") for each in [*some, *some]])
            async with worker(settings, next(points), AT_COMMIT) as dying:
                assert await dying.wait() == -signal.SIGKILL
            half += (await read(documents, store, kills)).half
        async with worker(settings, "never", 1):
            while await queue.depth("bank") != Depth(waiting=0, held=0, delayed=0):  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)
        counts = await read(documents, store, KILLS)
    how = "apart" if apart else "together"
    MEASURED.append(
        f"documents {how} in {store.partition(':')[0]}: {KILLS} kills, {counts.lost} lost, {counts.doubled} doubled, "
        f"{half + counts.half} half batches"
    )
    return counts._replace(kills=half)


async def test_what_is_written_together_is_whole_whenever_the_worker_dies(store: str, tmp_path: Path) -> None:
    """Each deposit is in the account, in the total and in its receipt, once; also after each kill."""
    counts = await run(store, tmp_path, apart=False)
    assert (counts.lost, counts.doubled, counts.half, counts.kills) == (0, 0, 0, 0)
    assert counts.accounts == [EACH] * len(ACCOUNTS)


async def test_what_is_written_apart_is_not(store: str, tmp_path: Path) -> None:
    """So the run above can fail."""
    counts = await run(store, tmp_path, apart=True)
    assert counts.lost == 0
    assert counts.doubled
    assert counts.kills
