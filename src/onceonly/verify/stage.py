"""The world of one history, played forwards: no search, no memory of earlier states, no reductions.

It applies the memory adapters' functions as they are, and lists what may happen next in the words of a counterexample.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.drivers.memory import Operation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.record import Answer
from onceonly.verify.checks import Check
from onceonly.verify.environment import Environment
from onceonly.verify.explorer import Step
from onceonly.verify.faults import APPLIED, Form, do, failures, interrupted, successes
from onceonly.verify.forms import drained, roll_back
from onceonly.verify.programs import Programs, shipped
from onceonly.verify.wording import about, delivery_text, receipt_text
from onceonly.verify.workload import ENDPOINT, End
from onceonly.verify.world import BROKER, LEDGER, STORE, Known, Ledger, Scale, place_of

WORLD = -1
"""Who does what no worker does: leases end, late calls land."""
BLAMED = frozenset({End.FAILS, End.REFUSED, End.KILLS})

Ends = tuple[tuple[str, End], ...]


class OutOfBounds(OnceOnlyError):
    """More goes wrong than the check's bounds allow."""


class Opening:
    """How histories of one check begin; made once for many."""

    def __init__(self, check: Check, programs: Programs | None = None) -> None:
        """Lay out the check's world, for the shipping code unless other programs are given."""
        self.check = check
        self.programs = programs or shipped()
        scale = Scale(check.workers, check.batch)
        environment = Environment(check.workload, check.bounds, programs=self.programs, scale=scale)
        numbers = zip(environment.parts, environment.initial, strict=False)
        self.parts = tuple(known.values[number] for known, number in numbers)
        self.lands_unseen = environment.lands_unseen


class Option(NamedTuple):
    """One thing that may happen next: to a worker's call, to what it receives (`subject` is a batch), or to the world."""

    who: int
    point: str
    subject: Any
    place: int
    form: Form
    spends: str = ""
    dies: bool = False
    pending: int = -1

    @property
    def outcome(self) -> str:
        """Say what comes of it."""
        return f"lands now, {self.form.form}" if self.pending >= 0 else self.form.form

    def step(self, ends: Ends = ()) -> Step:
        """Put it in a counterexample's words, with how the handlers that ran ended."""
        who = "the world" if self.who == WORLD else f"worker {chr(ord('A') + self.who)}"
        said = f"{self.point} {self._about()}".strip()
        said += "".join(f"; the handler of {name} {end.value}" for name, end in ends)
        return Step(who, said, self.outcome)

    def _about(self) -> str:
        if isinstance(self.subject, Operation):
            return about(self.subject)
        if isinstance(self.subject, tuple):
            return ", ".join(delivery_text(delivery) for delivery in self.subject)
        return f"of {receipt_text(self.subject)}"


class Versions(Known[Any]):
    """A part of the world, in the versions it has had: the number of the latest is the highest."""

    def number(self, value: Any) -> int:
        """Add a version."""
        self.values.append(value)
        return len(self.values) - 1


