"""How the benchmarks count, compare and tell: the protocols' readers, paired ratios, the page."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.counting import AMQPEars, PostgreSQLEars
from benchmarks.machine import Machine, describe_build
from benchmarks.measuring import RunSample
from benchmarks.page import page
from benchmarks.programs import C_LIBRARIES, GRAPHILE_WORKER, is_installed
from benchmarks.results import (
    P99_RATIOS,
    RATIOS,
    BacklogMemory,
    Contention,
    GrowthPoint,
    Latency,
    Results,
    RowResult,
    fill_ratios,
    percentile,
)
from benchmarks.rows import BY_NAME, ROWS
from benchmarks.worker import find


def said(kind: bytes, body: bytes = b"") -> bytes:
    """Write a message of PostgreSQL's protocol."""
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def frame(class_id: int, method: int, rest: bytes = b"", kind: int = 1) -> bytes:
    """Write a frame of AMQP."""
    payload = class_id.to_bytes(2, "big") + method.to_bytes(2, "big") + rest
    return bytes([kind]) + (1).to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


def measured(title: str, *rates: float) -> RowResult:
    """Make a row with these rounds."""
    samples = [RunSample(messages=10, rate=rate, cpu=1.0, peak=50.0, wal=100.0) for rate in rates]
    return RowResult(title=title, backend=BY_NAME["onceonly_orm"].backend, concurrency=1, samples=samples)


@pytest.fixture(name="results")
def results_of_two_rows() -> Results:
    """Return what a run of two rows and three rounds might have found."""
    results = Results(
        date="2026-01-01",
        mode="quick",
        rounds=3,
        machine=Machine(cores=2, memory_gib=8, system="x", load_before=0, interpreter="CPython 3", built="built plainly"),
        versions={"python": "3"},
    )
    results.rows = {"onceonly_orm": measured("a", 100, 900, 200), "at_least_once_orm": measured("b", 50, 100, 50)}
    results.skipped = {"dbos": "not installed: dbos"}
    results.latency = {
        "onceonly_orm": Latency(rate=200, messages=10, p50=1, p95=2, p99=3, p99_rounds=[2, 3, 8]),
        "outbox_orm": Latency(rate=200, messages=10, p50=1, p95=2, p99=4, p99_rounds=[4, 4, 4]),
    }
    results.backlog = {"onceonly_orm": BacklogMemory(messages=100_000, peak=70.4)}
    results.growth = [GrowthPoint(axis="processes", value=2, row="onceonly_orm", rates=[1, 2, 3])]
    results.contention = [
        Contention(processes=8, row="onceonly_orm", messages=10, statements=0.07, trips=0.08, waiting=0.125, deadlocks=3)
    ]
    return results


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_statements_and_round_trips_are_counted_however_the_bytes_are_cut(size: int) -> None:
    """An Execute and a simple Query are statements; a Sync, a Flush and a simple Query are round trips."""
    counted = Counter[str]()
    ears = PostgreSQLEars(counted)
    startup = (8 + 4).to_bytes(4, "big") + b"\x00\x03\x00\x00user"
    stream = (
        startup
        + said(b"P", b"Q" * 9)
        + said(b"H")
        + said(b"B", b"E")
        + said(b"E", b"SSS")
        + said(b"S")
        + said(b"Q", b"BEGIN\0")
    )
    for start in range(0, len(stream), size):
        ears.client(stream[start : start + size])
    assert counted == {"statements": 2, "trips": 3}


def test_encryption_is_refused_by_the_proxy_itself() -> None:
    """What is encrypted could not be counted."""
    ears = PostgreSQLEars(Counter())
    assert ears.answer(b"\x00\x00\x00\x08\x04\xd2\x16\x2f") == b"N"
    assert ears.answer(b"\x00\x00\x00\x0c\x00\x03\x00\x00user") is None


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_publishes_confirms_and_acks_are_counted_however_the_bytes_are_cut(size: int) -> None:
    """A body may look like any frame; only method frames count, and an ack of the server is a confirm."""
    counted = Counter[str]()
    ears = AMQPEars(counted)
    stream = b"AMQP\x00\x00\x09\x01" + frame(60, 40, b"in") + frame(60, 40, frame(60, 80), kind=3) + frame(60, 80)
    for start in range(0, len(stream), size):
        ears.client(stream[start : start + size])
    ears.server(frame(60, 60) + frame(60, 80))
    assert counted == {"publishes": 1, "acks": 1, "confirms": 1}


def test_a_ratio_is_the_median_of_the_ratios_of_each_round(results: Results) -> None:
    """Not the ratio of the medians, which would be four."""
    fill_ratios(results)
    assert results.ratios["orm_vs_at_least_once"] == 4.0
    assert (results.ratio_spreads["orm_vs_at_least_once"].low, results.ratio_spreads["orm_vs_at_least_once"].high) == (2.0, 9.0)


def test_a_ratio_of_latencies_is_of_all_rounds_together(results: Results) -> None:
    """Its spread is that of the rounds."""
    fill_ratios(results)
    found = results.ratio_spreads["orm_p99_vs_hand_outbox"]
    assert (found.median, found.low, found.high) == (0.75, 0.5, 2.0)


@pytest.mark.parametrize(
    ("arguments", "described"),
    [
        ("'--prefix=/x' '--enable-shared'", "configured without --enable-optimizations (PGO), without --with-lto"),
        ("'--enable-optimizations' '--with-lto=full'", "configured with --enable-optimizations (PGO), with --with-lto"),
        ("'--with-lto=no' '--enable-optimizations'", "configured with --enable-optimizations (PGO), without --with-lto"),
        (None, "build options unknown"),
    ],
)
def test_the_interpreter_is_named_with_its_optimizations(arguments: str | None, described: str) -> None:
    """Where the interpreter does not record how it was configured, nothing is claimed."""
    assert describe_build(arguments) == described


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.95, 95), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(share: float, value: int) -> None:
    """Of one to a hundred it is the number itself."""
    assert percentile(range(1, 101), share) == value


def test_the_page_tells_everything_that_was_found(results: Results) -> None:
    """Also what was not measured; and the results survive being written as JSON."""
    fill_ratios(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    fill_ratios(results)
    text = page(results)
    figures = ("200 (100 to 900)", "orm_vs_at_least_once | 4.00", "| 3.0 |", "| 100,000 | 70 |", "| processes | 2 |")
    latencies = ("CPython 3, built plainly", "orm_p99_vs_hand_outbox | 0.75", "| 3.0 | 2.0, 3.0, 8.0 |")
    for expected in (*figures, *latencies, "0.125 | 3 |", "Not measured: dbos"):
        assert expected in text
    assert all(row.about in text for row in ROWS)


def test_every_ratio_is_between_rows_that_there_are() -> None:
    """A name that nobody has would silently be left out."""
    assert {name for pair in (*RATIOS.values(), *P99_RATIOS.values()) for name in pair} - BY_NAME.keys() == set()


@pytest.fixture(name="no_programs")
def path_without_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Search for programs in an empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    is_installed.cache_clear()
    yield
    is_installed.cache_clear()


@pytest.mark.usefixtures("no_programs")
def test_rows_in_other_languages_name_what_is_missing() -> None:
    """Without a compiler and without Node.js they are left out."""
    assert BY_NAME["c_floor"].missing() == (C_LIBRARIES,)
    assert BY_NAME["graphile_worker"].missing() == (GRAPHILE_WORKER,)


def test_every_row_that_can_run_here_names_a_function() -> None:
    """Rows of libraries that are not installed cannot be looked at."""
    assert all(callable(find(row.work)) for row in ROWS if not row.missing())
