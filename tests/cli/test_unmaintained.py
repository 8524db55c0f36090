"""`onceonly schema check` names an endpoint that nobody maintains."""

import sqlite3
import time
from contextlib import closing

import msgspec

from onceonly.model.maintenance_journal import MaintenanceJournal
from tests.cli.terminal import Terminal


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
