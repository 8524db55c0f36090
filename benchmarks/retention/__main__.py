"""`python -m benchmarks.retention`: what it costs to remember what was handled, and to forget it.

In PostgreSQL the statement that the library sends is measured on the driver's own connection, beside a table as outboxes
usually have it: a text key, a date, an index on each. Before each turn the server writes out what it has to, and another
table is the first in every round. SQLite and MariaDB are measured through the library, on one connection. It needs a PostgreSQL
(BENCH_DATABASE) and a MariaDB (BENCH_MARIADB, left out loudly if it is not there), makes databases of its own there, and drops
them.
"""

import asyncio
import os
import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from benchmarks.machine import load, look, versions
from benchmarks.retention import others
from benchmarks.retention.findings import RetentionFindings, promises
from benchmarks.retention.measuring import FULL, QUICK, RETENTION, TINY, RetentionSizes, measure_other, measure_postgresql
from benchmarks.retention.table import show
from benchmarks.worker import new_event_loop
from onceonly import OnceOnlyError

DATABASE, MARIADB = "postgresql://root@127.0.0.1:5432/postgres", "mariadb://root@127.0.0.1:3306/test"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the claims, in a minute or two.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="A few thousand claims: the numbers mean nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure bytes, claiming and forgetting; a promise that is not kept is said, and is no error."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        findings = runner.run(measure(TINY if tiny else QUICK if quick else FULL))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        show(findings)


async def measure(plan: RetentionSizes) -> RetentionFindings:
    """Measure in all three databases."""
    machine, begun = look(), time.monotonic()
    found, version = await measure_postgresql(os.environ.get("BENCH_DATABASE", DATABASE), plan, _say)
    databases = {"PostgreSQL": found}
    async with others.opened_sqlite(RETENTION) as ground:
        databases["SQLite"] = await measure_other(ground, "SQLite", plan, _say)
    try:
        async with others.opened_mariadb(os.environ.get("BENCH_MARIADB", MARIADB), RETENTION) as ground:
            databases["MariaDB"] = await measure_other(ground, "MariaDB", plan, _say)
    except OnceOnlyError as error:
        _say(f"!!! NOT MEASURED: MariaDB: {error}")
    machine.load_after = load()
    return RetentionFindings(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        versions=versions(PostgreSQL=version),
        seconds=round(time.monotonic() - begun, 1),
        databases=databases,
        meant=promises(found),
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
