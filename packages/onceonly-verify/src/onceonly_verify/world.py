"""The world as the search sees it: a few small numbers, each naming an immutable part that was seen before."""

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.token import Token

STORE, BROKER, LETTERS, LEDGER, WORKERS = 0, 1, 2, 3, 4
"""Where a state keeps which number; from WORKERS on there is one for each worker, in ascending order."""

SETTLING = frozenset({"ack", "release"})
"""The calls that settle deliveries."""

SPONTANEOUS = ("expiries", "rollbacks", "lapses")
"""The faults that happen to workers between their calls."""

State = tuple[int, ...]
Marks = tuple[PortOperation, ...]
"""Operations done at once, without a call."""
Part = TypeVar("Part", bound=Hashable)


class Numbering(Generic[Part]):
    """Numbers for values: equal values have one number."""

    def __init__(self) -> None:
        self.values: list[Part] = []
        self._numbers: dict[Part, int] = {}

    def number(self, value: Part) -> int:
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
    silences: int = 0
    """How many calls of another service may go unanswered, because it is away."""
    cuts: int = 0
    """How many calls of a process the end of the host's time may interrupt."""
    rollbacks: int = 0
    """How many open units the database may end while their processes are at work, as it ends one that is silent for long."""
    lapses: int = 0
    """How many processes at work may be taken for dead, because their run markers are old."""

    def text(self) -> str:
        words = (
            (self.crashes, "crash", "crashes"),
            (self.expiries, "early lease expiry", "early lease expiries"),
            (self.failures, "failed call", "failed calls"),
            (self.whims, "handler's whim", "handlers' whims"),
            (self.sweeps, "early sweep", "early sweeps"),
            (self.outage, "commit in an outage", "commits in an outage"),
            (self.silences, "call of a service that is away", "calls of a service that is away"),
            (self.cuts, "end of the host's time", "ends of the host's time"),
            (self.rollbacks, "unit ended by the database", "units ended by the database"),
            (self.lapses, "process taken for dead", "processes taken for dead"),
        )
        return ", ".join(count(*word) for word in words if word[0]) or "no faults"


def count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


class Ledger(Struct, frozen=True):
    """What may still go wrong, what is still under way, and how often a message could be counted as failed."""

    left: Bounds
    pending: tuple[tuple[int, PortOperation], ...] = ()
    excuses: tuple[tuple[str, int], ...] = ()
    """How often the handler of each message failed, or an effect of it was refused. Only deaths of processes count besides."""
    overtaken: bool = False
    """Whether a sweeper may be at work beside others."""
    oldest: int = 0
    """When the run began that left the oldest call under way, where time passes; 0 when nothing is under way."""
    left_behind: bool = False
    """Whether a worker ended a batch and neither acked nor released a delivery."""
    unsettled: bool = False
    """Whether a call failed that acknowledges or releases. After that a delivery may be left to the end of its lease."""
    wrong: str = ""
    """What is wrong with a copy or a dead letter of a message, if anything was."""

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

    def failed(self, point: str) -> "Ledger | None":
        """Use a failed call, and note what it was to settle. None if no call may fail any more."""
        spent = self.spend("failures")
        return replace(spent, unsettled=True) if spent and point in SETTLING else spent

    def excuse(self, *names: str) -> "Ledger":
        """Note that one more failure of each of these messages may be counted."""
        known = dict(self.excuses)
        known |= {name: known.get(name, 0) + 1 for name in names}
        return replace(self, excuses=tuple(sorted(known.items()))) if names else self

    def excuses_of(self, name: str) -> int:
        """Return how many failures of a message may be counted."""
        return dict(self.excuses).get(name, 0)

    def checked(self, wrong: str) -> "Ledger":
        """Note what is wrong with a copy, if anything is."""
        return replace(self, wrong=wrong) if wrong and not self.wrong else self

    def later(self, place: int, operation: PortOperation, since: int = 0) -> "Ledger":
        """Put an operation under way, of a run that began at `since`: it is applied at some later moment."""
        oldest = min(self.oldest, since) if self.oldest else since
        return replace(self, pending=(*self.pending, (place, operation)), oldest=oldest)

    def settled(self, pending: tuple[tuple[int, PortOperation], ...]) -> "Ledger":
        """Return the ledger with only these operations under way."""
        return replace(self, pending=pending, oldest=self.oldest if pending else 0)


class Label(NamedTuple):
    """What happened in one transition; `form` is the kind of it, which must occur somewhere for the check to count."""

    point: str
    about: str
    form: str

    @property
    def kind(self) -> str:
        return f"{self.point}: {self.form}"


class BrokerPart(Struct, frozen=True):
    """The broker, and all that ever reached a sink, which takes every message at once: (id, body, sink), and the tokens."""

    broker: Any
    sunk: frozenset[tuple[str, str, str]] = frozenset()
    tokens: frozenset[Token] = frozenset()


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
