"""What the dashboard shows of the processes that run an endpoint, and how many messages they handle per second."""

from pathlib import Path

import pytest
from sqlalchemy import update

from onceonly.model.health import STALE_SECONDS, ProcessReport, ProcessState
from onceonly.ports.transport import Depth
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlPresence
from onceonly.sql.store.tables import tables
from onceonly_dashboard import dashboard, loopback_only
from onceonly_dashboard.endpoint_probes import EndpointProbes, HandledRate, QueueState, StoreState
from onceonly_dashboard.state import EndpointLevel, findings_of, level_of
from tests.dashboard.serving import NOW, endpoint, sampled
from tests.dashboard.test_gate import open_client

JSON = {"accept": "application/json"}


def process(name: str, *, handled: int = 0, age: float = 0.0, trouble: str = "") -> ProcessState:
    """Return a process with a report of this age."""
    counters, troubles = {"handled": handled, "held": 2}, (trouble,) if trouble else ()
    report = ProcessReport(process=name, host="<b>web</b>", pid=7, version="1.2", counters=counters, troubles=troubles)
    return ProcessState(report=report, age=age)


def test_the_rate_is_that_between_two_reports_of_each_process() -> None:
    """Reading the same report again changes nothing, however long that takes."""
    rate = HandledRate()
    assert rate.read([process("a", handled=1_000, age=4)], 100) is None
    assert rate.read([process("a", handled=1_000, age=9)], 105) is None
    assert rate.read([process("a", handled=1_050, age=4)], 110) == 5.0
    assert rate.read([process("a", handled=1_050, age=9)], 115) == 5.0
    assert rate.read([process("a", handled=1_050, age=4), process("b", handled=7, age=1)], 120) == 0.0
    assert rate.read([process("a", handled=1_150, age=4), process("b", handled=37, age=1)], 130) == 13.0


def test_a_process_that_is_gone_or_silent_has_no_rate() -> None:
    """One that comes back with a smaller number has begun anew, and its rate is not negative."""
    rate = HandledRate()
    rate.read([process("a"), process("b")], 0)
    assert rate.read([process("a", handled=10), process("b", handled=20)], 10) == 3.0
    assert rate.read([process("a", handled=20)], 20) == 1.0
    assert rate.read([process("a", handled=20, age=STALE_SECONDS + 1)], 60) is None
    rate.read([process("a", handled=50)], 70)
    assert rate.read([process("a", handled=0)], 80) == 0.0


@pytest.mark.parametrize(
    ("processes", "waiting", "level", "words"),
    [
        (None, 5, EndpointLevel.HEALTHY, ""),
        ((), 0, EndpointLevel.HEALTHY, ""),
        ((), 5, EndpointLevel.DEGRADED, "no process reports that it runs"),
        ((process("a"),), 5, EndpointLevel.HEALTHY, ""),
        ((process("a"), process("killed", age=60)), 0, EndpointLevel.HEALTHY, ""),
        ((process("killed", age=60), process("killed before", age=600)), 0, EndpointLevel.DEGRADED, "the last one 1 min ago"),
        ((process("a", trouble="cannot receive"),), 0, EndpointLevel.DEGRADED, "cannot receive"),
        ((process("a"), process("killed", age=60, trouble="cannot receive")), 0, EndpointLevel.HEALTHY, ""),
    ],
)
def test_the_state_follows_from_the_processes(
    processes: tuple[ProcessState, ...] | None, waiting: int, level: EndpointLevel, words: str
) -> None:
    """A process that was killed is no finding as long as another one runs."""
    found = EndpointProbes(endpoint("shop"), LIVE)
    found.queue.value = QueueState(Depth(waiting=waiting, held=0, delayed=0))
    found.store.value, found.letters.value = StoreState(pending=0, processes=processes), 0
    findings = findings_of(found, NOW)
    assert level_of(found, findings) is level
    assert all(finding.advice for finding in findings)
    assert words in " ".join(finding.reason for finding in findings)


async def test_the_pages_show_the_processes_and_the_rate(tmp_path: Path) -> None:
    """As the store has them; names are text."""
    url = f"sqlite:///{tmp_path}/shop.db"
    database = await open_database(url, clock=LIVE.clock)
    await create(database, SCHEMA)
    presence, own = SqlPresence(database, "shop"), tables(database.prefix, database.schema).processes
    await presence.report(process("web:7", handled=1_234_567, trouble="store: <i>away</i>").report)
    await presence.report(process("web:8").report)
    async with database.writing() as connection:
        await connection.execute(update(own).where(own.c.process == "web:8").values(seen=own.c.seen - 120_000))
    app = dashboard(endpoint("shop", store=url, transport=url), auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        (row,) = (await client.get("/", headers=JSON)).json()["endpoints"]
        shown = (await client.get("/e/shop", headers=JSON)).json()
        overview, page = (await client.get("/")).text, (await client.get("/e/shop")).text
    await database.close()
    assert row["rate"] == {"value": None, "why": "its processes have reported once, and report again within 10 seconds"}
    assert [(each["process"], each["is_stale"]) for each in shown["processes"]] == [
        ("<b>web</b>:7", False),
        ("<b>web</b>:7", True),
    ]
    assert shown["processes"][0]["counters"] == {"handled": 1_234_567, "held": 2}
    assert "handled/s" in overview
    assert "&lt;b&gt;web&lt;/b&gt;:7" in page
    assert "1,234,567" in page
    assert "store: &lt;i&gt;away&lt;/i&gt;" in page
    assert "2 min ago" in page


@pytest.mark.parametrize(("presence", "why"), [(False, "presence=False: no process reports"), (True, "no process of it runs")])
async def test_a_rate_that_is_unknown_has_a_reason(presence: bool, why: str, tmp_path: Path) -> None:  # noqa: FBT001
    """It is never 0."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = endpoint("shop", store=url, transport=url, presence=presence)
    async with shop.opened():
        """Make the tables."""
    app = dashboard(shop, auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        (row,) = (await client.get("/", headers=JSON)).json()["endpoints"]
        page = (await client.get("/e/shop")).text
    assert row["rate"] == {"value": None, "why": why}
    assert ("No process runs it." in page) is presence
    assert (f"Unknown: {why}" in page) is not presence


async def test_killed_processes_are_one_line(tmp_path: Path) -> None:
    """However many there are. The table lists those that run."""
    url = f"sqlite:///{tmp_path}/shop.db"
    shop = endpoint("shop", store=url, transport=url)
    async with shop.opened():
        """Make the tables."""
    database = await open_database(url, clock=LIVE.clock)
    presence, own = SqlPresence(database, "shop"), tables(database.prefix, database.schema).processes
    for number in range(25):
        await presence.report(process(f"web:{number:02}").report)
    async with database.writing() as connection:
        await connection.execute(update(own).where(own.c.process != "web:00").values(seen=own.c.seen - 120_000))
    await database.close()
    app = dashboard(shop, auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        page = (await client.get("/e/shop")).text
    assert "24 processes</span> stopped reporting in the last hour" in page
    assert "and 4 more." in page
    assert page.count('data-label="seen"') == 1
