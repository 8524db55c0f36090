"""`/metrics` while processes are killed: counters never decrease, and miss at most what was in flight at each kill.

The truth is a table that the handlers write to: a row for each message, in the transaction that claims it.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import text

from onceonly.assembly import open_database, open_transport, temporary_transport
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.runtime.processes.counters import Column, SharedCounters
from onceonly.sql.schema import create, drop
from onceonly.sql.store import SCHEMA
from tests.cli.probe import ask
from tests.cli.scraped import Scrape, scrape
from tests.cli.terminal import Terminal
from tests.cli.test_health import probed
from tests.servers.available import RABBITMQ, need

MESSAGES, KILLS, PROCESSES = 2000, 4, 2
PATIENCE = 250.0
TOTAL = "onceonly_messages_total"

PROGRAM = """
import asyncio, os
from dataclasses import dataclass
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from onceonly import Context, Endpoint, WorkerSettings

@dataclass
class Place:
    number: int

@dataclass
class Placed:
    number: int

shop = Endpoint({name!r}, store={store!r}, transport={transport!r}, worker=WorkerSettings(batch_size=20, concurrency=1))

@shop.handler
async def place(order: Place, connection: AsyncConnection, context: Context) -> None:
    await asyncio.sleep(0.002)
    await connection.execute(text("INSERT INTO {table} VALUES (:number)"), {{"number": order.number}})
    context.publish(Placed(order.number))
"""
FORGETFUL = """
from onceonly.runtime.metrics.series import SeriesFile

def forget(self: SeriesFile) -> None:
    for metric, _, at in self._rows():
        for word in range(at, at + (len(metric.buckets) + 2 if metric.buckets else 1)):
            self._numbers[word] = 0

SeriesFile.reset_gauges = forget
"""
"""Counters that begin anew with each process, as those in a process's own memory do."""


class Run(NamedTuple):
    """What was scraped in the order of time, what each killed process held, and the number of messages that were handled."""

    scrapes: list[Scrape]
    held: list[int]
    handled: int


def wrong(run: Run) -> list[str]:
    """Say what the numbers get wrong."""
    found = [f"decreased: {bad}" for one, two in zip(run.scrapes, run.scrapes[1:], strict=False) if (bad := two.decreased(one))]
    last, missed = run.scrapes[-1], sum(run.held)
    handled = last.total(TOTAL, outcome="handled")
    if not run.handled - missed <= handled <= run.handled:
        found.append(f"handled: {handled} of {run.handled}, and {missed} were in flight at the kills")
    settled = last.total(TOTAL) - last.total(TOTAL, outcome="retried")
    if settled < run.handled - missed:
        found.append(f"settled: {settled} of {run.handled}, and {missed} were in flight at the kills")
    ages = last.total("onceonly_message_age_seconds_count")
    if ages != handled:
        found.append(f"ages: {ages} of {handled}")
    received = last.total("messaging_client_consumed_messages_total")
    if received < settled:
        found.append(f"received: {received}, settled: {settled}")
    if last.total("onceonly_dead_letters_stored_total"):
        found.append("a dead letter was counted")
    return found


class Shop(NamedTuple):
    """Where the program is, and its database."""

    name: str
    store: str
    transport: str
    table: str


@pytest.fixture
async def shop(postgresql_url: str) -> AsyncIterator[Shop]:
    """Make an endpoint of a name of its own, with its table and its queue."""
    name = f"counted_{uuid4().hex[:8]}"
    transport, topology = need(RABBITMQ), Topology(endpoint=name)
    shop = Shop(name, f"{postgresql_url}?prefix={name}_", transport, f"{name}_rows")
    async with temporary_transport(transport, [topology]), open_database(shop.store) as database:
        await create(database, SCHEMA)
        async with database.autocommitting() as connection:
            await connection.execute(text(f"CREATE TABLE {shop.table} (number INTEGER PRIMARY KEY)"))
        try:
            async with open_transport(transport, "web") as sender:
                await sender.declare([topology])
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                sends = [
                    Send(message=Message(id=f"m{n}", source="web", type="Place", body=b'{"number": %d}' % n, time=now), to=name)
                    for n in range(MESSAGES)
                ]
                assert {*await sender.send(sends)} == {Answer.TAKEN}
            yield shop
        finally:
            async with database.autocommitting() as connection:
                await connection.execute(text(f"DROP TABLE {shop.table}"))
            await drop(database, SCHEMA)


