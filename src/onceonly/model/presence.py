"""What a process that runs an endpoint reports about itself from time to time."""

from collections.abc import Mapping

from msgspec import Struct

REPORT_SECONDS = 10.0
"""Seconds between two reports of a process."""
STALE_SECONDS = 35.0
"""Seconds without a report after which a process counts as gone: three reports are missing."""
ROW_KEPT_SECONDS = 3600.0
"""Seconds without a report after which maintenance deletes the row of a process."""


class ProcessReport(Struct, frozen=True, kw_only=True):
    """One process of one endpoint. `process` is unique, also if a process id is used again.

    `counters` count since the start of this process. `troubles` is why the worker waits just now, empty if it does not. `types`
    are the types of messages that it handles: the first 32 KiB of them, none from an earlier version.
    """

    process: str
    host: str
    pid: int
    version: str
    counters: Mapping[str, int] = {}
    troubles: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ProcessState(Struct, frozen=True, kw_only=True):
    """A process as the store knows it: its last report, and the age of that in seconds, by the store's clock."""

    report: ProcessReport
    age: float

    @property
    def is_stale(self) -> bool:
        """Whether the process has missed several reports: it was killed, it hangs, or it does not reach the store."""
        return self.age > STALE_SECONDS
