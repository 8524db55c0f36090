"""The board: counters that outlive the process that counted."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.runtime.board import HANDLED, KNOWN, TICK, Board, Column


def test_rows_are_independent_and_everyone_who_opens_the_file_sees_them(tmp_path: Path) -> None:
    """Each child has its own numbers; a second mapping shows them at once."""
    with Board.create(tmp_path / "board", 3) as written, Board.open(str(tmp_path / "board")) as read:
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
    with Board.create(tmp_path / "board", 1) as board, pytest.raises(IndexError, match="1 rows"):
        board.row(1)


def test_every_column_fits_its_row() -> None:
    """A row is one cache line of eight numbers."""
    assert sorted(Column) == list(range(len(Column)))
    assert len(Column) <= 8


def test_what_was_counted_survives_sigkill(tmp_path: Path) -> None:
    """The process kills itself right after counting, without closing anything."""
    Board.create(tmp_path / "board", 1).close()
    program = (
        "import os, signal, sys; from onceonly.runtime.board import *; "
        "Board.open(sys.argv[1]).row(0).add(HANDLED, 42); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "board")], check=False)
    with Board.open(tmp_path / "board") as board:
        assert (ended.returncode, board.row(0).get(HANDLED)) == (-signal.SIGKILL, 42)
    assert (tmp_path / "board").stat().st_size == 64
