"""Everything that may happen next: which worker moves, what its call comes to, which process dies, which lease ends."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.formats.cloudevents import PREFIX
from onceonly.model.identity import Identity
from onceonly.ports.transport import Topology
from onceonly_verify.board import death_of
from onceonly_verify.call_text import about, batch_text, receipt_text
from onceonly_verify.clock import ring_ticks
from onceonly_verify.driver import Call, HandlerChoice
from onceonly_verify.faults import (
    ANSWER_LOST,
    APPLIED,
    CallOutcome,
    cut,
    disconnected,
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
from onceonly_verify.programs import Programs
from onceonly_verify.reductions import Reductions
from onceonly_verify.roles import Batch, Cast, Role, redelivered
from onceonly_verify.time_steps import TICKS, TimeKeeper, tick
from onceonly_verify.trie import Node, Trie
from onceonly_verify.workload import BLAMED, DONE, SINKS, End, Flaw, Workload
from onceonly_verify.workload_ports import STARTS, Views, first_worlds
from onceonly_verify.world import (
    BROKER,
    LEDGER,
    STORE,
    WORKERS,
    Bounds,
    BrokerPart,
    Label,
    Ledger,
    Marks,
    Move,
    State,
    WorldChange,
)

NOBODY = -1
"""In place of a worker's number: this move is the world's."""
ENDS_AT_WORK = "ends with its worker at work"

Ends = tuple[tuple[str, End], ...]
Way = Callable[[PortOperation, Any], Iterator[CallOutcome]]


class ChosenOutcome(NamedTuple):
    """One thing that a call can come to, in words, about which part, and as a form whose part is the part's number."""

    label: Label
    place: int
    form: CallOutcome


class CallTransitions(NamedTuple):
    """All that a worker's call can come to, and whether it may go first, if its worker has no rivals."""

    moves: list[Move]
    first: bool


