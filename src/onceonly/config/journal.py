"""The setting of the message journal: for how long, and how much."""

from datetime import timedelta

from msgspec import Struct

from onceonly.config.deduplication import is_duration
from onceonly.model.errors import SetupError

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=366)
FEWEST, MOST = 1000, 1_000_000_000


class Journal(Struct, frozen=True, kw_only=True):
    """The journal of messages, for the conversation page of the dashboard. Raises SetupError that lists all problems.

    Events are kept for `keep` at least, and for half as long again at most while a worker or `onceonly janitor` runs. They are
    in four tables, of which one is written at a time for half of `keep`. When it has about `rows` rows, no more events are
    written until the next table is due. It is off by default. It needs a SQL store. It contains no bodies, no header values and
    no texts of errors.

    What is handled and sent is recorded in the transaction that handles the message. Retries, duplicates, dead letters and what
    a relay sends are recorded about a second later, so a process that is killed may lose some of them.

    All endpoints of a database share the tables. If they differ, the longest `keep` holds for all. The others log a warning.
    """

    keep: timedelta = timedelta(days=1)
    rows: int = 1_000_000

    def __post_init__(self) -> None:
        if wrong := self.problems():
            raise SetupError("; ".join(wrong))

    def problems(self) -> tuple[str, ...]:
        """List the problems. Empty if there are none."""
        rules = (
            (
                is_duration(self.keep) and SHORTEST <= self.keep <= LONGEST,
                f"keep must be a timedelta from 1 minute to 366 days, not {self.keep!r}",
            ),
            (
                type(self.rows) is int and FEWEST <= self.rows <= MOST,
                f"rows must be a whole number from {FEWEST:,} to {MOST:,}, not {self.rows!r}",
            ),
        )
        return tuple(f"journal: {problem}" for holds, problem in rules if not holds)
