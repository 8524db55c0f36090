"""What a dialect inherits: the defaults, and nothing else that would silently do nothing."""

import inspect

import pytest

from onceonly.adapters.mariadb.dialect import MariaDB
from onceonly.adapters.postgresql.dialect import PostgreSQL
from onceonly.adapters.sqlite.dialect import SQLite
from onceonly.sql.dialect import Dialect

DEFAULTS = {
    "has_ended",
    "is_busy",
    "insert_at",
    "insert_and_update",
    "insert_behind",
    "insert_all",
    "insert_last",
    "update_last",
}
SHARED = {"among", "current", "drop_connections", "forget_connections", "allow_commit", "set_savepoint"}
"""What a database can leave out whose driver and snapshots need nothing more."""
SETTINGS = {"enclose_driver", "own_settings", "reset_session"}
"""What is needed where handlers can change settings, or a driver's connection can be enclosed."""
LOGS = {"history", "shrink_log"}
"""What a server tells of its log, or what is done with that of a file."""
NOTIFICATIONS = {"notify", "listen"}
"""Called only where `notifies` is true."""


@pytest.mark.parametrize("kind", [MariaDB, PostgreSQL, SQLite])
def test_a_dialect_has_all_that_has_no_default(kind: type[Dialect]) -> None:
    """A function without a body in the port would return None."""
    promised = {name for name, _ in inspect.getmembers(Dialect, inspect.isfunction) if not name.startswith("_")}
    assert promised - DEFAULTS - SHARED - SETTINGS - LOGS - NOTIFICATIONS <= vars(kind).keys()
    assert vars(kind).keys() & LOGS == ({"shrink_log"} if kind.embedded else {"history"})
    assert kind.notifies == (vars(kind).keys() >= NOTIFICATIONS)


def test_a_default_has_one_body() -> None:
    """Only what a database does in another way is written again."""
    assert {kind: DEFAULTS & vars(kind).keys() for kind in (MariaDB, PostgreSQL, SQLite)} == {
        MariaDB: {"insert_behind", "update_last"},
        PostgreSQL: DEFAULTS,
        SQLite: set(),
    }
