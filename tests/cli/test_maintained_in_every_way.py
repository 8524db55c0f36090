"""Everything that a janitor does is done by each way of maintenance: two commands, a relay, a timer function, and a host."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_finishing
from onceonly.cli.targets import load_all
from onceonly.endpoint.host import host_of
from onceonly.model.action import ActionItem, ActionKind, ActionState
from onceonly.model.health import ProcessReport
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.model.token import Owner, Token
from onceonly.operations.actions import Operator, new_action
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import LetterIndex
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.tasks import BucketRotation, tasks_of
from onceonly_conformance.clock import ManualClock
from tests.cli.terminal import Running, Terminal
from tests.endpoint.hosted_harness import order

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
PATIENCE_SECONDS = 240.0
PROGRAM = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from onceonly import DedupStore, Endpoint, History, Journal, Retry, Tokens

@dataclass
class Order:
    id: str

QUEUE, SOON = "sqlite:///queue.db", {"retry": Retry(immediate=0, delayed=0), "relay_after": 0.05}
shop = Endpoint("shop", store="sqlite:///shop.db", transport=QUEUE, blobs=f"folder://{Path.cwd()}/blobs",
                journal=Journal(), **SOON, deduplication=History(timedelta(hours=1)))
till = Endpoint("till", store="sqlite:///till.db", transport=QUEUE, deduplication=Tokens("sqlite:///tokens.db"), **SOON)
gate = Endpoint("gate", store="sqlite:///gate.db", transport=QUEUE,
                deduplication=DedupStore("sqlite:///marks.db", retention=timedelta(hours=1)), **SOON)

for each in (shop, till, gate):
    @each.handler
    async def take(order: Order) -> None:
        pass
"""
NAMES = ("program:shop", "program:till", "program:gate")
HALF_DAYS = 999
"""How long ago it was all left behind: the journal then wrote to the table that is written next."""
STAYS = frozenset(
    {"onceonly_ring", "onceonly_janitor", "onceonly_schema", "onceonly_journal_settings", "onceonly_unsubscribed"}
    | {"onceonly_actions"}
)
"""Tables in which nothing is ever too old, and that of actions, which goes in the round after their letters."""
SETTING = "b'retention/"
"""How the key of a document begins that says how long claims are kept: it is a setting, and stays."""
KINDS = {
    "shop.db": {
        *("claim of a bucket", "onceonly_claims", "onceonly_keys", "onceonly_records", "onceonly_register"),
        *("onceonly_starts", "onceonly_processes", "onceonly_action_items", "journal"),
    },
    "tokens.db": {"onceonly_documents"},
    "marks.db": {"onceonly_documents"},
}
"""What is left in each database, by its table."""


@pytest.fixture
def shops(onceonly: Terminal) -> tuple[Endpoint, ...]:
    """Return endpoints with the three kinds of deduplication."""
    (onceonly.folder / "program.py").write_text(PROGRAM)
    (onceonly.folder / "blobs").mkdir()
    return load_all(NAMES)


