"""The world as the search sees it: a few small numbers, each naming an immutable part that was seen before."""

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation

STORE, BROKER, LETTERS, LEDGER, WORKERS = 0, 1, 2, 3, 4
"""Where a state keeps which number; from WORKERS on there is one for each worker, in ascending order."""

State = tuple[int, ...]
Marks = tuple[PortOperation, ...]
"""Operations done at once, without a call."""
Part = TypeVar("Part", bound=Hashable)


class Numbering(Generic[Part]):
    """Numbers for values: equal values have one number."""

    def __init__(self) -> None:
        """Begin with none."""
        self.values: list[Part] = []
        self._numbers: dict[Part, int] = {}

    def number(self, value: Part) -> int:
        """Give the value's number."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Bounds(Struct, frozen=True, kw_only=True):
    """How often each thing may still go wrong in one history."""

    crashes: int = 0
    expiries: int = 0
    failures: int = 0
    whims: int = 0
    sweeps: int = 0
    """How often a sweeper may wake while others are at work; when nothing else is left to do it always may."""
    outage: int = 0
    """How many commits in a row may fail while no other unit is committed; the first that is committed ends the outage."""

    def text(self) -> str:
        """Say it in words."""
        words = (
            (self.crashes, "crash", "crashes"),
            (self.expiries, "early lease expiry", "early lease expiries"),
            (self.failures, "failed call", "failed calls"),
            (self.whims, "handler's whim", "handlers' whims"),
            (self.sweeps, "early sweep", "early sweeps"),
            (self.outage, "commit in an outage", "commits in an outage"),
        )
        return ", ".join(count(*word) for word in words if word[0]) or "no faults"


def count(number: int, one: str, many: str) -> str:
    """Write a number with its noun."""
    return f"{number} {one if number == 1 else many}"


class Ledger(Struct, frozen=True):
    """What may still go wrong, what is still under way, and how often a message could be counted as failed."""

    left: Bounds
    pending: tuple[tuple[int, PortOperation], ...] = ()
    excuses: int = 0
    """Handlers that failed, and effects refused: no more is ever counted, but the deaths of processes."""
    overtaken: bool = False
    """Whether a sweeper may be at work beside others."""
    left_behind: bool = False
    """Whether a worker ended a batch, with nothing having failed, and neither acked nor released a delivery."""

    def spend(self, name: str) -> "Ledger | None":
        """Use one of a bound, or give None when none is left."""
        left: int = getattr(self.left, name)
        if not left:
            return None
        return replace(self, left=replace(self.left, **{name: left - 1}))

    def applied(self, point: str) -> "Ledger":
        """Note that a call was applied: a unit that is committed ends the outage."""
        if point != "commit" or not self.left.outage:
            return self
        return replace(self, left=replace(self.left, outage=0))

    def excuse(self) -> "Ledger":
        """Note that one more failure may be counted."""
        return replace(self, excuses=self.excuses + 1)

    def later(self, place: int, operation: PortOperation) -> "Ledger":
        """Put an operation under way: it is applied at some later moment."""
        return replace(self, pending=(*self.pending, (place, operation)))


class Label(NamedTuple):
    """What happened in one transition; `form` is the kind of it, which must occur somewhere for the check to count."""

    point: str
    about: str
    form: str

    @property
    def kind(self) -> str:
        """Name the kind of transition."""
        return f"{self.point}: {self.form}"


class BrokerPart(Struct, frozen=True):
    """The broker, and all that ever reached the sink, which takes every message at once: (id, body), and the tokens."""

    broker: Any
    sunk: frozenset[tuple[str, str]] = frozenset()
    tokens: frozenset[str] = frozenset()


class Move(NamedTuple):
    """What one worker's call, or one event, changes. `part` replaces the number at `place`, `worker` that of the worker."""

    label: Label
    place: int
    part: int
    ledger: int
    worker: int
    marks: Marks


class WorldChange(NamedTuple):
    """The world after a call, before its worker goes on."""

    place: int
    part: int
    ledger: Ledger
