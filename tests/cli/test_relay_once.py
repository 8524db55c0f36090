"""`onceonly relay --once` says what is left and why, whatever fails, on a SQL store and on documents."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_store, open_transport
from onceonly.assembly.documents import open_documents
from onceonly.cli.output import NEGATIVE
from onceonly.cli.relay_once import relay_once
from onceonly.ports.documents import Change
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from tests.cli.terminal import Terminal
from tests.endpoint import left_documents

AWAY = {"sqlite": "postgresql://127.0.0.1:1/shop", "redis": "redis://127.0.0.1:1/0"}
Round = Callable[..., Awaitable[tuple[int, str, str]]]


class Desk:
    """An endpoint that only sends, and its queue's transport."""

    def __init__(self, system: str, store: str, transport: str) -> None:
        self.system, self.store, self.transport = system, store, transport

    def endpoint(self, *, store: str = "", transport: str = "", relay_after: float = 0.05) -> Endpoint:
        """Return the endpoint, with other servers if they are given."""
        return Endpoint(
            "desk", store=store or self.store, transport=transport or self.transport, relay_after=relay_after, janitor=False
        )

    async def commit(self, *names: str, to: str = "ledger") -> None:
        """Commit one message for each name, in a process that cannot send it."""
        if self.system == "sqlite":
            for name in names:
                async with self.endpoint(transport="memory://").transaction() as tx:
                    tx.send({"name": name}, to=to, type="Noted")
            return
        async with open_documents(self.store, clock=LIVE.clock) as documents:
            await left_documents.commit(documents, *names, to=to)

    async def spoil(self) -> None:
        """Make one record unreadable."""
        if self.system == "sqlite":
            with closing(sqlite3.connect(self.store.removeprefix("sqlite:///"))) as database, database:
                first = "SELECT min(key) FROM onceonly_records"
                database.execute(f"UPDATE onceonly_records SET effects = 'none' WHERE key = ({first})")  # noqa: S608 - of this test
            return
        async with open_documents(self.store, clock=LIVE.clock) as documents:
            version = (await documents.load(["entity/Note/a"]))["entity/Note/a"].version
            await documents.save(
                [Change(key="entity/Note/a", body=b"none", expected=version, pending_for=("desk",), pending_since=1)]
            )

    async def left(self) -> int:
        """Count what is unsent."""
        async with open_store(self.endpoint().settings) as opened:
            assert opened.pending is not None
            return len(await opened.pending.undispatched(1 << 52, 100))


@pytest.fixture(params=["sqlite", "redis"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    """Return an endpoint on each kind of store."""
    store = f"sqlite:///{tmp_path}/desk.db" if request.param == "sqlite" else request.getfixturevalue("redis_url")
    return Desk(request.param, store, f"sqlite:///{tmp_path}/{uuid4().hex}.db")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Round:
    """Return a function that runs the command for endpoints, and returns its code and output."""

    async def once(*endpoints: Endpoint, seconds: float = float("inf")) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await relay_once([each.settings for each in endpoints], seconds=seconds)
        return code, *capsys.readouterr()

    return once


async def declare(desk: Desk) -> None:
    """Let the queue be there."""
    async with open_transport(desk.transport, "ledger") as ledger:
        await ledger.declare([Topology(endpoint="ledger", commands=("Noted",))])


async def test_nothing_waits(desk: Desk, run: Round) -> None:
    """Exit code 0, without a wait for `relay_after`."""
    await desk.commit()
    if desk.system == "sqlite":
        await desk.commit("a")
        await declare(desk)
        assert (await run(desk.endpoint()))[0] == 0
    code, out, _ = await run(desk.endpoint(relay_after=3600))
    assert (code, "records sent 0, left 0" in out) == (0, True)


async def test_a_broker_that_is_away_leaves_what_is_counted(desk: Desk, run: Round) -> None:
    """The store has the number and examples. The reason names the broker. Nothing is lost."""
    await desk.commit("a", "b")
    code, out, error = await run(desk.endpoint(transport="amqp://127.0.0.1:1/"))
    assert (code, "records sent 0, left 2" in out, out.count("left: Noted to ledger")) == (NEGATIVE, True, 2)
    assert "warning: desk: cannot reach transport amqp://127.0.0.1:1" in error
    await declare(desk)
    code, out, _ = await run(desk.endpoint())
    assert (code, "records sent 2, left 0" in out) == (0, True)


async def test_a_store_that_is_away_leaves_an_unknown_number(desk: Desk, run: Round) -> None:
    """The reason names the store. Another endpoint of the command is sent all the same."""
    await desk.commit("a")
    await declare(desk)
    code, out, error = await run(desk.endpoint(store=AWAY[desk.system]), desk.endpoint())
    assert (code, "records sent 0, left unknown" in out, "records sent 1, left 0" in out) == (NEGATIVE, True, True)
    assert "cannot reach store" in error or "cannot use its store" in error


async def test_what_cannot_be_sent_is_left_and_named(desk: Desk, run: Round) -> None:
    """A command without a queue. The others are sent."""
    await declare(desk)
    await desk.commit("lost", to="nowhere")
    await desk.commit("a", "b")
    code, out, error = await run(desk.endpoint())
    assert (code, "records sent 2, left 1" in out, "left: Noted to nowhere" in out) == (NEGATIVE, True, True)
    assert "warning: desk: rejected by the broker: Noted to nowhere" in error
    assert await desk.left() == 1


async def test_what_cannot_be_read_is_not_taken_for_nothing(desk: Desk, run: Round) -> None:
    """It is not counted as left, but the exit code is 1, each time. The others are sent."""
    await declare(desk)
    await desk.commit("a", "b")
    await desk.spoil()
    code, out, error = await run(desk.endpoint())
    assert (code, out.splitlines()[0]) == (NEGATIVE, "desk: records sent 1, left 0; maintained 0")
    assert "warning: desk: 1 stored record cannot be read, so the messages wait" in error
    assert (await run(desk.endpoint()))[0] == NEGATIVE


async def test_the_time_limit_leaves_the_rest(desk: Desk, run: Round) -> None:
    """What waits is counted. Without a limit it is sent."""
    await desk.commit("a", "b")
    await declare(desk)
    code, out, error = await run(desk.endpoint(), seconds=0)
    assert (code, "records sent 0, left 2" in out) == (NEGATIVE, True)
    assert "warning: desk: the time limit was reached" in error
    code, out, _ = await run(desk.endpoint())
    assert (code, "records sent 2, left 0" in out) == (0, True)


async def test_a_young_record_is_waited_for_until_the_time_limit(desk: Desk, run: Round) -> None:
    """It is left to its process until it is as old as `relay_after`."""
    await desk.commit("a")
    await declare(desk)
    code, out, error = await run(desk.endpoint(relay_after=3600), seconds=0.1)
    assert (code, "records sent 0, left 1" in out, "time limit" in error) == (NEGATIVE, True, True)


def test_a_time_limit_is_for_once_only(onceonly: Terminal) -> None:
    """Otherwise the command runs until it is stopped."""
    (onceonly.folder / "desk.py").write_text(
        'from onceonly import Endpoint\ndesk = Endpoint("desk", store="sqlite:///desk.db", transport="sqlite:///queue.db")\n'
    )
    done = onceonly("relay", "desk:desk", "--time-limit", "5")
    assert (done.code, "--time-limit needs --once" in done.error) == (2, True)
    done = onceonly("relay", "desk:desk", "--once", "--time-limit", "60")
    assert (done.code, "records sent 0, left 0" in done.out) == (0, True)
