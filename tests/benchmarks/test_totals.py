"""A tiny run: every row of onceonly and by hand comes to the right totals, on every backend, and nothing stays behind."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import asyncpg
import pytest

from benchmarks.crew import RunFailed
from benchmarks.measuring import check
from benchmarks.rows import BY_NAME, ROWS
from benchmarks.stages import Totals, count
from tests import ROOT
from tests.servers.available import POSTGRESQL, RABBITMQ, need

OWN = [row.name for row in ROWS if row.is_own]
COMPETITORS = ["huey_sqlite", "at_least_once_orm", "c_floor", "c_echo", "graphile_worker"]


class Done(NamedTuple):
    """What a run printed, how it ended, and its process's number, which is in the name of its database."""

    pid: int
    code: int
    printed: str
    errors: str


def tiny(*rows: str) -> Done:
    """Run `python -m benchmarks --tiny --json` on some rows."""
    command = [sys.executable, "-m", "benchmarks", "--tiny", "--json"]
    for row in rows:
        command += ["--rows", row]
    place = {"BENCH_DATABASE": need(POSTGRESQL), "BENCH_BROKER": need(RABBITMQ)}
    environment = {**os.environ, **place}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        printed, errors = process.communicate()
        return Done(process.pid, process.returncode, printed, errors)


async def databases_of(pid: int) -> int:
    """Count the databases that a process left."""
    connection = await asyncpg.connect(need(POSTGRESQL))
    try:
        query = "select count(*) from pg_database where starts_with(datname, $1)"
        return int(await connection.fetchval(query, f"onceonly_bench_{pid}_"))
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_tiny_run_comes_to_the_right_totals_on_every_backend() -> None:
    """It ends with an error when a row or a message is missing or too many; a library that is not there is skipped, loudly."""
    done = tiny(*OWN, "floor_orm", "driver_echo", *COMPETITORS)
    assert done.code == 0, done.errors
    results: dict[str, Any] = json.loads(done.printed)
    assert {name for name in OWN if results["rows"][name]["samples"]} == set(OWN)
    costs = {name: results["rows"][name]["costs"] for name in OWN}  # each within its limits, or the run would have failed
    assert {name for name in OWN if costs[name]["statements"] > 0 and costs[name]["commits"] > 0} == set(OWN)
    missing = {name for name in COMPETITORS if BY_NAME[name].missing()}
    assert set(results["skipped"]) == missing
    assert done.errors.count("!!! NOT MEASURED") == len(missing)
    assert results["ratios"]["orm_vs_floor"] > 0
    assert results["backlog"]["onceonly_orm"]["peak"] > 0
    assert asyncio.run(databases_of(done.pid)) == 0


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        (["a", "b"], ["a"]),
        (["a"], ["a", "b"]),
        (["a", "a"], ["a", "b"]),
        (["a", "b"], ["b", "b"]),
        (["a", "b", "c"], ["a", "b"]),
    ],
)
def test_wrong_totals_end_the_run(rows: list[str], messages: list[str]) -> None:
    """A message or a row that is missing, or there twice, or one too many."""
    with pytest.raises(RunFailed, match="wrong totals"):
        check(BY_NAME["onceonly_orm"], count(rows, messages), 2)


def test_right_totals_do_not() -> None:
    """Rows and messages, each once; the echo writes none."""
    check(BY_NAME["onceonly_orm"], count(["a", "b"], ["b", "a"]), 2)
    check(BY_NAME["driver_echo"], Totals(rows=0, distinct_rows=0, messages=2, distinct_messages=2), 2)


def test_an_unknown_row_is_refused() -> None:
    """The message lists those that there are."""
    done = tiny("no_such_row")
    assert done.code != 0
    assert "onceonly_orm" in done.errors
