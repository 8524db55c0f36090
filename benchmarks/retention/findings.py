"""What was found, and what it was meant to be."""

from collections.abc import Sequence

from msgspec import Struct, field

from benchmarks.machine import Machine
from benchmarks.results import Spread, spread

LARGEST_CLAIM, LARGEST_WAL = 95, 240
LEAST_OVER_CLASSIC, LEAST_OF_EMPTY, LEAST_BESIDE, LEAST_WITH_LABEL = 3.0, 0.85, 0.95, 0.95
LONGEST_ROTATION = 0.2  # seconds


class Meant(Struct, kw_only=True):
    """One promise: what was seen, and the limit that it was held to."""

    what: str
    seen: float
    limit: float
    least: bool = False
    """Whether the limit is the least that is good; else it is the most."""

    @property
    def is_kept(self) -> bool:
        """Tell whether it was reached."""
        return self.seen >= self.limit if self.least else self.seen <= self.limit


class Sizes(Struct, kw_only=True):
    """Bytes for each claim, with all indexes."""

    in_order: float
    shuffled: float | None = None
    """The same when the claims of ten minutes come in any order."""
    classic: float


class Rate(Struct, kw_only=True):
    """Claims a second in batches, and the log that they write, each round by itself."""

    claims: list[float] = []
    wal: list[float] = []
    """Bytes of the write-ahead log for each claim."""


class Emptying(Struct, kw_only=True):
    """Forgetting a great many claims while others claim."""

    seconds: float
    undisturbed: float
    beside: float
    """Claims a second from the moment it began until it had ended, and for a second at least."""
    longest: float
    """Seconds that the slowest batch took meanwhile."""
    dead_rows: int | None = None

    @property
    def ratio(self) -> float:
        """Divide the rate during the work by the rate before and after it."""
        return self.beside / self.undisturbed


class DatabaseFindings(Struct, kw_only=True):
    """What was found in one database. Rates are the library's table when full and empty, and a classic one when full."""

    claims: int
    batch: int
    sizes: Sizes
    full: Rate
    empty: Rate
    classic: Rate
    classic_empty: Rate
    bare: Rate = field(default_factory=Rate)
    """The same as `empty`, without the label."""
    emptied: list[Emptying] = []
    deleted: list[Emptying] = []
    control: list[Emptying] = []
    """The same measurement without any work, once before each rotation: the rate of claims drifts without a rotation too."""


class RetentionFindings(Struct, kw_only=True):
    """One run."""

    date: str
    machine: Machine
    versions: dict[str, str]
    seconds: float
    databases: dict[str, DatabaseFindings]
    meant: list[Meant] = []


def paired(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Divide round by round."""
    return spread([first / second for first, second in zip(over, under, strict=True)])


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return spread(values).median


def promises(found: DatabaseFindings) -> list[Meant]:
    """Hold what was found in PostgreSQL to what it was meant to be."""
    rotating = middle([each.seconds for each in found.emptied])
    beside = paired([each.ratio for each in found.emptied], [each.ratio for each in found.control]).median
    dead = max(each.dead_rows or 0 for each in found.emptied)
    largest = max(found.sizes.in_order, found.sizes.shuffled or 0)
    full, empty = found.full.claims, found.empty.claims
    return [
        Meant(what="bytes a claim, with index and fingerprint", seen=largest, limit=LARGEST_CLAIM),
        Meant(what="bytes of log a claim, when full", seen=middle(found.full.wal), limit=LARGEST_WAL),
        Meant(
            what="rate over the classic table's, both full",
            seen=paired(full, found.classic.claims).median,
            limit=LEAST_OVER_CLASSIC,
            least=True,
        ),
        Meant(what="rate when full over its own when empty", seen=paired(full, empty).median, limit=LEAST_OF_EMPTY, least=True),
        Meant(
            what="rate with the label over without",
            seen=paired(empty, found.bare.claims).median,
            limit=LEAST_WITH_LABEL,
            least=True,
        ),
        Meant(what="seconds to rotate a bucket", seen=rotating, limit=LONGEST_ROTATION),
        Meant(what="rate during a rotation over the rate without one", seen=beside, limit=LEAST_BESIDE, least=True),
        Meant(what="dead rows afterwards", seen=dead, limit=0),
    ]
