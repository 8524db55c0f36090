"""The adapters that are mutated, and the conformance suites that run on them: those of `tests/conformance`, without pytest."""

import asyncio
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from onceonly_conformance.forgetful_suite import ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.suite import Suite, rules
from tests.conformance.sql_documents_subjects import make_documents_table
from tests.conformance.sql_subjects import make_tables
from tests.servers.available import RABBITMQ, postgresql_database
from tests.servers.rabbitmq import own_rabbitmq

SHARED = [
    *(
        f"onceonly.sql.store.{name}"
        for name in (
            "claims",
            "dead_letters",
            "documents",
            "entities",
            "leases",
            "register",
            "ring",
            "statements",
            "store",
            "time_buckets",
            "transactions",
            "unit",
        )
    ),
    "onceonly.sql.queue",
    "onceonly.sql.queue_tables",
    "onceonly.sql.transaction",
]
"""The SQL code of all databases that the suites are about."""

LEFT_OUT_OF_SQL = {
    "sql.silence": "outages: tests/adapters",
    "sql.database, sql.translation, sql.guard, sql.handler_threads": "connections and errors: tests/sql, tests/adapters",
    "sql.schema, sql.store.tables, sql.store.journals, sql.columns": "tables and their versions: tests/sql",
    "sql.store.enlistment, sql.store.resources": "SQLAlchemy sessions of users: tests/sql",
    "sql.store.tokens, sql.store.remote_requests, sql.store.run_markers": "their suites run on pairs of stores",
    "sql.store.measurements, sql.store.reports, sql.notifications": "figures, reports, and how soon a message is noticed",
    "sql.options, sql.urls, sql.urls, sql.time_limits": "settings and reports, which no port returns",
}
LEFT_OUT_OF_RABBITMQ = {
    "address, link": "settings, and connections and their errors: tests/adapters/rabbitmq",
    "frames, wire, frame_reader": "what other programs send: tests/adapters/rabbitmq",
    "queue_depth, management, unsubscribed_queue": "figures for people, and silence of servers: tests/adapters/rabbitmq",
}

SQLITE_SUITES = {
    "tests.conformance.test_sqlite": (
        "TestSqliteStore",
        "TestSqliteLocks",
        "TestSqliteForgettingStore",
        "TestSqliteRegister",
        "TestSqliteRing",
        "TestSqliteQueue",
        "TestSqliteDeadLetters",
        "TestSqliteDocuments",
    ),
    "tests.conformance.test_transactions": ("TestTransactionsInSqlite",),
}
POSTGRESQL_SUITES = {
    "tests.conformance.test_postgresql": (
        "TestPostgresqlStore",
        "TestPostgresqlLocks",
        "TestPostgresqlForgettingStore",
        "TestPostgresqlRegister",
        "TestPostgresqlRing",
        "TestPostgresqlQueue",
        "TestPostgresqlDeadLetters",
        "TestPostgresqlDocuments",
    ),
    "tests.conformance.test_transactions": ("TestTransactionsInPostgresql",),
}
RABBITMQ_SUITES = {"tests.conformance.test_rabbitmq": ("TestRabbitMQ", "TestRabbitMQAsABroker", "TestRabbitMQWithFaults")}


class Rule(NamedTuple):
    """One rule of one suite, as it is bound in a test module."""

    module: str
    suite: str
    rule: str

    @property
    def name(self) -> str:
        """Name it as reports do."""
        return f"{self.suite}.{self.rule}"


class Binding(NamedTuple):
    """An adapter under mutation. `prepared` makes what its rules need, and returns what gives a suite a new place.

    `left_out` names modules of the adapter that are not mutated, with the reasons.
    """

    name: str
    modules: list[str]
    left_out: Mapping[str, str]
    suites: Mapping[str, tuple[str, ...]]
    prepared: Callable[[Path, int], Any]
    at_once: int = 1

    def rules(self) -> list[Rule]:
        """List the rules of all its suites that are not waived."""
        found = []
        for module, suites in self.suites.items():
            for name in suites:
                kind: type[Suite] = getattr(importlib.import_module(module), name)
                if issubclass(kind, ForgetfulStoreSuite):  # its rules of other stores run in the suite of those
                    kind = type("Own", (ForgetfulRecordsSuite, ForgetfulStoreSuite), {})
                found += [Rule(module, name, rule) for rule in rules(kind) if rule not in kind.waived]
        return found


@contextmanager
def sqlite_places(folder: Path, _slots: int) -> Iterator[Callable[[Suite, int], None]]:
    """Make one file with all tables. Each rule works on a copy."""
    template = folder / "template.db"
    asyncio.run(make_tables(template))
    asyncio.run(make_documents_table(template))

    numbers = count(1)

    def place(suite: Any, slot: int) -> None:
        number = next(numbers)
        for old in folder.glob(f"slot{slot}-*"):
            if abs(int(old.name.partition("-")[2].partition(".")[0]) - number) > 1:  # the last one may still be closing
                old.unlink(missing_ok=True)
        suite.file = shutil.copy(template, folder / f"slot{slot}-{number}.db")

    yield place


@contextmanager
def postgresql_places(_folder: Path, slots: int) -> Iterator[Callable[[Suite, int], None]]:
    """Make one database, with a schema for each worker. Each rule empties the tables."""
    with postgresql_database() as url:
        places = [f"{url}?schema=slot{slot}" for slot in range(slots)]
        for each in places:
            asyncio.run(make_tables(each))
            asyncio.run(make_documents_table(each))

        def place(suite: Any, slot: int) -> None:
            suite.url = places[slot]

        yield place


@contextmanager
def rabbitmq_places(folder: Path, _slots: int) -> Iterator[Callable[[Suite, int], None]]:
    """Start a server: mutants leave queues behind, and may overload it. Each rule uses names of its own."""
    tempfile.tempdir = str(folder.parent)
    with own_rabbitmq() as server:
        server.start()
        os.environ[RABBITMQ.variable] = server.url
        yield lambda _suite, _slot: None


BINDINGS = {
    each.name: each
    for each in (
        Binding(
            "sqlite",
            [*SHARED, "onceonly.adapters.sqlite.dialect"],
            LEFT_OUT_OF_SQL | {"sqlite.connection, sqlite.file": "opening files: tests/adapters/sqlite"},
            SQLITE_SUITES,
            sqlite_places,
        ),
        Binding(
            "postgresql",
            [*SHARED, "onceonly.adapters.postgresql.dialect", "onceonly.adapters.postgresql.maintenance"],
            LEFT_OUT_OF_SQL
            | {"postgresql.drivers, deadlocks, notifications, statements, watch": "outages: tests/adapters/postgresql"},
            POSTGRESQL_SUITES,
            postgresql_places,
        ),
        Binding(
            "rabbitmq",
            [f"onceonly.adapters.rabbitmq.{name}" for name in ("publisher", "topology", "transport", "inbox", "names")],
            LEFT_OUT_OF_RABBITMQ,
            RABBITMQ_SUITES,
            rabbitmq_places,
            at_once=8,
        ),
    )
}
