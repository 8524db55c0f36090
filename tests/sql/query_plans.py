"""What a database does for a query: which indexes it uses, and whether it reads a whole table."""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Select, event, text

from onceonly.sql.database import Database


class QueryPlan(list[str]):
    """The steps of a plan in words: `scan TABLE`, `index NAME` or `sort`."""

    @property
    def scans(self) -> list[str]:
        """The tables that are read as a whole."""
        return [step for step in self if step.startswith("scan ")]


async def plan_of(database: Database, query: Select[Any]) -> QueryPlan:
    """Explain a query as it is sent to the database."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        sent.append((statement, parameters))

    def explain(connection: Connection) -> QueryPlan:
        event.listen(connection, "before_cursor_execute", note)
        connection.execute(query).all()
        event.remove(connection, "before_cursor_execute", note)
        return _explain(connection, *sent[-1])

    async with database.reading() as connection:
        return await connection.run_sync(explain)


async def analyze(database: Database, *tables: str) -> None:
    """Let the database count what its tables hold."""
    verbs = {"mysql": "ANALYZE TABLE", "postgresql": "VACUUM ANALYZE"}
    async with database.autocommitting() as connection:
        for table in tables:
            verb = verbs.get(connection.dialect.name, "ANALYZE")
            await connection.execute(text(f"{verb} {database.prefix}{table}"))


def _explain(connection: Connection, statement: str, parameters: Any) -> QueryPlan:
    match connection.dialect.name:
        case "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            return QueryPlan(step for row in rows for step in _sqlite(row[3]))
        case "postgresql":
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar_one()
            return QueryPlan(_postgresql((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
        case _:
            rows = connection.exec_driver_sql(f"EXPLAIN FORMAT=TRADITIONAL {statement}", parameters)
            return QueryPlan(step for row in rows.mappings() for step in _mariadb(row))


def _sqlite(detail: str) -> Iterator[str]:
    words = detail.split()
    if "INDEX" in words:
        yield f"index {words[words.index('INDEX') + 1]}"
    elif "PRIMARY KEY" in detail:
        yield f"index {words[1]}_pkey"
    elif words[0] == "SCAN" and not words[1].startswith(("anon", "(", "CONSTANT")):
        yield f"scan {words[1]}"
    elif "ORDER BY" in detail:
        yield "sort"


def _postgresql(node: dict[str, Any]) -> Iterator[str]:
    if node["Node Type"] == "Seq Scan":
        yield f"scan {node['Relation Name']}"
    if "Index Name" in node:
        yield f"index {node['Index Name']}"
    if node["Node Type"] == "Sort":
        yield "sort"
    for inner in node.get("Plans", ()):
        yield from _postgresql(inner)


def _mariadb(row: Any) -> Iterator[str]:
    table, key, extra = str(row["table"]), row["key"], row["Extra"] or ""
    if table.startswith("<"):
        return  # the rows of a subquery
    if key == "PRIMARY":
        yield f"index {table}_pkey"
    elif key:
        yield f"index {key}"
    elif row["type"] == "ALL":
        yield f"scan {table}"
    if "filesort" in extra:
        yield "sort"
