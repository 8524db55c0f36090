"""the shared counters: counters that outlive the process that counted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.runtime.processes.counters import (
    BYTES,
    DEATHS,
    FIELDS,
    HANDLED,
    KNOWN,
    REMEMBERED_MS,
    SINCE,
    TICK,
    WIDTH,
    Column,
    SharedCounters,
)


def test_rows_are_independent_and_everyone_who_opens_the_file_sees_them(tmp_path: Path) -> None:
    """Each child has its own numbers; a second mapping shows them at once."""
    with SharedCounters.create(tmp_path / "board", 3) as written, SharedCounters.open(str(tmp_path / "board")) as read:
        written.row(0).add(HANDLED, 5)
        written.row(2).add(HANDLED)
        written.row(2).set(KNOWN, -1)
        assert read.rows == 3
        assert [[read.row(i).get(column) for column in (HANDLED, KNOWN, TICK)] for i in range(3)] == [
            [5, 0, 0],
            [0, 0, 0],
            [1, -1, 0],
        ]
        assert read.total(HANDLED) == 6


def test_a_row_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Counting beyond the end would be counting for somebody else."""
    with SharedCounters.create(tmp_path / "board", 1) as counters, pytest.raises(IndexError, match="1 rows"):
        counters.row(1)


def test_every_column_fits_its_row() -> None:
    """A row is three cache lines of eight numbers each."""
    assert sorted(Column) == list(range(len(Column)))
    assert len(Column) <= WIDTH


def test_a_death_names_the_one_handler_that_was_running(tmp_path: Path) -> None:
    """Its message's key and attempt count, in whatever process, until it is removed."""
    with SharedCounters.create(tmp_path / "board", 2) as written, SharedCounters.open(tmp_path / "board") as read:
        row = written.row(0)
        row.enter(b"a" * 16, 3)
        row.enter(b"b" * 16, 5)
        row.leave(b"a" * 16, 3)
        assert read.row(0).died(seen=True)
        assert read.row(1).death_of(b"a" * 16) is None
        assert read.row(1).death_of(b"b" * 16) == 5
        read.row(1).remove_deaths(b"b" * 16, 4)
        assert read.row(1).death_of(b"b" * 16) == 5
        read.row(1).remove_deaths(b"b" * 16, 5)
        assert read.row(1).death_of(b"b" * 16) is None


def test_no_death_is_counted_for_one_of_several_handlers_or_for_none(tmp_path: Path) -> None:
    """Two were running: either may have ended the process. None was: the message was only held."""
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        row.enter(b"a" * 16, 0)
        row.enter(b"b" * 16, 0)
        assert not row.died(seen=True)
        assert not row.died(seen=True)
        row.enter(b"a" * 16, 0)
        assert not row.died(seen=False)
        assert (row.death_of(b"a" * 16), row.death_of(b"b" * 16)) == (None, None)


def test_a_handler_that_does_not_end_is_named_whatever_else_was_running(tmp_path: Path) -> None:
    """Its process was killed because of it."""
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        for key in (b"a" * 16, b"b" * 16):
            row.enter(key, 1)
        row.is_stuck(b"b" * 16, 1)
        assert row.died(seen=True)
        assert (row.death_of(b"a" * 16), row.death_of(b"b" * 16)) == (None, 1)


def test_old_deaths_are_overwritten_and_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of a fixed size; evidence whose message did not come again in time says nothing about a later run."""
    now = 1_000_000_000
    monkeypatch.setattr("onceonly.runtime.processes.counters._now", lambda: now)
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        for number in range(DEATHS + 1):
            now += 1
            row.enter(number.to_bytes(16), 0)
            assert row.died(seen=True)
        assert row.death_of((0).to_bytes(16)) is None
        assert row.death_of((1).to_bytes(16)) == 0
        now += REMEMBERED_MS
        assert row.death_of((2).to_bytes(16)) is None


def test_recent_deaths_explain_what_else_was_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A death of one handler or none does; one of several handlers does not, and neither do deaths of long ago."""
    now = 1_000_000_000
    monkeypatch.setattr("onceonly.runtime.processes.counters._now", lambda: now)
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row, other = counters.row(0), counters.row(1)
        row.died(seen=False)
        assert not other.explains()
        row.died(seen=True)
        assert other.explains()
        now += REMEMBERED_MS
        assert not other.explains()
        row.enter(b"a" * 16, 0)
        row.died(seen=True)
        assert other.explains()
        row.enter(b"a" * 16, 0)
        row.enter(b"b" * 16, 0)
        row.died(seen=True)
        assert not other.explains()
        now += REMEMBERED_MS
        row.died(seen=True)
        assert other.explains()


