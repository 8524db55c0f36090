"""`onceonly schema check` names an endpoint that nobody maintains."""

import sqlite3
import time
from contextlib import closing

import msgspec
import pytest

from onceonly.model.maintenance_journal import MaintenanceJournal
from tests.cli.probe import until
from tests.cli.terminal import Running, Terminal

PROGRAM = """
from datetime import timedelta
from onceonly import Endpoint, History, Retry

shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///queue.db", janitor=False, timeout=1.0,
                retry=Retry(immediate=0, delayed=0), max_commit=timedelta(seconds=1),
                deduplication=History(timedelta(seconds=12)))

@shop.handler(type="Order")
async def place(body: dict[str, object]) -> None:
    pass
"""


def note(onceonly: Terminal, age: float) -> None:
    """Leave the journal of a janitor that ran so many seconds ago."""
    journal = MaintenanceJournal(at=round((time.time() - age) * 1000), interval=60_000, retention=604_800_000)
    with closing(sqlite3.connect(onceonly.folder / "shop.db")) as database, database:
        database.execute("INSERT OR REPLACE INTO onceonly_janitor VALUES ('shop', ?)", (msgspec.json.encode(journal),))


def test_an_endpoint_that_nobody_maintains_is_named(onceonly: Terminal) -> None:
    """In a warning that does not change the exit code. Before the first run, and while a janitor runs, there is none."""
    onceonly("schema", "create", "shop:shop")
    for age, is_named in ((None, False), (10.0, False), (3600.0, True)):
        if age is not None:
            note(onceonly, age)
        done = onceonly("schema", "check", "shop:shop", "--json")
        named = "warning: endpoint 'shop' is not maintained: no process has run its janitor for 1 h" in done.err
        assert (done.code, named) == (0, is_named)
        assert all(each["ready"] for each in done.answer)
    assert "not maintained" not in onceonly("schema", "check", "sqlite:///shop.db").err


@pytest.mark.parametrize("arguments", [("relay",), ("run", "--processes", "1")], ids=["relay", "run"])
@pytest.mark.slow
def test_ready_names_an_endpoint_that_no_process_maintains(onceonly: Terminal, arguments: tuple[str, ...]) -> None:
    """As degraded: its messages are handled and sent all the same. So does the log, once."""
    (onceonly.folder / "few_minutes.py").write_text(PROGRAM)
    with onceonly.start(*arguments, "few_minutes:shop", "--health", "0") as process:
        try:
            running = Running(process)
            port = int(running.until("health server listening").rsplit(":", 1)[1])

            def is_named(status: int, body: dict[str, object]) -> bool:
                return status == 200 and "no process ran the janitor, which is due every" in str(body["reasons"])

            _, body = until(port, "/ready", is_named)
            assert body["status"] == "degraded"
            running.until("endpoint is not maintained")
            assert running.stop() == 0
        finally:
            if process.poll() is None:
                process.kill()