async def leave_behind(shops: tuple[Endpoint, ...]) -> None:
    """Leave one of each kind, as processes did that ran, and died, long ago."""
    clock = ManualClock(time.time_ns() // 1_000_000 - HALF_DAYS * 43_200_000)
    shop, till, gate = shops
    async with host_of(shop).opened(environment=Environment(clock=clock)) as ports:
        await _leave_claims(ports, clock.now())
        async with shop.transaction(idempotency_key="key") as tx:
            tx.answer = "done"
        await ports.effects.register([Message(id="blob", source="web", type="Order", body=b"")])
        await ports.run_markers.begin(Message(id="killer", source="web", type="Order", body=b"").identity, 0)
        assert ports.maintenance.presence is not None
        await ports.maintenance.presence.report(ProcessReport(process="dead", host="h", pid=1, version="1"))
        await _leave_action(ports, clock.now())
    async with host_of(till).opened(environment=Environment(clock=clock)) as ports:
        assert ports.maintenance.tokens is not None
        message = Message(id="m", source="web", type="Order", body=b"")
        await ports.maintenance.tokens.prepare(
            {Token("t", "till"): Owner("till", ports.store.unit_key(message), message.identity)}
        )
    async with host_of(gate).hosted(environment=Environment(clock=clock)) as hosted:
        assert (await hosted.handle_one(b'{"id":"marked"}', headers=order("marked").headers)).is_settled


async def _leave_claims(ports: Ports, then: int) -> None:
    """Leave a claim in a time bucket, one in none, and a record that nobody sent."""
    timed = timed_id("web", then, b"timed".rjust(NAME_BYTES, b"\0"))
    for id_ in (timed, "untimed", "unsent"):
        message = Message(id=id_, source="web", type="Order", body=b"{}")
        sends = (Send(message=Message(id="s", source="shop", type="Sent", body=b"{}")),) if id_ == "unsent" else ()
        record = Record(message.identity, sends)
        unit = await ports.store.begin([message])
        await unit.commit([record])
        if not sends:
            await ports.store.forget([record])


async def _leave_action(ports: Ports, then: int) -> None:
    """Leave an action of an operator with a letter that could be restored."""
    letters = ports.dead_letters
    index = getattr(letters, "_port", letters)
    assert isinstance(index, LetterIndex)
    action = await index.actions.begin(new_action(Operator("me", "cli"), ActionKind.DELETE, "shop"))
    item = ActionItem(action=action.position, number=1, letter="letter", stored=b"letter", stored_until=then, at=then)
    await index.actions.plan(action, [item])
    assert action.state is ActionState.RUNNING


def make_old(onceonly: Terminal) -> None:
    """Set the instants that the database's own clock wrote."""
    for table, column in (("keys", "stored_at"), ("starts", "until"), ("processes", "seen")):
        onceonly.change("shop.db", f"UPDATE onceonly_{table} SET {column} = 1")  # noqa: S608 - own names


def rows_of(onceonly: Terminal, database: str) -> dict[str, set[tuple[object, ...]]]:
    """Return all rows that can become too old, by table."""
    found: dict[str, set[tuple[object, ...]]] = {}
    with closing(sqlite3.connect(onceonly.folder / database)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if name not in STAYS and not name.startswith("sqlite_"):
                rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()  # noqa: S608 - own names
                found[name] = {row for row in rows if not str(row[0]).startswith(SETTING)}
    return found


def left_of(onceonly: Terminal, before: dict[str, dict[str, set[tuple[object, ...]]]]) -> list[str]:
    """Return the tables that still have a row of before."""
    return [
        f"{database}: {name}"
        for database, tables in before.items()
        for name, rows in rows_of(onceonly, database).items()
        if rows & tables.get(name, set())
    ]


def tasks_done(shops: tuple[Endpoint, ...]) -> None:
    """Check that the journal of each endpoint has all of its tasks, and that none of them failed."""

    async def check(shop: Endpoint) -> None:
        async with open_finishing(shop.settings) as ports:
            ring, journals = ports.maintenance.ring, ports.maintenance.journals
            assert journals is not None
            rotation = None if ring is None else BucketRotation(ring)
            names = {task.name for task in tasks_of(ports, rotation, Environment().clock)}
            journal = await journals.read()
        assert journal is not None
        assert set(journal.tasks) == names
        assert not journal.is_failing()

    for shop in shops:
        asyncio.run(check(shop))


def once(onceonly: Terminal, _: tuple[Endpoint, ...], is_clean: Callable[[], bool]) -> None:
    """Run the command once."""
    done = onceonly("janitor", *NAMES)
    assert done.code == 0, done.err
    assert is_clean()


def timer(_: Terminal, shops: tuple[Endpoint, ...], is_clean: Callable[[], bool]) -> None:
    """Call the function for timers once."""
    for shop in shops:
        report = asyncio.run(shop.maintain(remaining=600.0))
        assert report.troubles == ()
        assert report.tasks
    assert is_clean()


def hosted(_: Terminal, shops: tuple[Endpoint, ...], is_clean: Callable[[], bool]) -> None:
    """Hand messages over, as long as it takes: a step is limited to 3 seconds, and this machine may be busy."""

    async def handle(shop: Endpoint, number: int) -> None:
        async with shop.hosted() as opened:
            headers = order(f"fresh-{number}").headers
            assert (await opened.handle_one(b'{"id":"x"}', headers=headers)).is_settled

    deadline = time.monotonic() + PATIENCE_SECONDS
    number = 0
    while not is_clean() or number == 0:
        for shop in shops:
            asyncio.run(handle(shop, number))
        number += 1
        assert time.monotonic() < deadline


@contextmanager
def running(onceonly: Terminal, *arguments: str) -> Iterator[Running]:
    """Run a command until the end of the block."""
    with onceonly.start(*arguments) as process:
        try:
            found = Running(process)
            yield found
            assert found.stop() == 0, found.said
        finally:
            if process.poll() is None:
                process.kill()


def command(*arguments: str) -> Callable[[Terminal, tuple[Endpoint, ...], Callable[[], bool]], None]:
    """Return what runs a command until everything is gone."""

    def run(onceonly: Terminal, _: tuple[Endpoint, ...], is_clean: Callable[[], bool]) -> None:
        with running(onceonly, *arguments, *NAMES):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not is_clean():
                assert time.monotonic() < deadline
                time.sleep(0.05)

    return run


WAYS = {
    "janitor": once,
    "janitor --loop": command("janitor", "--loop"),
    "relay": command("relay"),
    "timer": timer,
    "hosted": hosted,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.repeated
def test_each_way_removes_each_kind_of_leftover(onceonly: Terminal, shops: tuple[Endpoint, ...], way: str) -> None:
    """Rows of every kind are there before, and none of them afterwards. All tasks were done, and none failed."""
    asyncio.run(leave_behind(shops))
    make_old(onceonly)
    before = {database: rows_of(onceonly, database) for database in KINDS}
    found = {database: {_kind(name) for name, rows in tables.items() if rows} for database, tables in before.items()}
    assert found == KINDS
    is_clean = lambda: not left_of(onceonly, before)  # noqa: E731 - one use
    assert not is_clean()
    try:
        WAYS[way](onceonly, shops, is_clean)
    except AssertionError as error:
        raise AssertionError(f"left: {left_of(onceonly, before)}") from error
    tasks_done(shops)


def _kind(table: str) -> str:
    prefix = {"onceonly_claim_": "claim of a bucket", "onceonly_journal_": "journal"}
    return next((kind for begin, kind in prefix.items() if table.startswith(begin)), table)