class Stage:
    """The parts of the world as they are now."""

    def __init__(self, opening: Opening) -> None:
        """Begin as the check begins."""
        self.parts: tuple[Versions, ...] = tuple(Versions() for _ in opening.parts)
        for versions, part in zip(self.parts, opening.parts, strict=True):
            versions.number(part)
        self._opening = opening
        self._check = opening.check
        self._transports = opening.programs.transports

    @property
    def ledger(self) -> Ledger:
        """Give what may still go wrong, and what is under way."""
        ledger: Ledger = self.parts[LEDGER].values[-1]
        return ledger

    @property
    def entries(self) -> tuple[Any, ...]:
        """Give what is in the broker's queues."""
        entries: tuple[Any, ...] = self.part(BROKER).entries
        return entries

    def part(self, place: int) -> Any:
        """Give a part as the adapters see it."""
        part = self.parts[place].values[-1]
        return part.broker if place == BROKER else part

    def put(self, place: int, part: Any) -> None:
        """Change a part."""
        before = self.parts[place].values[-1]
        after = drained(before, part) if place == BROKER else part
        if after is not before:
            self.parts[place].number(after)

    # What may happen.

    def receiving(self, who: int, chosen: Sequence[Any], *, lost: bool = False) -> Option:
        """Let a worker take these waiting entries; with `lost`, the answer never reaches it."""
        world = self.part(BROKER)
        lease = self._transports.Lease(self._transports.NEVER - 1, self._transports.NEVER)
        first = replace(world, entries=(*chosen, *(entry for entry in world.entries if entry not in chosen)))
        after, batch = self._transports.receive(first, ENDPOINT, len(chosen), lease)
        form = Form("answer lost", after, None) if lost else Form(APPLIED, after, batch)
        return Option(who, "receive", batch, BROKER, form, "failures" if lost else "")

    def arrivals(self, who: int, *, lost: bool = False) -> Iterator[Option]:
        """Let an idle worker take any deliveries in any number; with `lost`, the answer never reaches it."""
        free = [entry for entry in self.entries if not entry.held_until]
        for chosen in chain.from_iterable(combinations(free, size) for size in range(1, self._check.batch + 1)):
            yield self.receiving(who, chosen, lost=lost)

    def applied(self, who: int, call: Operation) -> list[Option]:
        """Let a call succeed; nothing while it has to wait."""
        place = place_of(call)
        return [Option(who, call.point, call, place, form) for form in successes(call, self.part(place))]

    def failing(self, who: int, call: Operation) -> list[Option]:
        """Let a call fail, in every form."""
        place = place_of(call)
        forms = failures(call, self.part(place), blocking=self._check.workload.blocking)
        return [Option(who, call.point, call, place, form, "failures") for form in forms]

    def dying(self, who: int, call: Operation) -> list[Option]:
        """Let a worker's process die with its call under way."""
        place = place_of(call)
        forms = interrupted(call, self.part(place))
        return [Option(who, call.point, call, place, form, "crashes", dies=True) for form in forms]

    def expiring(self) -> list[Option]:
        """Let a lease end while its worker is still at work."""
        held = [entry.receipt for entry in self.entries if entry.held_until]
        said = "ends with its worker at work"
        worlds = ((receipt, self._transports.expire(self.part(BROKER), receipt)[0]) for receipt in held)
        return [Option(WORLD, "lease", receipt, BROKER, Form(said, world, None), "expiries") for receipt, world in worlds]

    def landing(self) -> list[Option]:
        """Let a call that is under way land."""
        return [
            Option(WORLD, call.point, call, place, form, pending=index)
            for index, (place, call) in enumerate(self.ledger.pending)
            for form in successes(call, self.part(place))
        ]

    # What happened.

    def happen(self, option: Option) -> None:
        """Change the world as the option says. Raises OutOfBounds."""
        ledger: Ledger | None = self.ledger
        if ledger and option.spends:
            ledger = ledger.spend(option.spends)
        if ledger is None:
            raise OutOfBounds(f"the check's bounds allow no more {option.spends}")
        if option.pending >= 0:
            ledger = replace(ledger, pending=(*ledger.pending[: option.pending], *ledger.pending[option.pending + 1 :]))
        for operation in option.form.pending:
            ledger = ledger.later(option.place, operation)
        refused = option.who != WORLD and isinstance(option.form.outcome, tuple) and Answer.REFUSED in option.form.outcome
        self.put(LEDGER, ledger.excuse() if refused or option.point == "lease" else ledger)
        self.put(option.place, option.form.part)

    def ended(self, name: str, end: End) -> None:
        """Note how a handler ended: a whim is spent, a failure may be counted. Raises OutOfBounds."""
        ledger: Ledger | None = self.ledger
        if ledger and end is not self._check.workload.behaviour(name).value[0]:
            ledger = ledger.spend("whims")
        if ledger is None:
            raise OutOfBounds("the check's bounds allow no more whims")
        self.put(LEDGER, ledger.excuse() if end in BLAMED else ledger)

    def roll_back(self, receipt: Any) -> None:
        """End the units of a process that died."""
        self.put(STORE, roll_back(self.part(STORE), receipt)[0])

    def leave(self, held: frozenset[Any], *, ended: bool) -> None:
        """End the leases of all but these; a batch that `ended` without a failed call must have left nothing behind."""
        ledger, world = self.ledger, self.part(BROKER)
        for entry in self.entries:
            if entry.held_until and entry.receipt not in held:
                world, _ = self._transports.expire(world, entry.receipt)
                behind = ended and ledger.left.failures == self._check.bounds.failures
                ledger = replace(ledger.excuse(), left_behind=ledger.left_behind or behind)
        self.put(BROKER, world)
        self.put(LEDGER, ledger)

    def land_unseen(self) -> bool:
        """Land what is under way and makes no difference to anybody any more; tells whether there was anything."""
        kept = []
        for place, operation in self.ledger.pending:
            if self._opening.lands_unseen(operation, self.part(place)):
                self.put(place, do(operation, self.part(place))[0])
            else:
                kept.append((place, operation))
        landed = len(kept) < len(self.ledger.pending)
        self.put(LEDGER, replace(self.ledger, pending=tuple(kept)))
        return landed
