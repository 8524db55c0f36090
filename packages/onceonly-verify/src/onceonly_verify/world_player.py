"""The world of one history, played forwards: no search, no memory of earlier states, no order left out.

It applies the memory adapters' functions as they are, and lists what may happen next in the words of a counterexample.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly_verify.board import death_of
from onceonly_verify.call_text import about, batch_text, receipt_text
from onceonly_verify.check import Check
from onceonly_verify.clock import ring_ticks
from onceonly_verify.driver import HandlerChoice
from onceonly_verify.environment import ENDS_AT_WORK, first_parts
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.faults import (
    ANSWER_LOST,
    APPLIED,
    CallOutcome,
    cut,
    disconnected,
    do,
    failures,
    interrupted,
    outage,
    silence,
    successes,
)
from onceonly_verify.forms import early_ends, lose, roll_back
from onceonly_verify.invariants.copies import refused_for, wrong_copy
from onceonly_verify.names import names_of
from onceonly_verify.parts import Parts
from onceonly_verify.programs import Programs, shipped
from onceonly_verify.reductions import makes_no_difference
from onceonly_verify.roles import Batch, Begun, Cast, Role, redelivered
from onceonly_verify.time_steps import TICK, TICKS, TimeKeeper, tick
from onceonly_verify.workload import BLAMED, End
from onceonly_verify.workload_ports import STARTS, Views
from onceonly_verify.world import BROKER, LEDGER, STORE, Ledger

WORLD = -1
"""Who does what no worker does: leases end, late calls land."""
LEASE = "lease"

Ends = tuple[tuple[str, End], ...]


class OutOfBounds(OnceOnlyError):
    """More goes wrong than the check's bounds allow."""


class InitialState:
    """How histories of one check begin; made once for many."""

    def __init__(self, check: Check, programs: Programs | None = None) -> None:
        """Lay out the check's world, for the shipping code unless other programs are given."""
        self.check = check
        self.programs = programs or shipped()
        self.cast = Cast(check.workload, self.programs, check.roles)
        self.names = names_of(check.workload, self.programs)
        self.views = Views(check.workload, self.programs)
        self._first = first_parts(check.workload, check.bounds, programs=self.programs, cast=self.cast)

    def parts(self) -> Parts:
        """Return a world as it is at the beginning."""
        return Parts(*self._first)


class Option(NamedTuple):
    """One thing that may happen next: to a worker's call, to an idle worker (`subject` is a batch), or to the world."""

    who: int
    point: str
    subject: Any
    place: int
    form: CallOutcome
    spends: str = ""
    dies: bool = False
    pending: int = -1

    @property
    def begins(self) -> bool:
        """Return whether it sets a worker going."""
        return isinstance(self.subject, tuple) and not isinstance(self.subject, PortOperation)

    @property
    def outcome(self) -> str:
        return f"lands now, {self.form.form}" if self.pending >= 0 else self.form.form

    def step(self, ends: Ends, names: Mapping[Identity, str]) -> ExploredStep:
        """Put it in a counterexample's words, with how the handlers that ran ended."""
        who = "the world" if self.who == WORLD else f"worker {chr(ord('A') + self.who)}"
        said = f"{self.point} {self._about(names)}".strip()
        said += "".join(f"; the handler of {name} {end.value}" for name, end in ends)
        return ExploredStep(who, said, self.outcome)

    def _about(self, names: Mapping[Identity, str]) -> str:
        if isinstance(self.subject, PortOperation):
            return about(self.subject, names)
        return batch_text(self.subject) if self.begins else f"of {receipt_text(self.subject)}"


