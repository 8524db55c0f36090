"""Workers that die at commands of MongoDB: each entity and the documents of the application agree, and no message is lost."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest
from pymongo import AsyncMongoClient

from onceonly.adapters.mongodb.documents import create
from onceonly.assembly import open_dead_letters, open_transport
from onceonly.model.message import Message, Send
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from tests.servers.mongodb import ReplicaSet

ACCOUNTS, MESSAGES, DEATHS = 8, 100, 10
DEADLINE = 480.0
"""Seconds, as a generous limit: nothing is judged by it."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]


class Found(NamedTuple):
    """What a run left. `half` are accounts and receipts that disagree."""

    deaths: int
    lost: int
    doubled: int
    half: int
    letters: int


@pytest.fixture
async def store(mongodb_transactions: ReplicaSet) -> AsyncIterator[str]:
    url = mongodb_transactions.url(f"t{uuid4().hex[:12]}", collection="onceonly", prefix="bank")
    await create(url)
    yield url
    async with AsyncMongoClient(url.partition("&")[0]) as client:
        await client.drop_database(client.get_default_database())


async def test_entities_and_documents_agree_whichever_command_is_the_last(store: str, tmp_path: Path) -> None:
    """Ten deaths, before and after commands of all kinds: nothing is lost, doubled, or there by half."""
    assert await run(store, tmp_path) == Found(deaths=DEATHS, lost=0, doubled=0, half=0, letters=0)
    names = ("insert", "update", "find", "commitTransaction")
    assert set((tmp_path / "deaths").read_text().splitlines()) == {f"{m} {name}" for m in ("before", "after") for name in names}


@pytest.mark.repeated
async def test_the_control_run_shows_half_batches(store: str, tmp_path: Path) -> None:
    """Without a transaction each death leaves an entity whose documents were not written."""
    found = await run(store, tmp_path, DOCUMENTS_CONTROL="1")
    assert (found.deaths, found.letters) == (DEATHS, 0)
    assert found.half >= DEATHS


async def run(store: str, folder: Path, **control: str) -> Found:
    """Send all messages, let workers die, and wait until the last one has drained the queue."""
    shutil.copy(Path(__file__).with_name("documents_program.py"), folder / "program.py")
    transport, deaths = f"sqlite:///{folder}/queue.db?lease=1", folder / "deaths"
    async with open_transport(transport, "bank") as queue:
        await queue.declare([Topology(endpoint="bank")])
        await queue.send([Send(message=each, to="bank") for each in messages()])
    environment = {
        **os.environ,
        **control,
        "DOCUMENTS_STORE": store,
        "DOCUMENTS_TRANSPORT": transport,
        "DOCUMENTS_DEATHS": str(deaths),
    }
    async with asyncio.timeout(DEADLINE):
        while await worker(folder, environment) != 0:
            assert deaths.exists(), (folder / "output").read_text()[-4000:]
    return await audit(store, len(deaths.read_text().splitlines()))


async def worker(folder: Path, environment: dict[str, str]) -> int:
    with (folder / "output").open("ab") as output:
        command = (sys.executable, "-m", "onceonly", "run", "program:bank", "--drain")
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def messages() -> list[Message]:
    return [
        Message(id=f"m{number}", source="test", type="Deposit", body=msgspec.json.encode(body_of(number)))
        for number in range(MESSAGES)
    ]


def body_of(number: int) -> dict[str, Any]:
    return {"account_id": f"a{number % ACCOUNTS}", "amount": number}


async def audit(store: str, deaths: int) -> Found:
    """Read past the library what is there, and compare it."""
    async with AsyncMongoClient(store.partition("&")[0]) as client:
        database = client.get_default_database()
        states = [each["body"]["state"] async for each in database["onceonly"].find({"_id": {"$regex": "^bank entity/"}})]
        totals = {each["_id"]: each async for each in database["totals"].find()}
        receipts = {each["_id"]: each async for each in database["receipts"].find()}
    handled = [(state["account_id"], each) for state in states for each in state["handled"]]
    wanted = {(body["account_id"], f"m{number}"): body["amount"] for number in range(MESSAGES) for body in [body_of(number)]}
    half = sum(
        totals.get(state["account_id"])
        != {"_id": state["account_id"], "balance": state["balance"], "count": len(state["handled"])}
        for state in states
    )
    half += sum(
        receipts.get(each) != {"_id": each, "account": account, "amount": wanted[account, each]} for account, each in handled
    )
    async with open_dead_letters(store) as letters:
        dead = len(await letters.page(Filter(), limit=100))
    return Found(
        deaths=deaths,
        lost=len(wanted.keys() - set(handled)),
        doubled=len(handled) - len(set(handled)),
        half=half + len(receipts.keys() - {each for _, each in handled}),
        letters=dead,
    )
