"""SQLite alone: files in a folder of the benchmark's own, new ones for each run."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.job import WorkerJob
from benchmarks.rows import BenchmarkRow
from benchmarks.rows.onceonly import ARRIVED, OUT, fill, sqlite_urls
from benchmarks.stages import Totals, count
from benchmarks.worker import find

_CREATE = "create table baseline_order (id integer not null primary key, order_id varchar not null)"
_OWN_IDS = f"select body from onceonly_messages where queue = '{OUT}'"  # noqa: S608 - a constant
_HUEY = "select count(*) from task where queue = 'out'"


class SQLiteBackend:
    """Two files: the rows, and the queue."""

    def __init__(self, folder: Path) -> None:
        """Work in this folder."""
        self._folder = folder

    async def prepare(self, row: BenchmarkRow) -> None:
        """Nothing: every run makes its files."""

    async def fill(self, row: BenchmarkRow, order_ids: list[str], *, keep: bool = False) -> None:
        """Delete the files, make new ones, and enqueue a message for each order."""
        for file in self._folder.iterdir():
            file.unlink()
        with closing(sqlite3.connect(self._folder / "shop.db")) as connection:
            connection.execute("pragma journal_mode=wal")
            connection.execute(_CREATE)
        if row.is_own:
            await fill(sqlite_urls(str(self._folder))[1], order_ids)
        else:
            await find(f"{row.module}:fill")(str(self._folder), order_ids)

    async def arrived(self, row: BenchmarkRow) -> int:
        """Count what was enqueued for the next."""
        return int(self._read("queue.db", ARRIVED if row.is_own else _HUEY)[0][0])

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Compare the rows with what was enqueued for the next."""
        rows = self._read("shop.db", "select order_id from baseline_order")
        if row.is_own:
            return count(rows, self._read("queue.db", _OWN_IDS))
        return count(rows, await find(f"{row.module}:arrived_ids")(str(self._folder)))

    async def wal(self) -> int:
        """There is no server."""
        return 0

    async def commits(self) -> int:
        """There is no server."""
        return 0

    def job(self, row: BenchmarkRow, concurrency: int) -> WorkerJob:
        """Name the folder."""
        return WorkerJob(work=row.work, folder=str(self._folder), concurrency=concurrency)

    def _read(self, file: str, query: str) -> list[Any]:
        with closing(sqlite3.connect(self._folder / file, timeout=30)) as connection:
            return connection.execute(query).fetchall()
