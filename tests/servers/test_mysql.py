"""The tests of MariaDB once more on MySQL, demos in which processes are killed, and a server that is killed under load."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from onceonly_demo.flights import load
from onceonly_demo.options import Deduplication, DemoOptions
from onceonly_demo.run import run
from tests.again import Run, run_again
from tests.faults.demo_harness import demo, exactly_once
from tests.servers.available import MARIADB, MEASURED
from tests.servers.mysql import MYSQL, own_mysql

pytestmark = pytest.mark.slow

SECONDS = 1800
FLIGHTS, KILLS = 300, 20
CI = ("tests/conformance/test_mariadb.py", "tests/adapters/mariadb/test_units.py")
LEAST_IN_CI = 80
IN_CI = "(TestMariaDBStore or TestMariaDBLocks or test_units)"
"""The store, its locks and what units cost: what `make test-ci` has time for."""
WHOLE = (
    "tests/adapters/mariadb",
    "tests/sql",
    "tests/conformance/test_mariadb.py",
    "tests/conformance/test_dedup_and_tokens.py",
)
LEAST = 600
ONLY_MARIADB = {
    "test_what_only_mariadb_has_and_does_not_commit_is_allowed": "has statements of MariaDB only",
    "test_a_user_s_engine_keeps_its_settings": "reads idle_transaction_timeout; test_mysql.py has its twin",
    "test_a_transaction_in_a_process_that_opened_nothing_has_a_limit": "reads idle_transaction_timeout; so has this",
    "test_a_record_that_no_packet_can_hold_is_the_messages_own_fault": "goes beyond MariaDB's limit of 16 MiB; MySQL's is 64",
    "test_the_statements_of_the_docstring_are_sent": "counts the statements of INSERT ... RETURNING",
    "test_a_hundred_messages_load_in_one_statement_and_save_in_three": "counts the statements of INSERT ... RETURNING",
    "test_a_batch_costs_one_statement_for_each_bucket": "counts the statements of INSERT ... RETURNING",
    "test_copies_in_a_bucket_cost_one_read_more": "counts the statements of INSERT ... RETURNING",
    "test_records_of_other_endpoints_are_not_read": "reads a plan as MariaDB prints it",
    "test_the_index_is_searched_by_the_clock": "reads a plan in MariaDB's JSON",
}
"""Tests that are right on MariaDB only, and why."""


def words(chosen: str) -> str:
    """Return the expression of pytest that chooses tests, without those for MariaDB only."""
    return " and ".join([chosen, *(f"not {name}" for name in ONLY_MARIADB)])


async def once_more(paths: tuple[str, ...], chosen: str, report: Path) -> Run:
    """Run tests of MariaDB on MySQL."""
    with own_mysql() as server:
        since = time.monotonic()
        environment = {MARIADB.variable: server.url}
        found = await asyncio.to_thread(run_again, paths, report, "-k", words(chosen), environment=environment, seconds=SECONDS)
        MEASURED.append(f"{MYSQL.name}: {found.count()} tests of MariaDB in {time.monotonic() - since:.0f} s")
    return found


@pytest.mark.longest
@pytest.mark.timeout(SECONDS)
async def test_a_store_on_mysql_keeps_its_promises(tmp_path: Path) -> None:
    """The part that continuous integration runs."""
    (await once_more(CI, IN_CI, tmp_path / "report.xml")).check(LEAST_IN_CI)


@pytest.mark.repeated
@pytest.mark.longest
@pytest.mark.timeout(SECONDS)
async def test_every_promise_of_mariadb_is_kept_on_mysql(tmp_path: Path) -> None:
    """Suites, the adapter's own tests, and those of SQL in general."""
    (await once_more(WHOLE, "mariadb", tmp_path / "report.xml")).check(LEAST)


@pytest.mark.repeated
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", [kind for kind in Deduplication if kind is not Deduplication.OFF], ids=lambda kind: kind.value)
async def test_every_flight_counts_once_with_mysql_as_store_and_queue(kind: Deduplication) -> None:
    """Processes are killed while they hold messages."""
    with own_mysql() as server:
        options = DemoOptions(flights=FLIGHTS, kills=KILLS, deduplication=kind, store=server.url, transport=server.url)
        since = time.monotonic()
        exactly_once(await run(load(options.flights), options, lambda _: None), options)
    MEASURED.append(f"{MYSQL.name}: {kind.value}, {FLIGHTS} flights, {KILLS} kills, {time.monotonic() - since:.0f} s")


@pytest.mark.repeated
@pytest.mark.timeout(SECONDS)
async def test_every_flight_counts_once_though_mysql_is_killed() -> None:
    """Crash here: 1 units are open and commits unanswered, 2 the server is gone, 3 what it had committed is pending or done."""
    with own_mysql() as server:
        seconds: list[float] = []

        async def restart() -> None:
            await asyncio.to_thread(server.stop, signal.SIGKILL)
            since = time.monotonic()
            await asyncio.to_thread(server.start)
            seconds.append(time.monotonic() - since)

        options = DemoOptions(flights=FLIGHTS, kills=1, processes=2, store=server.url, transport=server.url)
        exactly_once(await demo(options, restart), options)
    MEASURED.append(f"{MYSQL.name}, killed under load: back after {seconds[0]:.1f} s, {FLIGHTS} flights counted once")


def test_a_run_that_tested_too_little_fails() -> None:
    """Control."""
    Run(["test_a"] * LEAST_IN_CI, "").check(LEAST_IN_CI)
    with pytest.raises(AssertionError, match="fewer than"):
        Run(["test_a"] * (LEAST_IN_CI - 1), "").check(LEAST_IN_CI)


def test_tests_for_mariadb_alone_are_there() -> None:
    """A name that no test has would hide nothing, and mislead."""
    texts = "".join(
        each.read_text() for name in WHOLE for each in (Path(name).rglob("*.py") if Path(name).is_dir() else [Path(name)])
    )
    assert [name for name in ONLY_MARIADB if f"def {name}(" not in texts] == []
