"""What a database does for a statement: the rows that it really reads and sorts, by running it once more under its profiler."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event

from onceonly.sql.database import Database

STEPS = 40
"""Instructions of SQLite's virtual machine for a row, at most: it counts no rows."""


_CONDITION = re.compile(r'^(\s*"\w*condition\w*": )".*"(,?)$', re.MULTILINE)
"""MariaDB writes keys into the conditions of a plan as they are in SQL, and that is not JSON."""


class Sent(NamedTuple):
    """A statement as it was sent to a driver."""

    text: str
    parameters: Any


class Work(NamedTuple):
    """How many rows of each table a statement reads, and how many it sorts. SQLite counts rows by the work of all tables."""

    read: Mapping[str, int]
    sorted: int

    def problems(self, most_read: int, most_sorted: int) -> list[str]:
        """Describe what is more than these numbers."""
        found = [f"reads {count:,} rows of {table}" for table, count in self.read.items() if count > most_read]
        return found + ([f"sorts {self.sorted:,} rows"] if self.sorted > most_sorted else [])


@contextmanager
def sent_statements() -> Iterator[list[Sent]]:
    """Note the statements that all engines of this process send within a block."""
    sent: list[Sent] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        sent.append(Sent(statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def work_of(database: Database, sent: Sent) -> Work:
    """Run a statement that only reads, and return what it costs."""
    async with database.reading() as connection:
        if database.dialect.name == "sqlite":
            return await _in_sqlite(connection, sent)
        return await connection.run_sync(_on_a_server, sent)


def _on_a_server(connection: Connection, sent: Sent) -> Work:
    is_postgresql = connection.dialect.name == "postgresql"
    verb = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON)" if is_postgresql else "ANALYZE FORMAT=JSON"
    found = connection.exec_driver_sql(f"{verb} {sent.text}", sent.parameters).scalar_one()
    plan = json.loads(_CONDITION.sub(r'\1""\2', found)) if isinstance(found, str) else found
    read: Counter[str] = Counter()
    sorts = [*_postgresql(plan[0]["Plan"], read)] if is_postgresql else [*_mariadb(plan, read)]
    return Work(dict(read), max(sorts, default=0))


def _postgresql(node: Mapping[str, Any], read: Counter[str]) -> Iterator[int]:
    """Add up the rows of each table, and give the rows that go into each sort."""
    inner = node.get("Plans", ())
    if "Relation Name" in node:
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        read[node["Relation Name"]] += round((node["Actual Rows"] + removed) * node["Actual Loops"])
    if node["Node Type"] in {"Sort", "Incremental Sort"}:
        groups = sum(node[kind]["Group Count"] for kind in ("Full-sort Groups", "Pre-sorted Groups") if kind in node)
        yield round(inner[0]["Actual Rows"] * inner[0]["Actual Loops"] / (groups or 1))
    for each in inner:
        yield from _postgresql(each, read)


def _mariadb(node: Any, read: Counter[str]) -> Iterator[int]:
    """Add up the rows of each table, and give the rows that go into each sort: of its temporary table, or of its table."""
    if isinstance(node, list):
        for each in node:
            yield from _mariadb(each, read)
    elif isinstance(node, dict):
        if "table_name" in node and not node["table_name"].startswith("<"):
            read[node["table_name"]] += _rows(node)
        if "filesort" in node and node["filesort"].get("r_loops"):
            sort = node["filesort"]
            yield max(sort.get("r_output_rows") or 0, _rows(sort["table"]) if "table" in sort else 0)
        for each in node.values():
            yield from _mariadb(each, read)


def _rows(table: Mapping[str, Any]) -> int:
    return round((table.get("r_rows") or 0) * (table.get("r_loops") or 0))


async def _in_sqlite(connection: Any, sent: Sent) -> Work:
    """Count instructions. A sort of whole rows counts as one of all that is read: how many there are is not shown."""
    plan = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sent.text}", sent.parameters)).all()
    steps = Counter[str]()

    def note() -> int:
        steps["all tables"] += 1
        return 0

    raw = (await connection.get_raw_connection()).driver_connection
    await raw.set_progress_handler(note, STEPS)
    try:
        (await connection.exec_driver_sql(sent.text, sent.parameters)).all()
    finally:
        await raw.set_progress_handler(None, 0)
    sorts = any("TEMP B-TREE" in row[3] and "LAST" not in row[3] for row in plan)
    return Work(dict(steps), steps["all tables"] if sorts else 0)
