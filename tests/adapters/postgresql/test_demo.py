"""The main job on PostgreSQL, small: real processes, real kills, store and queue in one database."""

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ZEROS = ("lost", "duplicated", "ghosts", "phantoms", "leftovers", "wrong_totals")


@pytest.fixture(autouse=True)
def one_at_a_time() -> Iterator[None]:
    """Wait until no other process of the test runner has a demo: each opens up to 44 of the server's 100 connections."""
    with (Path(tempfile.gettempdir()) / "onceonly-demo-on-postgresql.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def demo(url: str, *options: str) -> tuple[int, dict[str, float]]:
    """Run the demo with 300 flights; gives its exit code and its numbers."""
    command = [sys.executable, "-m", "onceonly", "demo", "--flights", "300", "--json", "--store", url, "--transport", url]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=180)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.repeated)])
def test_every_flight_counts_once_though_processes_are_killed(postgresql_url: str, driver: str) -> None:
    """All zeros, and the kills really happened."""
    code, numbers = demo(postgresql_url.replace("postgresql:", f"postgresql+{driver}:"), "--kills", "3")
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"]) == (0, 300, 3)


def test_the_control_run_shows_what_deduplication_prevents(postgresql_url: str) -> None:
    """Without deduplication the copies are handled again."""
    code, numbers = demo(postgresql_url, "--kills", "1", "--deduplication", "off")
    assert code == 0
    assert numbers["duplicated"] > 0