def test_a_kill_by_the_supervisor_explains_the_death_and_blames_nobody(tmp_path: Path) -> None:
    """However many handlers were running. What was held is innocent."""
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row, other = counters.row(0), counters.row(1)
        for keys in ([b"a" * 16], [b"a" * 16, b"b" * 16]):
            for key in keys:
                row.enter(key, 0)
            assert not row.died(seen=True, blames=False)
            assert other.explains()
        assert (other.death_of(b"a" * 16), other.death_of(b"b" * 16)) == (None, None)
        assert other.killed_run_of(b"a" * 16) is None


def test_a_handler_that_does_not_end_is_blamed_whoever_kills_its_process(tmp_path: Path) -> None:
    """It is the reason why its process does not stop in time."""
    with SharedCounters.create(tmp_path / "board", 1) as counters:
        row = counters.row(0)
        row.enter(b"a" * 16, 1)
        row.is_stuck(b"a" * 16, 1)
        assert row.died(seen=True, blames=False)
        assert row.death_of(b"a" * 16) == 1


def test_a_run_alone_that_the_supervisor_killed_is_named_and_not_counted(tmp_path: Path) -> None:
    """Its record is removed with that. Neither kind of death is removed with the other."""
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row, other = counters.row(0), counters.row(1)
        for attempts in (0, 3):
            row.enter(b"a" * 16, attempts)
            row.set(Column.ALONE, 1)
            assert not row.died(seen=True, blames=False)
            assert row.get(Column.ALONE) == 0
        assert other.death_of(b"a" * 16) is None
        other.remove_deaths(b"a" * 16, 3)
        other.remove_killed_runs(b"a" * 16, 2)
        assert other.killed_run_of(b"a" * 16) == 3
        row.enter(b"a" * 16, 1)
        assert row.died(seen=True)
        other.remove_killed_runs(b"a" * 16, 3)
        assert other.killed_run_of(b"a" * 16) is None
        assert other.death_of(b"a" * 16) == 1


def test_a_death_is_recorded_before_the_marks_are_cleared(tmp_path: Path) -> None:
    """A process that is about to be killed still has them."""
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row = counters.row(0)
        row.enter(b"a" * 16, 2)
        assert row.record_death()
        assert (row.get(Column.RUNNING), counters.row(1).death_of(b"a" * 16)) == (1, 2)
        row.clear_marks()
        assert row.get(Column.RUNNING) == 0


def test_a_death_that_is_not_recorded_yet_is_seen_by_others(tmp_path: Path) -> None:
    """A broker delivers the messages again at once, perhaps before the supervisor has seen the end of the process."""
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        counters.row(1).occupy()
        assert not counters.row(1).awaits_record()
        program = (
            "import sys; from onceonly.runtime.processes.counters import *; "
            "counters = SharedCounters.open(Path(sys.argv[1])); counters.row(0).occupy(); "
            "print('up', flush=True); sys.stdin.read()"
        )
        words = [sys.executable, "-c", program, str(tmp_path / "board")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert not counters.row(1).awaits_record()
            other.kill()
            other.wait()
        assert counters.row(1).awaits_record()
        counters.row(0).died(seen=True)
        assert not counters.row(1).awaits_record()
        assert counters.row(1).get(Column.ALIVE) == 1


def test_what_was_counted_survives_sigkill(tmp_path: Path) -> None:
    """The process kills itself right after counting, without closing anything."""
    SharedCounters.create(tmp_path / "board", 1).close()
    program = (
        "import os, signal, sys; from onceonly.runtime.processes.counters import *; "
        "SharedCounters.open(sys.argv[1]).row(0).add(HANDLED, 42); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "board")], check=False)
    with SharedCounters.open(tmp_path / "board") as counters:
        assert (ended.returncode, counters.row(0).get(HANDLED)) == (-signal.SIGKILL, 42)
    assert (tmp_path / "board").stat().st_size == (WIDTH + DEATHS * FIELDS + SINCE) * BYTES
