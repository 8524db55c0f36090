"""The processes that run an endpoint, in SQL databases."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.json import decode
from msgspec.structs import replace
from sqlalchemy import text

from onceonly import Endpoint
from onceonly.cli.endpoint_status import read_maintenance
from onceonly.config.endpoint import Settings
from onceonly.model.errors import SchemaMissing, SetupError
from onceonly.model.health import STALE_SECONDS, ProcessReport, ProcessState
from onceonly.model.minutes import NO_WORK, Span, WorkHistory
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.store import SqlPresence
from tests.sql.every_database import emptied
from tests.sql.harness import counted, opened, statements

REPORT = ProcessReport(process="web-1:4711:a", host="web-1", pid=4711, version="1", counters={"handled": 3})
PROGRAM = """
from onceonly import Endpoint

shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///shop.db")

@shop.handler(type="OrderPlaced")
def place(order: dict) -> None:
    ...
"""


async def processes(settings: Settings) -> tuple[ProcessState, ...] | None:
    """Return what `onceonly status` reads."""
    found: tuple[ProcessState, ...] | None = (await read_maintenance(settings)).get("processes")
    return found


async def until_reported(settings: Settings) -> tuple[ProcessState, ...]:
    """Wait until a process has reported; another process makes the tables first."""
    async with asyncio.timeout(60):
        while True:
            with suppress(SchemaMissing, SetupError):
                if found := await processes(settings):
                    return found
            await asyncio.sleep(0.05)


async def test_a_report_replaces_the_last_one(place: str) -> None:
    """It has the age that the database's clock tells."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        await presence.report(REPORT)
        newer = ProcessReport(
            process=REPORT.process, host="web-1", pid=4711, version="1", counters={"handled": 5}, troubles=("cannot receive",)
        )
        await presence.report(newer)
        (found,) = await presence.read()
        assert found.report == newer
        assert not found.is_stale


async def test_a_report_has_the_types_that_its_process_handles(place: str) -> None:
    """Earlier versions read the row as well, and do not mistake a type for a number of theirs."""
    types = ("Order", "shop.paid.v1", "takes", "\N{SNOWMAN} of words")
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        await presence.report(replace(REPORT, types=types))
        (found,) = await presence.read()
        assert found.report == replace(REPORT, types=types)
        async with database.reading() as connection:
            query = text(f"SELECT counters, troubles FROM {database.prefix}processes")  # noqa: S608
            counters, troubles = (await connection.execute(query)).one()
        assert decode(counters, type=dict[str, int])["handled"] == 3  # as an earlier version reads it
        assert decode(troubles, type=tuple[str, ...]) == ()


async def test_the_types_of_a_report_are_bounded(tmp_path: Path) -> None:
    """By their bytes. What no text can hold is left out."""
    types = ("a\ud800", *(f"{number:04}{'x' * 96}" for number in range(1000)))
    async with emptied(f"sqlite:///{tmp_path}/shop.db") as database:
        presence = SqlPresence(database, "shop")
        await presence.report(replace(REPORT, types=types))
        (found,) = await presence.read()
    assert found.report.types == types[1:328]


async def test_a_report_is_one_statement(place: str) -> None:
    """Apart from the first one, in a transaction of its own."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        await presence.report(REPORT)
        with statements(database) as heard:
            await presence.report(REPORT)
        changes = [each for each in heard if each.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE", "SELECT"))]
        assert len(changes) == 1
        assert changes[0].startswith("UPDATE")


async def test_a_process_that_stops_reporting_is_stale_and_then_removed(place: str) -> None:
    """Others stay, and so do those of other endpoints."""
    async with emptied(place) as database:
        presence, other = SqlPresence(database, "shop"), SqlPresence(database, "billing")
        for each in (presence, other):
            await each.report(REPORT)
        late = round(STALE_SECONDS * 1000) + 1000
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE {database.prefix}processes SET seen = seen - {late}"))  # noqa: S608
        fresh = ProcessReport(process="web-2:1:b", host="web-2", pid=1, version="1")
        await presence.report(fresh)
        assert [(each.report.process, each.is_stale) for each in await presence.read()] == [
            (REPORT.process, True),
            (fresh.process, False),
        ]
        assert await presence.remove_unseen(3600) == 0
        assert await presence.remove_unseen(STALE_SECONDS) == 1
        assert [each.report.process for each in await presence.read()] == [fresh.process]
        await presence.remove(fresh.process)
        assert await counted(database, "processes") == 2  # the other endpoint's, and that of ended processes


@pytest.mark.parametrize("presence", [True, False])
async def test_a_running_endpoint_has_a_row_until_it_stops(tmp_path: Path, presence: bool) -> None:  # noqa: FBT001
    """With the numbers of its worker; unless the setting is off."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    shop = Endpoint("shop", store=url, transport=url, presence=presence)

    @shop.handler(type="OrderPlaced")
    async def place(order: dict[str, str]) -> None:
        """Do nothing."""

    async with shop.running():
        if presence:
            assert [each.report.pid for each in await until_reported(shop.settings)] == [os.getpid()]
        else:
            assert await processes(shop.settings) is None
    assert await processes(shop.settings) == (() if presence else None)


