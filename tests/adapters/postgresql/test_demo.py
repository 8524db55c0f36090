"""The main job on PostgreSQL, small: real processes, real kills, store and queue in one database."""

import json
import subprocess
import sys

import pytest

ZEROS = ("lost", "duplicated", "ghosts", "phantoms", "leftovers", "wrong_totals")


def demo(url: str, *options: str) -> tuple[int, dict[str, float]]:
    """Run the demo with 300 flights; gives its exit code and its numbers."""
    command = [sys.executable, "-m", "onceonly", "demo", "--flights", "300", "--json", "--store", url, "--transport", url]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_every_flight_counts_once_though_processes_are_killed(postgresql_url: str, driver: str) -> None:
    """All zeros, and the kills really happened."""
    code, numbers = demo(postgresql_url.replace("postgresql:", f"postgresql+{driver}:"), "--kills", "3")
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"]) == (0, 300, 3)


@pytest.mark.slow
def test_the_control_run_shows_what_deduplication_prevents(postgresql_url: str) -> None:
    """Without deduplication the copies are handled again."""
    code, numbers = demo(postgresql_url, "--kills", "1", "--deduplication", "off")
    assert code == 0
    assert numbers["duplicated"] > 0