class CheckEnvironment:
    """The transitions of one check. What depends on less than the whole state is computed once and remembered."""

    def __init__(
        self, workload: Workload, bounds: Bounds, *, programs: Programs, roles: tuple[Role, ...], reduced: bool = True
    ) -> None:
        """Set up queues with the workload's arrivals in them, and idle workers. Without `reduced`, no call goes first."""
        cast = self._cast = Cast(workload, programs, roles)
        self.trie = Trie(cast.start, idle=len(cast.roles), reduced=reduced and not bounds.cuts, timing=workload.timing)
        self._names = names_of(workload, programs)
        self._workload = workload
        self._programs = programs
        self._idle = len(cast.roles)
        self._reduced = reduced and not workload.board  # what is marked at once is read by others
        self._failing: Way = partial(failures, blocking=workload.blocking)
        self._cutting: Way = partial(cut, blocking=workload.blocking)
        self._ends_units = bool(bounds.rollbacks)
        self._outcomes_of: dict[tuple[Way, int, int], list[ChosenOutcome]] = {}
        self._arriving: dict[tuple[int, int], list[tuple[int, Batch]]] = {}
        self._turns: dict[tuple[int, int, int, int], CallTransitions] = {}
        self._begun: dict[tuple[int, int, int, int, bool, int], list[Move]] = {}
        self._ends: dict[tuple[int, int, Any], Move | None] = {}
        self._landings: dict[tuple[int, int, int], list[Move]] = {}
        self._ended: dict[tuple[int, int, int], list[Move]] = {}
        self._ending = (*dict.fromkeys(cast.store_of(role).name for role in cast.roles), STARTS)
        self._stores = {role.endpoint: cast.store_of(role) for role in cast.roles}
        self.views = Views(workload, programs)
        self.parts = Parts(*first_parts(workload, bounds, programs=programs, cast=cast))
        self.time = TimeKeeper(workload.timing, self.parts, self.views) if workload.timing else None
        self._ring_ticks = ring_ticks(self.parts.stores(self.parts.first[STORE])) if workload.timing else ()
        self._now = 0
        """What the clock shows in the state whose successors are listed."""
        self._reads = False
        """Whether a program read the clock in one of the moves that are listed."""
        self._reductions = Reductions(self.parts, cast, programs.transports, nodes=self.trie.nodes)
        self.happened = self._reductions.happened
        if self.time:
            self.time.happened = self.happened
        self.initial: State = (*self.parts.first, *cast.idle)

    def successors(self, state: State) -> list[tuple[Label, int, State]]:
        """List what may happen next: what it is, whose place among the workers it concerns (-1: nobody's), the state after.

        A call that meets nobody is made before anything else: the orders that are left out lead to the same states.
        """
        if self.time:
            self._now = self.time.now(state[STORE])
        place, moves = self._first_moves(state)
        if moves:
            return [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        found: list[tuple[Label, int, State]] = []
        previous = -1
        for place in range(WORKERS, len(state)):
            number = state[place]
            if number == previous:
                continue  # two workers in the same state are interchangeable
            previous = number
            moves = self._call_transitions(number, state).moves if number >= self._idle else self._beginning(number, state)
            found += [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        if not self._reductions.is_quiet(state[LEDGER]):
            found += [(move.label, -1, self._after(state, move, -1)) for move in self._spontaneous_moves(state)]
        if self.time:
            moves = self._ticking(self.time, state)
            found += [(move.label, -1, self._after(state, move, -1)) for move in moves]
        return found

    def is_at_rest(self, state: State) -> bool:
        """Return whether nothing is left to do: no worker is busy, nothing is under way, in a queue or left to a relay."""
        return self._is_idle(state) and not self.parts.has_pending(state, self._cast.finished, self._cast.swept)

    def _is_idle(self, state: State) -> bool:
        if any(number >= self._idle for number in state[WORKERS:]) or self.parts.ledger(state[LEDGER]).pending:
            return False
        return not self.parts.bare(BROKER, state[BROKER]).entries

    def escaped(self, state: State) -> BaseException | None:
        """Return what a worker's program let escape, if one did."""
        return next((e for number in state[WORKERS:] if (e := self.trie.nodes[number].escaped)), None)

    def name_of(self, identity: Identity) -> str:
        """Return the name that steps use for a message."""
        return self._names.get(identity, identity.id)

    def _first_moves(self, state: State) -> tuple[int, list[Move]]:
        """Find the call that is made before anything else, and what it can come to."""
        for place in range(WORKERS, len(state)) if self._reduced else ():
            if state[place] >= self._idle:
                turn = self._call_transitions(state[place], state)
                if turn.first and turn.moves and not self._reductions.has_rivals(state[place], state):
                    return place, turn.moves
        return NOBODY, []

    def _after(self, state: State, move: Move, place: int) -> State:
        parts = [*state[:WORKERS]]
        self.parts.put(parts, move.place, move.part)
        parts[LEDGER] = move.ledger
        if move.marks:
            self.parts.mark(move.marks, parts)
        workers = state[WORKERS:]
        if place >= 0:
            workers = tuple(sorted((*state[WORKERS:place], move.worker, *state[place + 1 :])))
            if move.worker < self._idle:
                ended = not (move.marks and move.marks[-1].point == "rollback") and move.label.form != ANSWER_LOST
                self._reductions.abandon(parts, workers, ended=ended)
        if parts[LEDGER] in self.parts.busy:
            parts = self._reductions.settled(*parts)
        if self.time:
            parts[STORE] = self.time.observe(parts[STORE])
        return (*parts, *workers)

    # What a worker's call comes to.

    def _call_transitions(self, number: int, state: State) -> CallTransitions:
        place = self._reductions.place(number)
        key = (number, self.parts.at(state, place), state[LEDGER], self._now)
        found = self._turns.get(key)
        if found is None:
            node, ledger = self.trie.nodes[number], self.parts.ledger(state[LEDGER])
            # A program that let something escape makes no move: it is a violation, found before this.
            self._reads = False
            moves = list(self._outcomes(node, (place, key[1]), ledger)) if isinstance(node.call, PortOperation) else []
            first = not self._reads and self._reductions.is_first(node, (place, key[1]), ledger)
            found = self._turns[key] = CallTransitions(moves, first=first)
        return found

    def _outcomes(self, node: Node, where: tuple[int, int], ledger: Ledger) -> Iterator[Move]:
        ledger = ledger.checked(wrong_copy(node.call, node.batch))
        yield from self._moves_after_answer(node, self._forms(successes, node, where), ledger.applied(_point(node)))
        if self._ends_units:
            yield from self._moves_after_answer(node, self._forms(disconnected, node, where), ledger)
        for bound, way in (("outage", outage), ("silences", silence), ("cuts", self._cutting)):
            spent = ledger.spend(bound)
            if spent and (bound != "cuts" or self._cast.role(node.batch).is_hosted):
                yield from self._moves_after_answer(node, self._forms(way, node, where), spent)
        spent = ledger.failed(_point(node))
        if spent:
            yield from self._moves_after_answer(node, self._forms(self._failing, node, where), spent)
        spent = ledger.spend("crashes")
        if spent:
            for label, place, form in self._forms(interrupted, node, where):
                yield self._crash_move(label, node, _changed(node.call, place, form, spent, since=self.trie.began(node)))

    def _moves_after_answer(self, node: Node, told: list[ChosenOutcome], ledger: Ledger) -> Iterator[Move]:
        for label, place, form in told:
            after = self.trie.child(node, form.outcome, self._now)
            yield from self._moves_to_next_call(
                after, label, _changed(node.call, place, form, ledger, since=self.trie.began(node))
            )

    def _forms(self, way: Way, node: Node, where: tuple[int, int]) -> list[ChosenOutcome]:
        """List what a call can come to in one way, with the part's number for the part: whatever else may still happen."""
        key = (way, node.number, where[1])
        found = self._outcomes_of.get(key)
        if found is None:
            call: Any = node.call
            point, text = self._cast.role(node.batch).label + call.point, about(call, self._names)
            found = self._outcomes_of[key] = [
                ChosenOutcome(Label(point, text, form.form), where[0], form._replace(part=self.parts.number(*where, form.part)))
                for form in way(call, self.parts.bare(*where))
            ]
            self.happened.update(told.label.kind for told in found)
            if way is self._failing:
                self.happened.add(f"{point}: may fail")
        return found

    def _moves_to_next_call(self, node: Node, label: Label, now: WorldChange) -> Iterator[Move]:
        """Go on to the next call; a handler that runs before it ends as chosen here: nobody else can see when it does."""
        for after, ledger, ends, marks in self._choices(node, now.ledger, (), ()):
            said = label
            if ends:
                said = label._replace(about=label.about + "".join(f"; the handler of {name} {end.value}" for name, end in ends))
                self.happened.update(f"handler: {end.value}" for _, end in ends)
            if ends and ends[-1][1] is End.KILLS:
                yield self._crash_move(said, after, now._replace(ledger=ledger), marks)
            else:
                over = after.call is None and after.escaped is None
                worker = self._cast.number(after.batch) if over else after.number
                yield Move(said, now.place, now.part, self.parts.ledger_number(ledger), worker, marks)

    def _choices(self, node: Node, ledger: Ledger, ends: Ends, marks: Marks) -> Iterator[tuple[Node, Ledger, Ends, Marks]]:
        marks = (*marks, *node.marks)
        self._reads = self._reads or node.reads
        if not isinstance(node.call, HandlerChoice):
            yield node, ledger, ends, marks
            return
        name = node.call.name
        for index, end in enumerate(self._workload.behaviour(name).value):
            rest = ledger.spend("whims") if index else ledger
            if rest is None:
                continue
            if end in BLAMED:
                rest = rest.excuse(name)
            if end is End.KILLS:
                yield node, rest, (*ends, (name, end)), marks
            else:
                yield from self._choices(self.trie.child(node, end, self._now), rest, (*ends, (name, end)), marks)

    def _crash_move(self, label: Label, node: Node, now: WorldChange, marks: Marks = ()) -> Move:
        """End the worker's process: its units are rolled back, its deliveries stay held, another process takes its place."""
        number = self._cast.number(node.batch)
        store = self._stores[self._cast.roles[number].endpoint]
        receipt, running = node.batch[0].receipt, node.call.run if isinstance(node.call, HandlerChoice) else None
        rollback = PortOperation("rollback", store, roll_back, (receipt,))
        if self._workload.board:
            died = death_of(self._programs, self._workload.board, receipt, node.call)
            return Move(label, now.place, now.part, self.parts.ledger_number(now.ledger), number, (*marks, rollback, died))
        lost = PortOperation("rollback", self._programs.run_markers.PLACE, lose, (receipt, running, self._workload.supervised))
        return Move(label, now.place, now.part, self.parts.ledger_number(now.ledger), number, (rollback, lost))

    # What sets an idle worker going.

    def _beginning(self, number: int, state: State) -> list[Move]:
        role = self._cast.roles[number]
        sweeps = role.sweeps
        if sweeps and not self.parts.has_pending(state, (), sweeps):
            return []  # it would look, find nothing, and have changed nothing
        early = bool(sweeps) and not self.time and not self._is_idle(state)
        key = (number, state[BROKER], state[LEDGER], state[STORE] if role.waits else NOBODY, early, self._now)
        found = self._begun.get(key)
        if found is None:
            known = self.parts.ledger(state[LEDGER])
            ledger = known.spend("sweeps") if early else known
            found = self._begun[key] = list(self._begins(number, state[BROKER], state[STORE], ledger)) if ledger else []
            self.happened.update(move.label.kind for move in found)
        return found

    def _begins(self, number: int, broker: int, store: int, ledger: Ledger) -> Iterator[Move]:
        role = self._cast.roles[number]
        for part, batch in self._arrived(role, number, broker):
            if role.waits and role.waits(self.parts.stores(store), self.parts.bare(BROKER, broker), batch):
                continue
            said = Label(role.label + role.point, batch_text(batch), "applied")
            counted = ledger.excuse(*redelivered(role, batch))
            now = WorldChange(BROKER, part, counted)
            yield from self._moves_to_next_call(self.trie.root(batch, self._now), said, now)
            spent = counted.spend("failures")
            if spent and part != broker:
                yield Move(said._replace(form=ANSWER_LOST), BROKER, now.part, self.parts.ledger_number(spent), number, ())

    def _arrived(self, role: Role, number: int, broker: int) -> list[tuple[int, Batch]]:
        found = self._arriving.get((number, broker))
        if found is None:
            begun = role.begins(self.parts.bare(BROKER, broker), role, self._programs.transports)
            found = [(self.parts.number(BROKER, broker, world), batch) for world, batch in begun]
            self._arriving[number, broker] = found
        return found

    # What happens by itself.

    def _spontaneous_moves(self, state: State) -> list[Move]:
        found: list[Move] = []
        for receipt in self.parts.held(state[BROKER]):
            key = (state[BROKER], state[LEDGER], receipt)
            if key not in self._ends:
                self._ends[key] = self._expiring(*key)
            move = self._ends[key]
            if move:
                found.append(move)
        ledger = self.parts.ledger(state[LEDGER])
        for index, (place, _) in enumerate(ledger.pending):
            before = self.parts.at(state, place)
            landing = (state[LEDGER], index, before)
            if landing not in self._landings:
                self._landings[landing] = list(self._landing(ledger, index, before))
                self.happened.update(move.label.kind for move in self._landings[landing])
            found += self._landings[landing]
        if ledger.left.rollbacks or ledger.left.lapses:
            for name in self._ending:
                found += self._endings(name, state)
        return found

    def _endings(self, name: str, state: State) -> list[Move]:
        """End a unit or a run marker whose worker is still at work."""
        place = self.parts.places[name]
        key = (place, self.parts.at(state, place), state[LEDGER])
        found = self._ended.get(key)
        if found is None:
            found = self._ended[key] = []
            ledger = self.parts.ledger(state[LEDGER])
            for bound, what, receipt, after in early_ends(ledger.left, name, self.parts.bare(*key[:2])):
                spent = ledger.spend(bound)
                label = Label(f"{self.parts.label_at(name)}{what}", f"of {receipt_text(receipt)}", ENDS_AT_WORK)
                number = self.parts.ledger_number(spent) if spent else state[LEDGER]
                found.append(Move(label, place, self.parts.number(*key[:2], after), number, NOBODY, ()))
                self.happened.add(label.kind)
        return found

    def _only_waits(self, state: State) -> bool:
        """Return whether nothing but the time brings this world to rest."""
        if any(number >= self._idle for number in state[WORKERS:]) or self.parts.ledger(state[LEDGER]).pending:
            return False
        eager = {number for number in state[WORKERS:] if not self._cast.roles[number].is_patient}
        return not self.is_at_rest(state) and not any(self._beginning(number, state) for number in eager)

    def _ticking(self, time: TimeKeeper, state: State) -> list[Move]:
        """Move the clock by one step, where it may."""
        is_last = self._only_waits(state)
        begun = [self.trie.began(self.trie.nodes[number]) for number in state[WORKERS:] if number >= self._idle]
        if not time.may_move(state[STORE], begun, self.parts.ledger(state[LEDGER]).oldest, is_last=is_last):
            return []
        number = self.parts.at(state, time.place)
        after = self.parts.number(time.place, number, tick(self.parts.bare(time.place, number))[0])
        label = Label(TICKS, "", APPLIED)
        self.happened.add(label.kind)
        return [Move(label, time.place, after, state[LEDGER], NOBODY, self._ring_ticks)]

    def _expiring(self, broker: int, ledger: int, receipt: Any) -> Move | None:
        """End the lease of a delivery whose worker is still at work."""
        spent = self.parts.ledger(ledger).spend("expiries")
        if spent is None:
            return None
        entry = self.parts.entry(receipt, broker)
        point = f"{self._cast.label_at(entry.queue)}lease"
        label = Label(point, f"of {receipt_text(receipt)}", ENDS_AT_WORK)
        self.happened.add(label.kind)
        world, _ = self._programs.transports.expire(self.parts.bare(BROKER, broker), receipt)
        return Move(label, BROKER, self.parts.number(BROKER, broker, world), self.parts.ledger_number(spent), NOBODY, ())

    def _landing(self, ledger: Ledger, index: int, before: int) -> Iterator[Move]:
        place, operation = ledger.pending[index]
        rest = ledger.settled((*ledger.pending[:index], *ledger.pending[index + 1 :]))
        for form in successes(operation, self.parts.bare(place, before)):
            part = self.parts.number(place, before, form.part)
            point = self.parts.label_of(operation) + operation.point
            label = Label(point, about(operation, self._names), f"lands now, {form.form}")
            yield Move(label, place, part, self.parts.ledger_number(rest), NOBODY, ())


def _point(node: Node) -> str:
    call: Any = node.call
    return str(call.point)


class FirstParts(NamedTuple):
    """What the first state of a world is made of; the arguments of `Parts`."""

    stores: Mapping[str, Any]
    labels: Mapping[str, str]
    others: tuple[BrokerPart, Any, Ledger]


def first_parts(workload: Workload, bounds: Bounds, *, programs: Programs, cast: Cast) -> FirstParts:
    """Set up queues with the workload's arrivals in them, and one empty store for each endpoint."""
    transports = programs.transports
    names = (*(role.queue for role in cast.roles), *sorted(SINKS))
    queues = tuple(Topology(endpoint=name, events=(DONE,) if name in workload.subscribers else ()) for name in names)
    world, _ = transports.declare(transports.BrokerWorld(), queues)
    world, _ = transports.send(world, workload.sends(), transports.BrokerRules())
    unnamed = {each.name.encode() for each in workload.arrivals if each.flaw is Flaw.UNNAMED}
    world = replace(world, entries=tuple(_unnamed(each) if each.body in unnamed else each for each in world.entries))
    suspects = {each.name.encode() for each in workload.arrivals if each.suspect}
    world = replace(world, entries=tuple(replace(each, suspect=each.body in suspects) for each in world.entries))
    labels: dict[str, str] = {}
    for role in cast.roles:
        labels.setdefault(cast.store_of(role).name, role.label)  # the first role of an endpoint speaks for it
    others = (
        BrokerPart(world),
        programs.stores.LettersWorld(),
        Ledger(bounds, overtaken=bool(bounds.sweeps or workload.timing)),
    )
    return FirstParts(first_worlds(workload, programs), labels, others)


def _unnamed(entry: Any) -> Any:
    return replace(entry, headers=tuple(header for header in entry.headers if header[0] != f"{PREFIX}id"))


def _changed(call: Call | None, place: int, form: CallOutcome, ledger: Ledger, *, since: int) -> WorldChange:
    for operation in form.pending:
        ledger = ledger.later(place, operation, since)
    return WorldChange(place, form.part, ledger.excuse(*refused_for(call, form.outcome)))