async def test_a_killed_process_leaves_a_row_that_becomes_stale(tmp_path: Path) -> None:
    """It is no longer counted by `onceonly status`."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    settings = Settings(name="shop", store=url, transport=url)
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import asyncio, shop; asyncio.run(shop.shop.run(asyncio.Event()))"), cwd=tmp_path
    )
    try:
        await until_reported(settings)
    finally:
        run.kill()
        await run.wait()
    (left,) = await processes(settings) or ()
    assert left.report.pid == run.pid
    async with opened(url) as database, database.writing() as connection:
        await connection.execute(text("UPDATE onceonly_processes SET seen = seen - 60000"))
    (left,) = await processes(settings) or ()
    assert left.is_stale


def work(**counts: int) -> WorkHistory:
    """Return a history with these counts in the present minute of this machine."""
    return NO_WORK.with_span(Span(**counts), LIVE.clock.now())


async def test_a_process_that_ended_still_counts(place: str) -> None:
    """What it did is added to that of others which ended, in the transaction that removes it. Processes are listed without."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        for number, name in enumerate(("web-1:1:a", "web-1:2:b"), start=1):
            await presence.report(replace(REPORT, process=name, work=work(handled=number)))
        await presence.remove("web-1:1:a", work(handled=5))
        found = await presence.read_all()
        assert [each.report.process for each in found.processes] == ["web-1:2:b"]
        assert [each.report.process for each in await presence.read()] == ["web-1:2:b"]
        await presence.remove("web-1:2:b", work(handled=2))
        found = await presence.read_all()
        assert found.processes == ()
        assert sum(span.handled for span in found.ended.quarters.values()) == 7
        assert (await SqlPresence(database, "billing").read_all()).ended == NO_WORK


async def test_a_process_that_was_killed_counts_when_its_row_is_removed(place: str) -> None:
    """With what it has reported. Before that it counts by its row."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        await presence.report(replace(REPORT, work=work(handled=3, failed=1)))
        await presence.report(replace(REPORT, process="web-2:1:b", work=work(handled=4)))
        (first, second) = (await presence.read_all()).processes
        assert [next(iter(each.report.work.minutes.values())).handled for each in (first, second)] == [3, 4]
        await seen_before(database, 3_700_000)
        assert await presence.remove_unseen(3600) == 2
        found = await presence.read_all()
        assert found.processes == ()
        assert [(span.handled, span.failed) for span in found.ended.quarters.values()] == [(7, 1)]
        assert await presence.remove_unseen(3600) == 0


async def test_processes_that_end_together_all_count(place: str) -> None:
    """Each waits for the lock of the row to which it adds."""
    async with emptied(place) as database:
        presence, names = SqlPresence(database, "shop"), [f"web-1:{number}:a" for number in range(5)]
        for name in names:
            await presence.report(replace(REPORT, process=name))
        await asyncio.gather(*(presence.remove(name, work(handled=1)) for name in names))
        found = await presence.read_all()
    assert found.processes == ()
    assert sum(span.handled for span in found.ended.quarters.values()) == 5


async def test_the_history_of_ended_processes_ends(place: str) -> None:
    """A day after the last one has ended nothing is left of it."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        await presence.report(REPORT)
        await presence.remove(REPORT.process, work(handled=1))
        await seen_before(database, 86_400_000)
        await presence.remove_unseen(3600)
        assert await counted(database, "processes") == 1
        await seen_before(database, 1_000_000)
        await presence.remove_unseen(3600)
        assert await counted(database, "processes") == 0


async def test_a_report_shows_whether_its_row_was_gone(place: str) -> None:
    """At the first report, and after maintenance has removed the row."""
    async with emptied(place) as database:
        presence = SqlPresence(database, "shop")
        assert await presence.report(REPORT)
        assert not await presence.report(REPORT)
        await presence.remove(REPORT.process)
        assert await presence.report(REPORT)


async def test_an_earlier_version_reads_a_row_with_a_history(place: str) -> None:
    """Its decoder of the counters takes names and whole numbers only."""
    async with emptied(place) as database:
        await SqlPresence(database, "shop").report(replace(REPORT, work=work(handled=3)))
        async with database.reading() as connection:
            query = text(f"SELECT counters FROM {database.prefix}processes")  # noqa: S608
            (stored,) = (await connection.execute(query)).one()
    assert decode(stored, type=dict[str, int])["handled"] == 3


async def seen_before(database: Database, milliseconds: int) -> None:
    """Make all rows older."""
    async with database.writing() as connection:
        change = text(f"UPDATE {database.prefix}processes SET seen = seen - {milliseconds}")  # noqa: S608
        await connection.execute(change)