async def rows(shop: Shop) -> int:
    """Count what was handled."""
    async with open_database(shop.store) as database, database.reading() as connection:
        return int(await connection.scalar(text(f"SELECT COUNT(*) FROM {shop.table}")) or 0)  # noqa: S608 - a table of our own


def counters_of(pid: int) -> SharedCounters:
    """Open the shared counters of a process: the file that it has mapped."""
    found = re.search(r"\s(/\S+/board)$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    assert found is not None
    return SharedCounters.open(found[1])


@asynccontextmanager
async def scraping(port: int, into: list[Scrape]) -> AsyncIterator[None]:
    """Scrape all the time beside the block, and once behind it."""

    async def scrape_on() -> None:
        while True:
            into.append(await asyncio.to_thread(scrape, port))
            await asyncio.sleep(0.2)

    task = asyncio.create_task(scrape_on())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def kill_one(port: int, index: int) -> int | None:
    """Kill a process that holds messages; returns how many, None where it holds none just now."""
    _, body = ask(port, "/ready")
    pulse = body["processes"][index]["pulse"] if len(body["processes"]) > index else {}
    if not pulse.get("runs") or pulse.get("starts"):
        return None
    pid = pulse["pid"]
    with counters_of(pid) as counters:
        os.kill(pid, signal.SIGSTOP)  # so that it holds the same number when it is killed
        held = counters.row(index).get(Column.HELD)
        os.kill(pid, signal.SIGKILL if held else signal.SIGCONT)
    return held or None


async def run_under_kills(onceonly: Terminal, shop: Shop, more: str = "") -> Run:
    """Run the program until all is handled; kill its processes meanwhile, by turns, when they hold messages."""
    program = PROGRAM.format(name=shop.name, store=shop.store, transport=shop.transport, table=shop.table) + more
    (onceonly.folder / "counted.py").write_text(program)
    scrapes: list[Scrape] = []
    held: list[int] = []
    end = time.monotonic() + PATIENCE
    with probed(onceonly, "counted:shop", "-p", str(PROCESSES)) as (run, port):
        async with scraping(port, scrapes):
            while (handled := await rows(shop)) < MESSAGES or not (scrapes and _is_quiet(scrapes[-1], shop)):
                assert time.monotonic() < end, (handled, held, run.process.poll())
                if len(held) < KILLS and handled >= (len(held) + 1) * MESSAGES / (KILLS + 2):
                    killed = await asyncio.to_thread(kill_one, port, len(held) % PROCESSES)
                    held += [] if killed is None else [killed]
                await asyncio.sleep(0.02)
        scrapes.append(scrape(port))
        run.stop()
    return Run(scrapes, held, handled)


def _is_quiet(last: Scrape, shop: Shop) -> bool:
    """Return whether nothing is left in the queue, and all processes run again."""
    states = [last.get("onceonly_queue_messages", endpoint=shop.name, state=state) for state in ("waiting", "held", "delayed")]
    return states == [0, 0, 0] and last.get("onceonly_processes", state="running") == PROCESSES


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_counters_never_decrease_and_miss_at_most_what_was_in_flight(onceonly: Terminal, shop: Shop) -> None:
    """Both processes are killed twice while they hold messages."""
    run = await run_under_kills(onceonly, shop)
    assert (run.handled, len(run.held)) == (MESSAGES, KILLS)
    assert wrong(run) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_counters_that_begin_anew_are_noticed(onceonly: Terminal, shop: Shop) -> None:
    """The test above can fail."""
    run = await run_under_kills(onceonly, shop, FORGETFUL)
    assert len(run.held) == KILLS
    found = wrong(run)
    assert any(each.startswith("decreased") for each in found)
    assert any(each.startswith("handled") for each in found)
