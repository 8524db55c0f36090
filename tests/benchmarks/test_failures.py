"""A row that fails is taken out of the table, loudly, and the other rows go on."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.benchmark import Benchmark, BenchmarkContext
from benchmarks.crew import RunFailed, crew
from benchmarks.job import WorkerJob
from benchmarks.modes import TINY
from benchmarks.rows import BY_NAME, SQLITE, BenchmarkRow
from benchmarks.stages import Totals
from benchmarks.stages.sqlite import SQLiteBackend

OWN = BY_NAME["onceonly_sqlite"]
LOST = msgspec.structs.replace(OWN, name="huey_sqlite")  # another row of the same library


class ForgetfulStage(SQLiteBackend):
    """Finds one row less than there is, for one of the rows."""

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Forget one."""
        found = await super().totals(row, tag)
        return msgspec.structs.replace(found, rows=found.rows - 1) if row is LOST else found


class NoServer:
    """Stands where the servers are, which these rows do not use."""

    async def version(self) -> str:
        """Name none."""
        return "none"


@pytest.mark.slow
async def test_a_row_with_wrong_totals_is_taken_out_and_the_others_go_on(tmp_path: Path) -> None:
    """No number of it is shown, and what was wrong is said at once and in the results."""
    nowhere: Any = NoServer()
    said: list[str] = []
    place = BenchmarkContext(database=nowhere, rabbitmq=nowhere, broker="none", stages={SQLITE: ForgetfulStage(tmp_path)})
    results = await Benchmark(place, [LOST, OWN], TINY, said.append).measure()
    assert (list(results.rows), list(results.failed)) == ([OWN.name], [LOST.name])
    assert "wrong totals" in results.failed[LOST.name]
    assert any(line.startswith("!!! FAILED: huey_sqlite") for line in said)


async def test_a_worker_that_dies_fails_its_run_with_its_own_words() -> None:
    """The end of its standard error is in the message, and no process is left."""
    async with crew(WorkerJob(work="batches:no_such_function")) as workers:
        with pytest.raises(RunFailed, match="no_such_function"):
            await workers.ready()
