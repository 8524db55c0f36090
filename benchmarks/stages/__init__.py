"""What stands around a worker: fills its queue, sees what comes out, and counts what is left."""

from typing import Any, Protocol

from msgspec import Struct

from benchmarks.job import WorkerJob
from benchmarks.rows import BenchmarkRow


class Totals(Struct, frozen=True, kw_only=True):
    """What a run left: rows written, messages published, and how many of each are distinct."""

    rows: int
    distinct_rows: int
    messages: int
    distinct_messages: int


class RowDatabase(Protocol):
    """Where the rows of the backends with a broker are."""

    url: str

    async def prepare(self, module: str) -> None:
        """Make the tables of a row's package, once."""

    async def empty(self) -> None:
        """Delete what earlier runs left in any table."""

    async def written(self, tag: str) -> list[str]:
        """Read the orders that a run wrote."""

    async def wal(self) -> int:
        """Read how many bytes the server has written to its log."""

    async def commits(self) -> int:
        """Read how many transactions were committed."""


class Backend(Protocol):
    """One backend, of this benchmark's own."""

    async def prepare(self, row: BenchmarkRow) -> None:
        """Make what this row needs, once."""

    async def fill(self, row: BenchmarkRow, order_ids: list[str], *, keep: bool = False) -> None:
        """Empty the queues, and the tables unless told to `keep` them; put a message for each order into the input queue."""

    async def arrived(self, row: BenchmarkRow) -> int:
        """Count the messages in the output queue."""

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Count what the run with this tag left; empties the output queue."""

    async def wal(self) -> int:
        """Read how much write-ahead log the database server has written, in bytes; 0 without a server."""

    async def commits(self) -> int:
        """Read how many transactions were committed in the database, once all workers are gone; 0 without a server.

        Those of `arrived` are left out.
        """

    def job(self, row: BenchmarkRow, concurrency: int) -> WorkerJob:
        """Say where a worker of this row works."""


def count(rows: list[Any], messages: list[Any]) -> Totals:
    """Count, and count what is distinct."""
    return Totals(rows=len(rows), distinct_rows=len(set(rows)), messages=len(messages), distinct_messages=len(set(messages)))
