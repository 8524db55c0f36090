"""`deduplication=Shadow()` changes nothing about an endpoint that has no deduplication, and reports what `History` would do."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import Context, Endpoint, History, Off, Retry, SetupError, Shadow, testing
from onceonly.assembly import open_read_only
from onceonly.assembly.gauges import parts_of, read_together
from onceonly.runtime.metrics import catalog
from tests.log_events import event_in, events

metadata = MetaData()
journal = Table(
    "journal",
    metadata,
    Column("line", Integer, primary_key=True, autoincrement=True),
    Column("text", String(40), nullable=False),
)


FORGETS = dict.fromkeys(("before-forget", "after-forget"), "before-ack")
"""Crash points that exist only where there are records, and the one without them that leaves the same."""


@dataclass
class Write:
    """Asks for one line."""

    text: str


@dataclass
class Written:
    """Announces it."""

    text: str


def journalist(store: str, deduplication: Any) -> Endpoint:
    """Make an endpoint whose work shows every time it is done: a row without a unique key, and an event."""
    shop = Endpoint(
        "shop",
        store=store,
        transport="memory://shadow",
        metadata=metadata,
        deduplication=deduplication,
        retry=Retry(immediate=1, delayed=0),
    )

    @shop.handler
    async def write(message: Write, session: AsyncSession, context: Context) -> None:
        await session.execute(insert(journal).values(text=message.text))
        if message.text == "bad":
            raise ValueError("no such word")
        context.send(Written(message.text), to="archive")

    return shop


def url(folder: Path) -> str:
    """Name a file that no other run uses."""
    return f"sqlite:///{folder}/{uuid4().hex}.db"


async def lines(t: testing.EndpointRun) -> list[str]:
    """Read the committed lines."""
    async with t.session() as session:
        return list(await session.scalars(select(journal.c.text).order_by(journal.c.line)))


async def results(folder: Path, deduplication: Any, crash_at: str | None = None) -> tuple[list[str], object, object]:
    """Handle messages, copies, one id with two bodies, and one that fails; return all that this changed."""
    async with testing.run(journalist(url(folder), deduplication), own_store=True, raise_failures=False) as t:
        first = await t.deliver(Write("a"), id="1", copies=2, crash_at=crash_at, must_crash=False)
        together = await t.deliver(Write("b"), id="2", copies=2, together=True)
        late = await t.deliver(Write("a"), id="1")
        changed = await t.deliver(Write("c"), id="1")
        bad = await t.deliver(Write("bad"), id="3", copies=2)
        reports = tuple((each.handled, each.known, each.dead) for each in (first, together, late, changed, bad))
        return await lines(t), t.raw, reports


@pytest.mark.parametrize("crash_at", [None, *testing.CRASH_POINTS])
@pytest.mark.slow
async def test_rows_messages_and_outcomes_are_those_without_deduplication(tmp_path: Path, crash_at: str | None) -> None:
    """With copies one after another, copies together, another body, and a process that dies at any point."""
    expected = await results(tmp_path, Off(), FORGETS.get(crash_at, crash_at))
    assert await results(tmp_path, Shadow(), crash_at) == expected
    assert expected[0][-2:] == ["a", "c"]


async def test_the_control_history_changes_them(tmp_path: Path) -> None:
    """So the comparison can fail."""
    assert await results(tmp_path, History()) != await results(tmp_path, Off())


async def counts(shop: Endpoint) -> dict[str, int]:
    """Read the stored counts, as `onceonly status` does."""
    async with open_read_only(shop.settings) as opened:
        assert opened.shadow is not None
        return dict(await opened.shadow.stored.read())


async def test_the_report_counts_exactly_the_copies_and_outlives_the_process(tmp_path: Path) -> None:
    """Copies of one batch are merged with every setting, so they are not counted. Neither is a message that failed."""
    shop = journalist(url(tmp_path), Shadow())
    async with testing.run(shop, own_store=True, raise_failures=False) as t:
        await t.deliver(Write("a"), id="1", copies=3)
        await t.deliver(Write("b"), id="2", copies=2, together=True)
        await t.deliver(Write("bad"), id="3", copies=2)
        await t.restart()
        await t.deliver(Write("a"), id="1")
        await t.deliver(Write("b"), id="1")
    assert await counts(shop) == {"known": 3, "mismatched": 1}
    values = await read_together(parts_of(shop.settings, ()))
    shown = {row[1]: value for row, value in values.items() if row[0] is catalog.SHADOW}
    assert shown == {("shop", "known"): 3, ("shop", "mismatched"): 1, ("shop", "undecidable"): 0}


async def test_history_knows_what_shadow_mode_handled(tmp_path: Path) -> None:
    """From the first message on, in the same tables."""
    store = url(tmp_path)
    async with testing.run(journalist(store, Shadow()), own_store=True) as t:
        await t.deliver(Write("a"), id="1", copies=2)
    async with testing.run(journalist(store, History()), own_store=True) as t:
        report = await t.deliver(Write("a"), id="1")
        assert (report.handled, report.known) == (0, 1)
        await t.deliver(Write("b"), id="2", copies=2)
        assert await lines(t) == ["a", "a", "b"]


async def test_switching_back_keeps_the_counts(tmp_path: Path) -> None:
    """Claims that `History` made count as well."""
    store = url(tmp_path)
    async with testing.run(journalist(store, History()), own_store=True) as t:
        await t.deliver(Write("a"), id="1", copies=2)
    shop = journalist(store, Shadow())
    async with testing.run(shop, own_store=True) as t:
        await t.deliver(Write("a"), id="1")
        assert await lines(t) == ["a", "a"]
    assert await counts(shop) == {"known": 1}


@pytest.mark.parametrize("store", ["memory://a", "redis://localhost/0"])
def test_it_needs_a_sql_store(store: str) -> None:
    """Where claims and rows are in one transaction."""
    with pytest.raises(SetupError, match=r"Shadow\(\) needs a SQL store"):
        Endpoint("shop", store=store, transport="memory://a", deduplication=Shadow())


def test_a_retention_is_checked_as_that_of_history(tmp_path: Path) -> None:
    """So the switch to `History` is not refused later."""
    with pytest.raises(SetupError, match="Shadow: retention must be a timedelta longer than 0"):
        Shadow(timedelta())
    with pytest.raises(SetupError, match="retention"):
        Endpoint("shop", store=url(tmp_path), transport="memory://a", deduplication=Shadow(timedelta(seconds=1)))


async def test_transactions_are_refused_as_without_deduplication(tmp_path: Path) -> None:
    """They depend on records that a relay dispatches."""
    shop = journalist(url(tmp_path), Shadow())
    with pytest.raises(SetupError, match=r"enlist cannot be used with deduplication=Shadow\(\), which dispatches no records"):
        shop.enlist(AsyncSession())


LEFT = "unsent messages of an earlier setting are not sent"


@pytest.mark.parametrize("setting", [Off(), Shadow()])
async def test_a_start_without_deduplication_names_messages_that_history_committed_and_did_not_send(
    setting: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They wait for a process with `History`. A record that may be in dispatch is not named."""
    store, place = url(tmp_path), f"memory://{uuid4().hex}"
    shop = Endpoint("shop", store=store, transport=place)
    async with shop.sending():
        pass
    engine = create_async_engine(store.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(engine) as session:
        shop.enlist(session).send(Written("a"), to="shop")
        await session.commit()
    without = Endpoint("shop", store=store, transport=place, deduplication=setting)
    without.handler(type="Written")(ignore)
    async with without.running():
        assert LEFT not in events(caplog.records)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE onceonly_records SET stored_at = 1"))
    await engine.dispose()
    async with without.running():
        (found,) = [vars(record) for record in caplog.records if event_in(record) == LEFT]
    assert (found["endpoint"], found["count"]) == ("shop", 1)


async def ignore(_: dict[str, str]) -> None:
    """Do nothing."""
