"""The main job, small: real processes, real kills, real files."""

import json
import subprocess
import sys

import pytest

NAMES = [
    "messages",
    "deliveries",
    "duplicates",
    "kills",
    "effects",
    "lost",
    "duplicated",
    "ghosts",
    "phantoms",
    "leftovers",
    "wrong_totals",
    "seconds",
]


def demo(*options: str) -> tuple[int, dict[str, float]]:
    """Run the demo with 400 flights; gives its exit code and its numbers."""
    command = [sys.executable, "-m", "onceonly", "demo", "--flights", "400", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_every_flight_counts_once_though_processes_are_killed() -> None:
    """All zeros, and the kills really happened."""
    code, numbers = demo("--kills", "4")
    assert list(numbers) == NAMES
    assert {name: numbers[name] for name in NAMES[5:11]} == dict.fromkeys(NAMES[5:11], 0)
    assert (code, numbers["messages"], numbers["effects"], numbers["kills"]) == (0, 400, 400, 4)
    assert numbers["duplicates"] > 0


def test_the_control_run_shows_what_deduplication_prevents() -> None:
    """Without deduplication the copies are handled again."""
    code, numbers = demo("--kills", "1", "--deduplication", "off")
    assert code == 0
    assert numbers["duplicated"] > 0


@pytest.mark.parametrize("flights", ["0", "10001"])
def test_a_number_of_flights_that_the_file_does_not_hold_is_refused(flights: str) -> None:
    """A usage error on standard error, nothing on standard output."""
    command = [sys.executable, "-m", "onceonly", "demo", "--flights", flights]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--flights" in done.stderr
