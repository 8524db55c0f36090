"""Transactions whose COMMIT is cut or held up on its way: clients that ask again with their key, and a control run without."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import msgspec
import pytest
from sqlalchemy import MetaData, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import CommitFailed, ConflictError, Endpoint, RetryableError, Transaction
from onceonly.assembly import open_database, open_store, open_transport, schemas
from onceonly.ports.transport import Topology, Transport
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables, drop
from tests.servers.cutting_commits import Cutter, cutting

pytestmark = pytest.mark.slow

CLIENTS, AT_ONCE, CUTS, SHARE = 60, 6, 12, 0.5
LATER = 1 << 52


class Base(DeclarativeBase):
    """The user's tables."""

    metadata = MetaData()


class Booking(Base):
    """One row for each time a block was committed: nothing else keeps it from being there twice."""

    __tablename__ = "bookings"
    line: Mapped[int] = mapped_column(primary_key=True)
    client: Mapped[str] = mapped_column(String(40))


@dataclass
class Booked:
    """What is announced."""

    client: str
    line: int


class SomeCommits:
    """Decides by chance which COMMIT is cut, and how: as many before the server has it as after it was applied."""

    def __init__(self, cutter: Cutter) -> None:
        self._rng = random.Random(2013)  # noqa: S311 - a reproducible choice, no secret
        self.made: Counter[str] = Counter()
        cutter.decide = self.decide

    def decide(self) -> str:
        """Say what becomes of one COMMIT."""
        left = [moment for moment in ("before", "after") if self.made[moment] < CUTS]
        moment = self._rng.choice(left) if left and self._rng.random() < SHARE else ""
        self.made[moment] += 1
        return moment


