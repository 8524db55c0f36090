"""The charts of the last hour and day: what they draw, and from where."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from onceonly import Endpoint
from onceonly.model.health import ProcessReport
from onceonly.model.minutes import MINUTE_MS, NO_WORK, QUARTER_MS, Span, WorkHistory
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import open_database
from onceonly.sql.store import SqlPresence
from onceonly_dashboard import dashboard, loopback_only
from onceonly_dashboard.time_charts import DAY, HEIGHT, HOUR, WIDTH, TimeChart, axis_end, rows_of, time_charts
from tests.dashboard.serving import NOW, endpoint, sampled
from tests.dashboard.test_gate import open_client
from tests.sql.statement_work import sent_statements

JSON = {"accept": "application/json"}
MINUTE = NOW // MINUTE_MS


def drawn(history: WorkHistory, range_: Any = HOUR) -> dict[str, TimeChart]:
    """Return the charts of a history by name."""
    return {each.name: each for each in time_charts(rows_of(history, range_, NOW), range_)}


def test_only_what_has_ended_is_drawn() -> None:
    """The present minute has only a part of its counts, and would look like a drop."""
    history = WorkHistory(minutes={MINUTE: Span(handled=1), MINUTE - 1: Span(handled=60), MINUTE - 61: Span(handled=5)})
    rows = rows_of(history, HOUR, NOW)
    assert len(rows) == 60
    assert (rows[-1].at, rows[-1].handled) == ((MINUTE - 1) * MINUTE_MS, 60)
    assert {row.handled for row in rows[:-1]} == {None}


def test_a_chart_has_axes_times_and_a_sentence() -> None:
    """Of an hour in which the count rises."""
    history = WorkHistory(minutes={MINUTE - each: Span(handled=60 - each) for each in range(1, 61)})
    chart = drawn(history)["handled"]
    assert chart.scale == ("100", "50", "0")
    assert chart.times == ("10:06", "10:21", "10:36", "10:51", "11:06")
    assert chart.last == "1,770 in total"
    assert chart.label == "Last hour until 11:06 UTC. between 0 and 59, highest at 11:05 UTC, 59 at the end."
    (line,) = chart.lines
    (points,) = line.lines
    assert points.split()[0] == f"0,{HEIGHT}"
    assert points.split()[-1] == f"{WIDTH},{HEIGHT * 0.41:g}"


def test_what_is_unknown_is_a_gap_and_not_zero() -> None:
    """No process reported in a minute; of one the broker was not asked; in one no handler ran."""
    history = WorkHistory(
        minutes={
            MINUTE - 5: Span(handled=2, waiting=3, oldest=500, runs={0: 2}),
            MINUTE - 3: Span(),
            MINUTE - 2: Span(waiting=0),
            MINUTE - 1: Span(waiting=0),
        }
    )
    charts = drawn(history)
    ((handled,), dots) = charts["handled"].lines[0].lines, charts["handled"].lines[0].dots
    assert (len(handled.split()), len(dots)) == (3, 1)
    assert (charts["waiting"].last, charts["oldest"].last) == ("0", "0 s")
    assert charts["latency"].last == "p50 -, p99 -"
    assert len(charts["latency"].lines[0].dots) == 1
    assert "no value" in drawn(NO_WORK)["latency"].label


def test_the_day_is_drawn_per_minute_as_well() -> None:
    """So that both ranges have the same numbers on their axes."""
    quarter = NOW // QUARTER_MS
    history = WorkHistory(quarters={quarter - each: Span(handled=1500, runs={20: 99, 28: 1}) for each in range(1, 97)})
    charts = drawn(history, DAY)
    assert charts["handled"].scale == ("100", "50", "0")
    assert charts["handled"].last == "144,000 in total"
    assert [line.name for line in charts["latency"].lines] == ["p50", "p99"]
    assert charts["latency"].scale == ("2.0 s", "1.0 s", "0")


@pytest.mark.parametrize(
    ("highest", "seconds", "end"),
    [
        *((0, False, 1), (0.3, False, 1), (1, False, 1), (3, False, 5), (59, False, 100), (100, False, 100), (101, False, 200)),
        *((0, True, 1), (0.0003, True, 0.001), (0.07, True, 0.1), (1.5, True, 2), (61, True, 120), (90_000, True, 172_800)),
    ],
)
def test_an_axis_ends_at_a_round_number(highest: float, seconds: bool, end: float) -> None:  # noqa: FBT001
    """At or after the highest value."""
    assert axis_end(highest, seconds=seconds) == pytest.approx(end)


async def worked(folder: Path, processes: int = 2) -> Endpoint:
    """Return an endpoint with processes that handled 10 messages each in the last minute, and one that ended."""
    url = f"sqlite:///{folder}/shop.db"
    shop = endpoint("shop", store=url, transport=url)
    async with shop.opened():
        """Make the tables."""
    now = LIVE.clock.now()
    span = Span(handled=10, runs={8: 10})
    minute, quarter = now // MINUTE_MS, now // QUARTER_MS
    work = WorkHistory(minutes={minute - each: span for each in range(3)}, quarters={quarter - each: span for each in range(3)})
    database = await open_database(url, clock=LIVE.clock)
    presence = SqlPresence(database, "shop")
    for number in range(processes + 1):
        await presence.report(ProcessReport(process=f"web:{number}:a", host="web", pid=number, version="1", work=work))
    await presence.remove("web:0:a", work)
    await database.close()
    return shop


async def shown(shop: Endpoint, path: str) -> tuple[dict[str, Any], str]:
    """Return the data and the text of a page of a new dashboard."""
    app = dashboard(shop, auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        return (await client.get(path, headers=JSON)).json(), (await client.get(path)).text


@pytest.mark.parametrize(("path", "count"), [("/e/shop", 60), ("/e/shop?range=day", 96), ("/e/shop?range=x", 60)])
async def test_a_new_dashboard_shows_what_was_before_it(tmp_path: Path, path: str, count: int) -> None:
    """Summed over all processes, also one that has ended."""
    shop = await worked(tmp_path)
    for _ in range(2):
        data, page = await shown(shop, path)
        assert len(data["work"]) == count
        known = [each for each in data["work"] if each["handled"]]
        assert {each["handled"] for each in known} == {30}
        assert all(each["p50"] is not None for each in known)
        assert page.count("<desc") == 6
        assert "Handled per minute" in page


async def test_without_reports_the_charts_have_a_reason(tmp_path: Path) -> None:
    """They are not empty."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = endpoint("shop", store=url, transport=url, presence=False)
    async with shop.opened():
        """Make the tables."""
    data, page = await shown(shop, "/e/shop")
    assert data["work"] == []
    assert "Unknown: presence=False: no process reports." in page


async def reads(client: httpx.AsyncClient, app: Any, path: str) -> int:
    """Return how many statements on the reports are sent for one reading of the store and three pages."""
    with sent_statements() as sent:
        await client.get("/")
        await sampled(app)
        for _ in range(3):
            await client.get(path)
    return sum("onceonly_processes" in each.text for each in sent)


async def test_the_charts_cost_no_statement(tmp_path: Path) -> None:
    """They are part of what is read anyway, once for each reading of the store, however many processes there are."""
    for processes in (1, 40):
        folder = tmp_path / str(processes)
        folder.mkdir()
        app = dashboard(await worked(folder, processes), auth=loopback_only())
        async with open_client(app) as client:
            assert await reads(client, app, "/e/shop?range=day") == 1