class WorldPlayer:
    def __init__(self, opening: InitialState) -> None:
        self.parts = opening.parts()
        self.numbers = list(self.parts.first)
        """What the auditor calls a state."""
        self.roles = [opening.cast.roles[number] for number in opening.cast.idle]
        """What each worker is, in the order of their letters."""
        self.time: TimeKeeper | None = None
        self.begun: dict[int, int] = {}
        self.called: dict[int, int] = {}
        """When the run of each worker began, and when it made its call, where time passes."""
        if opening.check.workload.timing:
            self.time = TimeKeeper(opening.check.workload.timing, self.parts, opening.views)
        self._opening = opening
        self._check = opening.check
        self._transports = opening.programs.transports
        self._begun: dict[str, tuple[int, list[Begun]]] = {}
        """By role, the broker that was looked at last, and what may set its workers going."""

    @property
    def ledger(self) -> Ledger:
        """Return what may still go wrong, and what is under way."""
        return self.parts.ledger(self.numbers[LEDGER])

    @property
    def now(self) -> int:
        """Return what the clock shows; 0 where no time passes."""
        return self.time.now(self.numbers[STORE]) if self.time else 0

    @property
    def entries(self) -> tuple[Any, ...]:
        """Return what is in the broker's queues."""
        entries: tuple[Any, ...] = self.part(BROKER).entries
        return entries

    def part(self, place: int) -> Any:
        """Return a part as the adapters see it."""
        return self.parts.bare(place, self.parts.at(self.numbers, place))

    def put(self, place: int, part: Any) -> None:
        before = self.parts.at(self.numbers, place)
        self.parts.put(self.numbers, place, self.parts.number(place, before, part))

    def step(self, option: Option, ends: Ends = ()) -> ExploredStep:
        """Put an option in a counterexample's words."""
        return option.step(ends, self._opening.names)

    # What may happen.

    def arrivals(self, who: int, *, busy: bool, lost: bool = False) -> Iterator[Option]:
        """Set an idle worker going by whatever may; with `lost`, the answer never reaches it, if it took anything.

        Others may be `busy`: then a sweeper is early.
        """
        role, before = self.roles[who], self.part(BROKER)
        spends = "sweeps" if role.sweeps and not self.time and (busy or self.ledger.pending or self.entries) else ""
        if role.sweeps and not self.parts.has_pending(self.numbers, (), role.sweeps):
            return
        for world, batch in self._beginnings(role):
            if role.waits and role.waits(self.parts.stores(self.numbers[STORE]), before, batch):
                continue
            if not lost:
                yield Option(who, role.label + role.point, batch, BROKER, CallOutcome(APPLIED, world, batch), spends)
            elif world != before:
                yield Option(who, role.label + role.point, batch, BROKER, CallOutcome(ANSWER_LOST, world, None), "failures")

    def _beginnings(self, role: Role) -> list[Begun]:
        """List what the broker has for a role: one look for as long as the broker does not change."""
        number = self.numbers[BROKER]
        latest, found = self._begun.get(role.queue, (-1, []))
        if latest != number:
            found = list(role.begins(self.part(BROKER), role, self._transports))
            self._begun[role.queue] = number, found
        return found

    def applied(self, who: int, call: PortOperation) -> list[Option]:
        """Let a call succeed; nothing while it has to wait."""
        part = self.part(self.parts.place_of(call))
        forms = [*successes(call, part), *(disconnected(call, part) if self._check.bounds.rollbacks else ())]
        return [self._called(who, call, form) for form in forms]

    def failing(self, who: int, call: PortOperation) -> list[Option]:
        """Let a call fail, in every form."""
        forms = failures(call, self.part(self.parts.place_of(call)), blocking=self._check.workload.blocking)
        return [self._called(who, call, form, "failures") for form in forms]

    def cutting(self, who: int, call: PortOperation) -> list[Option]:
        """Let the store go away before it gets a COMMIT, or another service before it is called, while an outage may last."""
        part, left = self.part(self.parts.place_of(call)), self.ledger.left
        lost = [self._called(who, call, form, "outage") for form in outage(call, part)] if left.outage else []
        lost += [self._called(who, call, form, "silences") for form in silence(call, part)] if left.silences else []
        if not left.cuts or not self.roles[who].is_hosted:
            return lost
        return lost + [
            self._called(who, call, form, "cuts") for form in cut(call, part, blocking=self._check.workload.blocking)
        ]

    def dying(self, who: int, call: PortOperation) -> list[Option]:
        """Let a worker's process die with its call under way."""
        forms = interrupted(call, self.part(self.parts.place_of(call)))
        return [self._called(who, call, form, "crashes")._replace(dies=True) for form in forms]

    def _called(self, who: int, call: PortOperation, form: CallOutcome, spends: str = "") -> Option:
        return Option(who, self.roles[who].label + call.point, call, self.parts.place_of(call), form, spends)

    def expiring(self) -> list[Option]:
        """Let a lease end while its worker is still at work."""
        found = []
        for entry in self.entries:
            if entry.held_until:
                world, _ = self._transports.expire(self.part(BROKER), entry.receipt)
                point = f"{self._opening.cast.label_at(entry.queue)}{LEASE}"
                ends = CallOutcome(ENDS_AT_WORK, world, None)
                found.append(Option(WORLD, point, entry.receipt, BROKER, ends, "expiries"))
        return found

    def ending(self) -> list[Option]:
        """Let a unit or a run marker end while its worker is still at work."""
        found = []
        for name in (*dict.fromkeys(self._opening.cast.store_of(role).name for role in self.roles), STARTS):
            place, label = self.parts.places[name], self.parts.label_at(name)
            for bound, what, receipt, after in early_ends(self._check.bounds, name, self.part(place)):
                form = CallOutcome(ENDS_AT_WORK, after, None)
                found.append(Option(WORLD, f"{label}{what}", receipt, place, form, bound))
        return found

    def landing(self) -> list[Option]:
        """Let a call that is under way land."""
        return [
            Option(WORLD, self.parts.label_of(call) + call.point, call, place, form, pending=index)
            for index, (place, call) in enumerate(self.ledger.pending)
            for form in successes(call, self.part(place))
        ]

    def bounded_since(self, who: int, call: PortOperation | None) -> int:
        """Return from when the clock bounds a worker that makes this call."""
        timing = self._check.workload.timing
        return timing.bounded_since(call.point if call else "", self.begun[who], self.called[who]) if timing else 0

    def ticking(self, begun: list[int], *, is_last: bool) -> list[Option]:
        """Move the clock by one step, where it may, while runs are in progress that are bounded from these instants."""
        if not self.time or not self.time.may_move(self.numbers[STORE], begun, self.ledger.oldest, is_last=is_last):
            return []
        return [Option(WORLD, TICKS, TICK, self.time.place, CallOutcome(APPLIED, tick(self.part(self.time.place))[0], None))]

    # What happened.

    def happen(self, option: Option, batch: Batch = ()) -> None:
        """Change the world as the option says; `batch` is what its worker works on. Raises OutOfBounds."""
        before = self.ledger
        ledger = self._ledger_after(option, before, batch)
        if ledger is not before:
            self.put(LEDGER, ledger)
        self.put(option.place, option.form.part)
        if self.time:
            if option.point == TICKS:
                self.parts.mark(ring_ticks(self.parts.stores(self.numbers[STORE])), self.numbers)
            self.numbers[STORE] = self.time.observe(self.numbers[STORE])
            self.called[option.who] = self.now
            if option.begins:
                self.begun[option.who] = self.now

    def _ledger_after(self, option: Option, before: Ledger, batch: Batch) -> Ledger:
        """Note what an option spends, puts under way and settles. Raises OutOfBounds."""
        ledger: Ledger | None = before
        if ledger and option.spends:
            point = option.subject.point if isinstance(option.subject, PortOperation) else ""
            ledger = ledger.failed(point) if option.spends == "failures" else ledger.spend(option.spends)
        elif ledger and isinstance(option.subject, PortOperation) and option.form.form == APPLIED:
            ledger = ledger.applied(option.subject.point)
        if ledger is None:
            raise OutOfBounds(f"the check's bounds allow no more {option.spends}")
        if option.begins:
            ledger = ledger.excuse(*redelivered(self.roles[option.who], option.subject))
        if option.pending >= 0:
            ledger = ledger.settled((*ledger.pending[: option.pending], *ledger.pending[option.pending + 1 :]))
        for operation in option.form.pending:
            ledger = ledger.later(option.place, operation, self.bounded_since(option.who, operation))
        if option.who != WORLD and isinstance(option.subject, PortOperation):
            ledger = ledger.checked(wrong_copy(option.subject, batch))
            ledger = ledger.excuse(*refused_for(option.subject, option.form.outcome))
        return ledger

    def ended(self, name: str, end: End) -> None:
        """Note how a handler ended: a whim is spent, a failure may be counted. Raises OutOfBounds."""
        ledger: Ledger | None = self.ledger
        if ledger and end is not self._check.workload.behaviour(name).value[0]:
            ledger = ledger.spend("whims")
        if ledger is None:
            raise OutOfBounds("the check's bounds allow no more whims")
        self.put(LEDGER, ledger.excuse(name) if end in BLAMED else ledger)

    def mark(self, marks: tuple[PortOperation, ...]) -> None:
        """Apply what a program did at once, without a call."""
        if marks:
            self.parts.mark(marks, self.numbers)
            if self.time:
                self.numbers[STORE] = self.time.observe(self.numbers[STORE])

    def roll_back(self, who: int, receipt: Any, call: Any) -> None:
        """End the units of a worker whose process died at this call, perhaps while a handler was running."""
        place = self.parts.places[self._opening.cast.store_of(self.roles[who]).name]
        self.put(place, roll_back(self.part(place), receipt)[0])
        if self._check.workload.board:
            died = death_of(self._opening.programs, self._check.workload.board, receipt, call)
            self.mark((died,))
            return
        running = call.run if isinstance(call, HandlerChoice) else None
        place = self.parts.places[self._opening.programs.run_markers.PLACE.name]
        self.put(place, lose(self.part(place), receipt, running, self._check.workload.supervised)[0])

    def is_at_rest(self) -> bool:
        """Return whether nothing is under way, and nothing waits for a worker."""
        cast = self._opening.cast
        return not (self.ledger.pending or self.entries or self.parts.has_pending(self.numbers, cast.finished, cast.swept))

    def leave(self, held: frozenset[Any], *, ended: bool) -> None:
        """End the leases of all but these; a batch that `ended` left nothing behind, unless a call that settles failed."""
        ledger, world = self.ledger, self.part(BROKER)
        for entry in self.entries:
            if entry.held_until and entry.receipt not in held:
                world, _ = self._transports.expire(world, entry.receipt)
                ledger = replace(ledger, left_behind=ledger.left_behind or (ended and not ledger.unsettled))
        self.put(BROKER, world)
        self.put(LEDGER, ledger)

    def land_unseen(self) -> bool:
        """Land what is under way and makes no difference to anybody any more; tells whether there was anything."""
        kept = []
        for place, operation in self.ledger.pending:
            if makes_no_difference(operation, self.part(place)):
                self.put(place, do(operation, self.part(place))[0])
            else:
                kept.append((place, operation))
        landed = len(kept) < len(self.ledger.pending)
        self.put(LEDGER, self.ledger.settled(tuple(kept)))
        return landed
