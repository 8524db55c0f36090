"""Workers are killed while the retention is raised and lowered and copies come at every age: each message is handled once."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from sqlalchemy import select

from onceonly.assembly import open_database, open_dead_letters, open_transport, schemas
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.model.message import Message, Send
from onceonly.model.ring import Undecidable
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SqlRetention
from tests.faults.retention_program import RETENTION, handled, metadata
from tests.servers.available import MEASURED, postgresql_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KILLS, WORKERS = 20, 2
SHORT = round(RETENTION.total_seconds() * 1000)
RETENTIONS = (2 * SHORT, SHORT)
"""Milliseconds: raised and lowered, again and again."""
KILL_EVERY, CHANGE_EVERY, SEND_EVERY = 1.5, 7.0, 0.1
LEASE = 5
"""Seconds for which a message waits when its worker was killed: several times within the retention."""
LATE_AFTER = 1.5 * max(RETENTIONS) / 1000
"""Seconds after which a copy of the first message is behind every horizon. A run takes as long, however fast the machine is."""
MOST_WAITING = 30
"""Messages in the queue from which on nothing is sent: so new ones are handled soon, also on a slow machine."""
SOURCE = "till"


class Refusal(NamedTuple):
    """A message that was refused as too old, with milliseconds: how old it was, and the smallest retention in its life."""

    number: str
    age: int
    smallest: int

    @property
    def is_too_young(self) -> bool:
        """Whether no retention that held allowed it."""
        return self.age <= self.smallest


class Counts(NamedTuple):
    """What was sent, and what became of it."""

    sent: int
    copies: int
    rows: Counter[str]
    refusals: "list[Refusal]"
    """For each message of which a copy was refused as too old, the first time."""
    others: list[str]
    """Reasons of other dead letters."""
    kills: int
    changes: int


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.repeated)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return a database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db"
        return
    with postgresql_database() as url:
        yield url


@asynccontextmanager
async def worker(settings: dict[str, str]) -> AsyncIterator[Process]:
    """Run a worker, and end it with the block."""
    command = (sys.executable, "-m", "tests.faults.retention_program")
    running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env={**os.environ, **settings})
    try:
        assert running.stdout is not None
        await running.stdout.readline()
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


class Run:
    """One run: who sends, who kills, and who changes the retention."""

    def __init__(
        self, database: Database, transport: Transport, settings: dict[str, str], *, kills: int, seconds: float
    ) -> None:
        self._database, self._transport, self._settings, self._most = database, transport, settings, kills
        self._until = asyncio.get_running_loop().time() + seconds
        self._chance = Random(7)  # noqa: S311 - for a test
        self.sent: list[Message] = []
        self.copies = self.kills = 0
        self.changes: list[tuple[int, int]] = []
        """From when on, at the earliest, which retention held."""
        self._over = asyncio.Event()

    async def work(self) -> None:
        """Run a worker, kill it, and run another one, until there were enough kills, and one until it is late enough."""
        while self.kills < self._most:
            async with worker(self._settings) as running:
                await asyncio.sleep(self._chance.uniform(0.5, WORKERS * KILL_EVERY))
                if self.kills < self._most:
                    running.kill()
                    self.kills += 1
        async with worker(self._settings):
            await asyncio.sleep(self._until - asyncio.get_running_loop().time())
        self._over.set()

    async def send(self) -> None:
        """Send messages with their instants, each with a copy of an earlier one of any age."""
        while not self._over.is_set():
            depth = await self._transport.depth("shop")
            if depth.waiting + depth.held + depth.delayed > MOST_WAITING:
                await asyncio.sleep(SEND_EVERY)
                continue
            number, now = len(self.sent), LIVE.clock.now()
            id_ = timed_id(SOURCE, now, f"{number:010}".encode()[:NAME_BYTES])
            self.sent.append(Message(id=id_, source=SOURCE, type="Order", body=msgspec.json.encode({"id": str(number)})))
            await self._give(self.sent[-1])
            if number % 2:
                self.copies += 1
                await self._give(self._chance.choice(self.sent))
            await asyncio.sleep(SEND_EVERY)
        self.copies += 1
        await self._give(self.sent[0])

    async def change(self) -> None:
        """Raise and lower the retention."""
        retention = SqlRetention(self._database, "shop")
        for kept in cycle(RETENTIONS):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), CHANGE_EVERY)
                return
            self.changes.append((LIVE.clock.now(), kept))
            await retention.change(kept)

    async def _give(self, message: Message) -> None:
        await self._transport.send([Send(message=message, to="shop")])


async def run(store: str, tmp_path: Path, *, is_off: bool = False, kills: int = KILLS) -> Counts:
    """Send, kill and change; then let a worker finish, and count."""
    transport = f"sqlite:///{tmp_path}/queue.db?lease={LEASE}"
    settings = {
        "RETENTION_STORE": store,
        "RETENTION_TRANSPORT": transport,
        "RETENTION_OFF": str(int(is_off)),
    }
    async with (
        open_database(store) as database,
        open_database(transport) as queues,
    ):
        await create(database, *schemas("store"))
        await create(queues, *schemas("transport"))
        await create_user_tables(database, metadata)
        async with open_transport(transport, "shop") as queue:
            await queue.declare([Topology(endpoint="shop", commands=("Order",))])
            it = Run(database, queue, settings, kills=kills, seconds=0 if is_off else LATE_AFTER)
            beside = [it.send()] if is_off else [it.send(), it.change()]
            await asyncio.gather(*(it.work() for _ in range(WORKERS)), *beside)
            async with worker(settings):
                while (depth := await queue.depth("shop")).waiting + depth.held + depth.delayed:  # noqa: ASYNC110 - a queue tells nobody
                    await asyncio.sleep(0.2)
        async with database.reading() as connection:
            rows = Counter((await connection.scalars(select(handled.c.id))).all())
    async with open_dead_letters(store) as letters:
        found = [letter async for letter in _all(letters)]
    refusals = [refusal_of(letter, it.changes) for letter in found if letter.reason == Undecidable.TOO_OLD.value]
    others = [letter.reason for letter in found if letter.reason != Undecidable.TOO_OLD.value]
    return Counts(len(it.sent), it.copies, rows, refusals, others, it.kills, len(it.changes))


def refusal_of(letter: DeadLetter, changes: list[tuple[int, int]]) -> Refusal:
    """Compare the age of a message when its letter was stored with all retentions that held since it was sent."""
    assert letter.message is not None
    sent = letter.message.instant
    before = [kept for since, kept in changes if since <= sent]
    smallest = min([(before or [SHORT])[-1], *(kept for since, kept in changes if sent < since <= letter.at)])
    return Refusal(msgspec.json.decode(letter.body)["id"], letter.at - sent, smallest)


async def _all(letters: DeadLetters) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await letters.page(Filter(), after=after, limit=500):
        for letter in page:
            yield letter
            after = letter.key


async def test_each_message_is_handled_once_while_the_retention_changes(store: str, tmp_path: Path) -> None:
    """Copies behind the horizon are dead letters. So is a message that waited for longer than the retention; no other is."""
    counts = await run(store, tmp_path)
    refused = {each.number for each in counts.refusals}
    numbers = {str(number) for number in range(counts.sent)}
    lost, doubled = numbers - counts.rows.keys() - refused, [name for name, times in counts.rows.items() if times > 1]
    waited = [each for each in counts.refusals if each.number not in counts.rows]
    spare = min((each.age - each.smallest for each in counts.refusals), default=0)
    MEASURED.append(
        f"retention changed {counts.changes} times on {store.partition(':')[0]}: {counts.kills} kills, {counts.sent} messages, "
        f"{counts.copies} copies, {len(refused)} refused as too old, {len(waited)} of them never handled, "
        f"{len(lost)} lost, {len(doubled)} doubled; refused {spare / 1000:.1f} s beyond the smallest retention at the earliest"
    )
    assert (counts.kills, lost, doubled, counts.others) == (KILLS, set(), [], [])
    assert counts.changes >= len(RETENTIONS) - 1
    assert refused
    assert [each for each in counts.refusals if each.is_too_young] == []


@pytest.mark.repeated
async def test_without_claims_copies_are_handled_again(store: str, tmp_path: Path) -> None:
    """So the run above can fail."""
    counts = await run(store, tmp_path, is_off=True, kills=4)
    doubled = [name for name, times in counts.rows.items() if times > 1]
    MEASURED.append(f"without claims: {counts.kills} kills, {counts.sent} messages, {len(doubled)} doubled")
    assert len(doubled) > counts.copies // 4


def test_the_age_of_a_refused_message_is_compared_with_all_retentions_in_its_life() -> None:
    """Those before it was sent and after it was refused do not count, but the one that held when it was sent does."""
    message = Message(id=timed_id(SOURCE, 1000, bytes(NAME_BYTES)), source=SOURCE, type="Order", body=b'{"id":"7"}')

    def refused(age: int, *changes: tuple[int, int]) -> Refusal:
        letter = DeadLetter(endpoint="shop", reason="", headers=(), body=message.body, message=message, at=1000 + age)
        return refusal_of(letter, list(changes))

    assert refused(SHORT) == Refusal("7", SHORT, SHORT)
    assert refused(SHORT).is_too_young
    assert not refused(SHORT + 1).is_too_young
    assert refused(50, (0, 100), (500, 60), (1020, 80)).is_too_young
    assert not refused(50, (0, 100), (1020, 40), (1040, 80)).is_too_young
    assert refused(50, (0, 10), (500, 60), (1051, 10)).is_too_young
