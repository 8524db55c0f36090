"""The file with the numbers of a process: rows by attributes, sums over processes, and what a kill leaves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.runtime.metrics.catalog import AGE, BATCH_SIZE, CONFLICTS, MESSAGES, POOL
from onceonly.runtime.metrics.series import Numbers, SeriesFile, SharedSeries, series_path

HANDLED = ("shop", "order", "handled")


def test_counters_of_all_processes_add_up(tmp_path: Path) -> None:
    """Row by row, also where only one process has one."""
    with SharedSeries(tmp_path, 2) as shared:
        for index in range(2):
            with SeriesFile(series_path(tmp_path, index)) as file:
                file.instrument(MESSAGES).add(HANDLED, 2)
                file.instrument(MESSAGES).add(("shop", "order", f"only {index}"))
        assert shared.sums() == {
            (MESSAGES, HANDLED): Numbers((4,)),
            (MESSAGES, ("shop", "order", "only 0")): Numbers((1,)),
            (MESSAGES, ("shop", "order", "only 1")): Numbers((1,)),
        }


def test_a_bucket_has_the_values_up_to_its_bound(tmp_path: Path) -> None:
    """As `le` of Prometheus; the last one is for the others."""
    with SeriesFile.create(tmp_path / "one") as file:
        for value in (0.0, 1.0, 1.5, 100.0, 101.0):
            file.instrument(BATCH_SIZE).add(("shop",), value)
        assert dict(file.read()) == {(BATCH_SIZE, ("shop",)): Numbers((2, 1, 0, 0, 0, 0, 1, 1), 203.5)}


def test_a_killed_process_loses_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Not even what it counted just before. A gauge of a process that is gone is 0."""
    SeriesFile.create(tmp_path / "one").close()
    program = (
        "import os, signal, sys; from pathlib import Path; from onceonly.runtime.metrics.catalog import *;"
        "from onceonly.runtime.metrics.series import SeriesFile; file = SeriesFile(Path(sys.argv[1])); file.reset_gauges();"
        "file.instrument(MESSAGES).add(('shop', 'order', 'handled'), 21); file.instrument(AGE).add(('shop', 'order'), 2.0);"
        "file.instrument(POOL).add(('store', 'used'), 7); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, os.fspath(tmp_path / "one")], check=False)
    with SeriesFile(tmp_path / "one") as file:
        rows = dict(file.read())
        assert rows[MESSAGES, HANDLED] == Numbers((42,))
        assert (sum(rows[AGE, ("shop", "order")].counts), rows[AGE, ("shop", "order")].total) == (2, 4.0)
        assert rows[POOL, ("store", "used")] == Numbers((7,))
        file.reset_gauges()
        assert dict(file.read())[POOL, ("store", "used")] == Numbers((0,))


def test_a_row_that_a_kill_left_unfinished_is_written_over(tmp_path: Path) -> None:
    """It is not counted in yet, so readers never see it."""
    with SeriesFile.create(tmp_path / "one") as file:
        file.instrument(MESSAGES).add(HANDLED)
        numbers, _ = file.words
        used = numbers[0]
        for word in range(used // 8, used // 8 + 40):
            numbers[word] = -1
        assert dict(file.read()) == {(MESSAGES, HANDLED): Numbers((1,))}
        file.instrument(CONFLICTS).add(("shop", "unknown"))
        assert dict(file.read()) == {(MESSAGES, HANDLED): Numbers((1,)), (CONFLICTS, ("shop", "unknown")): Numbers((1,))}


def test_a_full_file_counts_no_new_rows(tmp_path: Path) -> None:
    """Those that are there go on."""
    with SeriesFile.create(tmp_path / "one", size=256) as file:
        for number in range(20):
            file.instrument(MESSAGES).add(("shop", f"type {number}", "handled"))
        file.instrument(MESSAGES).add(("shop", "type 0", "handled"))
        rows = dict(file.read())
        assert 0 < len(rows) < 20
        assert rows[MESSAGES, ("shop", "type 0", "handled")] == Numbers((2,))


@pytest.mark.parametrize("name", ["shop", "größe", 'a "quoted" name', "x" * 300])
def test_any_name_can_be_an_attribute(tmp_path: Path, name: str) -> None:
    """Rows have keys of any length."""
    with SeriesFile.create(tmp_path / "one") as file:
        file.instrument(BATCH_SIZE).add((name,), 3)
        file.instrument(MESSAGES).add((name, "t", "handled"), 3)
        assert {row[1][0] for row, _ in file.read()} == {name}