class CutEndpoint:
    """An endpoint behind a cutter, and what is seen past it."""

    def __init__(self, endpoint: Endpoint, cutter: Cutter, database: Database, sink: Transport) -> None:
        self.endpoint, self.cutter, self.database, self.sink = endpoint, cutter, database, sink

    async def client(self, name: str, *, key: str | None) -> list[object]:
        """Ask until there is an answer, and twice more; gives all answers."""
        answers: list[object] = []

        async def book(tx: Transaction) -> object:
            booking = Booking(client=name)
            tx.sql.add(booking)
            await tx.sql.flush()
            tx.publish(Booked(name, booking.line))
            return {"line": booking.line}

        while len(answers) < (3 if key else 1):
            try:
                answers.append(await self.endpoint.transact(book, idempotency_key=key, request=name))
            except (RetryableError, ConflictError):
                continue
        return answers

    async def clients(self, *, with_keys: bool) -> dict[str, list[object]]:
        """Let many ask, some at a time."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> list[object]:
            async with turns:
                return await self.client(name, key=f"key of {name}" if with_keys else None)

        names = [f"client-{number}" for number in range(CLIENTS)]
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def rows(self) -> dict[str, list[int]]:
        """Read what is committed: the lines of each client."""
        found: dict[str, list[int]] = {}
        async with self.database.reading() as connection:
            for client, line in await connection.execute(select(Booking.client, Booking.line)):
                found.setdefault(client, []).append(line)
        return found

    async def announced(self, count: int) -> Counter[tuple[str, str, int]]:
        """Wait for so many different messages; gives how often each came."""
        found: Counter[tuple[str, str, int]] = Counter()
        async with asyncio.timeout(30):
            while len(found) < count or await self._records():
                for delivery in (taken := await self.sink.receive(100, 0.1)):
                    body = msgspec.json.decode(delivery.body, type=Booked)
                    found[dict(delivery.headers)["ce-id"], body.client, body.line] += 1
                await self.sink.ack(taken)
        return found

    async def _records(self) -> bool:
        async with open_store(self.endpoint.settings) as opened:
            assert opened.pending is not None
            return bool(await opened.pending.undispatched(LATER, 1))


@asynccontextmanager
async def opened_behind_cutter(url: str) -> AsyncIterator[CutEndpoint]:
    """Make tables, open the endpoint behind a cutter, and the sink."""
    name = uuid4().hex[:8]
    query = f"?prefix=cut_{name}_"
    transport = f"memory://{name}"
    async with cutting(url) as (cutter, through), open_database(url + query) as database:
        await create(database, *schemas("store"))
        await create_user_tables(database, Base.metadata)
        try:
            async with open_transport(transport, "sink") as sink:
                await sink.declare([Topology(endpoint="sink", events=("Booked",))])
                shop = Endpoint("shop", store=through + query, transport=transport, relay_after=0.2)

                @shop.handler(type="ignored")
                async def ignore(_body: dict[str, str]) -> None:
                    """Do nothing."""

                async with shop.running():
                    yield CutEndpoint(shop, cutter, database, sink)
        finally:
            async with database.writing() as connection:
                await connection.run_sync(Base.metadata.drop_all)
            await drop(database, *schemas("store"))


async def every_key_is_done_once(url: str) -> None:
    """Let commits be cut under clients with keys."""
    async with opened_behind_cutter(url) as cut:
        cuts = SomeCommits(cut.cutter)
        answers = await cut.clients(with_keys=True)
        rows = await cut.rows()
        announced = await cut.announced(CLIENTS)
    assert (cuts.made["before"], cuts.made["after"]) == (CUTS, CUTS)
    assert {name: len(lines) for name, lines in rows.items()} == dict.fromkeys(answers, 1)
    assert answers == {name: [{"line": lines[0]}] * 3 for name, lines in rows.items()}
    assert sorted((client, line) for _, client, line in announced) == sorted((n, lines[0]) for n, lines in rows.items())


@pytest.mark.slow
async def test_a_client_that_asks_again_gets_one_row_one_answer_and_one_message_on_postgresql(postgresql_url: str) -> None:
    """Crash here: 1 COMMIT was said, 2 no answer comes, 3 the client asks again, 4 its key tells what happened."""
    await every_key_is_done_once(postgresql_url)


async def test_a_client_that_asks_again_gets_one_row_one_answer_and_one_message_on_mariadb(mariadb_url: str) -> None:
    """The same, in another protocol."""
    await every_key_is_done_once(mariadb_url)


async def test_the_control_run_without_keys_shows_what_cut_commits_do(postgresql_url: str) -> None:
    """A client that asks again is served again, also when its commit had been applied; rows and messages still agree."""
    async with opened_behind_cutter(postgresql_url) as cut:
        cuts = SomeCommits(cut.cutter)
        await cut.clients(with_keys=False)
        rows = await cut.rows()
        lines = sorted((name, line) for name, found in rows.items() for line in found)
        announced = await cut.announced(len(lines))
    assert cuts.made["after"] == CUTS
    assert len(lines) > CLIENTS
    assert sorted((client, line) for _, client, line in announced) == lines


async def a_commit_held_up_fails(url: str) -> None:
    """Hold a COMMIT up until it is too late, then let it go on to the server."""

    async def book(tx: Transaction) -> str:
        tx.sql.add(Booking(client="late"))
        await tx.sql.flush()
        cut.cutter.cut = "" if cut.cutter.holds.is_set() else "hold"  # only now: drivers say COMMIT when they connect
        return "booked"

    async with opened_behind_cutter(url) as cut:
        cut.cutter.about = Booking.__tablename__.encode()  # the relay commits as well
        limit = timedelta(seconds=2)
        since = time.monotonic()
        late = asyncio.create_task(cut.endpoint.transact(book, idempotency_key="k", max_commit=limit))
        await cut.cutter.holds.wait()
        assert time.monotonic() - since < limit.total_seconds()
        since = time.monotonic()  # it has begun before
        cut.cutter.cut = ""
        while time.monotonic() - since <= limit.total_seconds():
            assert await cut.rows() == {}
        cut.cutter.may_go.set()
        with pytest.raises(CommitFailed, match="not committed within 2000 ms"):
            await late
        assert await cut.rows() == {}
        assert await cut.endpoint.transact(book, idempotency_key="k", max_commit=limit) == "booked"
        assert {name: len(lines) for name, lines in (await cut.rows()).items()} == {"late": 1}


async def test_a_commit_that_comes_to_postgresql_too_late_fails_for_sure(postgresql_url: str) -> None:
    """Whatever held it up on the way: the server itself looks at its clock, in the same request."""
    await a_commit_held_up_fails(postgresql_url)


async def test_a_commit_that_comes_to_postgresql_too_late_by_psycopg_fails_as_well(postgresql_url: str) -> None:
    """The other driver."""
    await a_commit_held_up_fails(postgresql_url.replace("postgresql://", "postgresql+psycopg://"))


async def test_a_commit_that_comes_to_mariadb_too_late_fails_for_sure(mariadb_url: str) -> None:
    """The same."""
    await a_commit_held_up_fails(mariadb_url)
