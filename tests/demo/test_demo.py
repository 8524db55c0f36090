"""The main job, small: real processes, real kills, real files."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from onceonly.adapters.ravendb.documents import create
from tests.servers.available import REDIS, need

pytestmark = pytest.mark.slow

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
    "dead_letters",
    "missing_blobs",
    "unannounced_blobs",
    "half_batches",
    "leftovers",
    "wrong_totals",
    "records",
    "queued",
    "claims",
    "prepared",
    "live",
    "attempts",
    "marks",
    "swept_tokens",
    "swept_attempts",
    "blobs",
    "seconds",
    "longest_wait",
    "longest_wait_cause",
]
RUN_LASTS_SECONDS = 30.0
"""A message that waits for a run to count as dead waits for longer than this, on any machine."""
ZEROS = NAMES[NAMES.index("lost") : NAMES.index("marks")]


def demo(*options: str, flights: int = 400) -> tuple[int, dict[str, float]]:
    """Run the demo; gives its exit code and its numbers."""
    done = command("--flights", str(flights), "--json", *options)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def command(*options: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo."""
    words = [sys.executable, "-m", "onceonly", "demo", *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.slow
def test_every_flight_counts_once_though_processes_are_killed() -> None:
    """All zeros, and the kills really happened."""
    code, numbers = demo("--kills", "4")
    assert list(numbers) == NAMES
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["messages"], numbers["effects"], numbers["marks"]) == (0, 400, 400, 800)
    assert numbers["kills"] > 0  # on a fast machine the run may be over before the last one
    assert numbers["duplicates"] > 0
    assert 0 < numbers["longest_wait"] < RUN_LASTS_SECONDS, numbers["longest_wait_cause"]


@pytest.mark.slow
@pytest.mark.parametrize(("deduplication", "marks"), [("dedup-store", 160), ("tokens", 0)])
def test_what_forgets_leaves_nothing(deduplication: str, marks: int, tmp_path: Path) -> None:
    """Not a token, a claim, an open attempt or a blob that nobody announced; the dedup store knows every message."""
    blobs = f"folder://{quote(str(tmp_path))}"
    code, numbers = demo("--kills", "1", "--deduplication", deduplication, "--blobs", blobs, flights=80)
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"], numbers["marks"]) == (0, 80, 1, marks)
    assert numbers["blobs"] >= 8
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deduplication", "marks"),
    [
        pytest.param("history", 160, marks=pytest.mark.repeated),
        pytest.param("dedup-store", 160, marks=pytest.mark.repeated),
        ("tokens", 0),
    ],
)
def test_entities_count_once_where_the_store_keeps_documents(deduplication: str, marks: int) -> None:
    """The flights of a leg of an airline are one entity."""
    store = f"{need(REDIS)}/0"
    code, numbers = demo("--kills", "1", "--deduplication", deduplication, "--store", store, flights=80)
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"], numbers["marks"]) == (0, 80, 1, marks)


@pytest.mark.slow
@pytest.mark.repeated
def test_entities_count_once_in_ravendb(ravendb_server: str) -> None:
    """The same in a database that runs share, each below its own prefix."""
    store = f"{ravendb_server}/onceonly-demo"
    asyncio.run(create(store))
    code, numbers = demo("--kills", "1", "--store", store, flights=80)
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"], numbers["marks"]) == (0, 80, 1, 160)


@pytest.mark.slow
def test_tokens_may_be_elsewhere(tmp_path: Path) -> None:
    """In another database than the store's: there a kill may leave prepared tokens, which are swept."""
    tokens = f"sqlite:///{quote(str(tmp_path))}/tokens-{uuid4().hex}.db"
    code, numbers = demo("--kills", "1", "--deduplication", "tokens", "--tokens", tokens, flights=80)
    assert {name: numbers[name] for name in ZEROS} == dict.fromkeys(ZEROS, 0)
    assert (code, numbers["effects"], numbers["kills"]) == (0, 80, 1)


def test_the_control_run_shows_what_deduplication_prevents() -> None:
    """Without deduplication the copies are handled again."""
    code, numbers = demo("--kills", "1", "--deduplication", "off")
    assert code == 0
    assert numbers["duplicated"] > 0


@pytest.mark.parametrize("flights", ["0", "10001"])
def test_a_number_of_flights_that_the_file_does_not_hold_is_refused(flights: str) -> None:
    """A usage error on standard error, nothing on standard output."""
    done = command("--flights", flights)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--flights" in done.stderr


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--tokens", "sqlite:///other.db"), "--deduplication"),
        (("--deduplication", "tokens", "--dedup-store", "sqlite:///other.db"), "--deduplication"),
        (("--store", "memory://here"), "memory"),
        (("--store", "folder:///tmp"), "folder"),
        (("--blobs", "redis://127.0.0.1/0"), "blobs"),
        (("--documents",), "--documents needs --store"),
        (("--collection", "flights"), "--collection needs --documents"),
    ],
)
def test_places_that_no_run_can_use_are_refused(options: tuple[str, ...], word: str) -> None:
    """A usage error, or what a person has to change."""
    done = command("--flights", "1", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert "Traceback" not in done.stderr
