"""Everything that may happen next: which worker moves, what its call comes to, which process dies, which lease ends."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from onceonly.drivers.memory import Operation, Raises
from onceonly.model.identity import Identity
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.verify.asking import Call, Choice
from onceonly.verify.faults import ANSWER_LOST, Form, do, failures, interrupted, successes
from onceonly.verify.forms import roll_back
from onceonly.verify.parts import Parts
from onceonly.verify.programs import Programs
from onceonly.verify.roles import Cast, Role
from onceonly.verify.trie import Node, Trie
from onceonly.verify.wording import about, delivery_text, receipt_text
from onceonly.verify.workload import SINK, End, Workload, names_of
from onceonly.verify.world import (
    BROKER,
    LEDGER,
    WORKERS,
    Bounds,
    BrokerPart,
    Changed,
    Label,
    Ledger,
    Marks,
    Move,
    State,
)

NOBODY = -1
"""In place of a worker's number: this move is the world's."""

Ends = tuple[tuple[str, End], ...]


class Environment:
    """The transitions of one check. What depends on less than the whole state is computed once and remembered."""

    def __init__(self, workload: Workload, bounds: Bounds, *, programs: Programs, roles: tuple[Role, ...]) -> None:
        """Set up queues with the workload's arrivals in them, and idle workers."""
        cast = self._cast = Cast(workload, programs, roles)
        self.trie = Trie(cast.start, idle=len(cast.roles))
        self.happened: set[str] = set()
        self._names = names_of(workload, programs)
        self._workload = workload
        self._programs = programs
        self._idle = len(cast.roles)
        self._failures = bounds.failures
        self._moves: dict[tuple[int, int, int], list[Move]] = {}
        self._begun: dict[tuple[int, int, int], list[Move]] = {}
        self._ends: dict[tuple[int, int, Any], Move | None] = {}
        self._landings: dict[tuple[int, int, int], list[Move]] = {}
        self._held: dict[int, tuple[Any, ...]] = {}
        self._left: dict[tuple[int, int, tuple[int, ...], bool], tuple[int, int]] = {}
        self._landed: dict[tuple[int, ...], list[int]] = {}
        self._commuting: dict[tuple[int, int, int], bool] = {}
        self._busy: set[int] = set()
        self._calm: dict[int, bool] = {}
        self._quiet: set[int] = set()
        self._stores = {role.endpoint: cast.store_of(role) for role in cast.roles}
        first = (programs.stores.StoreWorld(), self._arrivals(), programs.stores.LettersWorld(), Ledger(bounds))
        labels = {self._stores[role.endpoint].name: role.label for role in cast.roles}
        self.parts = Parts(labels, first)
        self.initial: State = (*self.parts.first, *cast.idle)

    def successors(self, state: State) -> list[tuple[Label, int, State]]:
        """List what may happen next: what it is, whose place among the workers it concerns (-1: nobody's), the state after.

        Where nothing can go wrong any more, a call that commutes with all that others may do is made before anything else:
        the orders that are left out lead to the same states.
        """
        calm = self._is_calm(state[LEDGER])
        for place in range(WORKERS, len(state)) if calm else ():
            if state[place] >= self._idle and self._commutes(state[place], state[BROKER], state[LEDGER]):
                moves = self._moving(state[place], state)
                return [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        found: list[tuple[Label, int, State]] = []
        previous = -1
        for place in range(WORKERS, len(state)):
            number = state[place]
            if number == previous:
                continue  # two workers in the same state are interchangeable
            previous = number
            moves = self._beginning(number, state) if number < self._idle else self._moving(number, state)
            found += [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        if state[LEDGER] not in self._quiet:
            found += [(move.label, -1, self._after(state, move, -1)) for move in self._happening(state)]
        return found

    def is_at_rest(self, state: State) -> bool:
        """Tell whether nothing is left to do: no worker busy, nothing under way, nothing waiting in the queue."""
        if any(number >= self._idle for number in state[WORKERS:]) or self._ledger_of(state[LEDGER]).pending:
            return False
        return not self.parts.bare(BROKER, state[BROKER]).entries

    def escaped(self, state: State) -> BaseException | None:
        """Give what a worker's program let escape, if one did."""
        return next((e for number in state[WORKERS:] if (e := self.trie.nodes[number].escaped)), None)

    def name_of(self, identity: Identity) -> str:
        """Give the name that steps use for a message."""
        return self._names.get(identity, identity.id)

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
                parts[BROKER], parts[LEDGER] = self._abandoned(parts[BROKER], parts[LEDGER], workers, ended=ended)
        if parts[LEDGER] in self._busy:
            parts = self._settled(*parts)
        return (*parts, *workers)

    def _abandoned(self, broker: int, ledger: int, workers: tuple[int, ...], *, ended: bool) -> tuple[int, int]:
        """End the leases of deliveries that nobody works on any more; later ones can still be received first."""
        key = (broker, ledger, workers, ended)
        found = self._left.get(key)
        if found is None:
            world, after = self.parts.bare(BROKER, broker), self._ledger_of(ledger)
            for receipt in self._held_in(broker):
                if not any(receipt in self.trie.nodes[number].receipts for number in workers):
                    self.happened.add(f"{self._label_at(receipt, broker)}lease: ends")
                    world, _ = self._programs.transports.expire(world, receipt)
                    behind = ended and after.left.failures == self._failures
                    after = replace(after.excuse(), left_behind=after.left_behind or behind)
            found = self._left[key] = (self.parts.number(BROKER, broker, world), self._ledger(after))
        return found

    def _settled(self, *parts: int) -> list[int]:
        """Land now what is under way and makes no difference when it lands: it changes nothing, or what nobody reads."""
        found = self._landed.get(parts)
        if found is None:
            found = self._landed[parts] = list(parts)
            ledger = self._ledger_of(parts[LEDGER])
            kept = []
            for place, operation in ledger.pending:
                if self._makes_no_difference(operation, self.parts.bare(place, self.parts.at(parts, place))):
                    before = self.parts.at(found, place)
                    after = do(operation, self.parts.bare(place, before))[0]
                    self.parts.put(found, place, self.parts.number(place, before, after))
                else:
                    kept.append((place, operation))
            found[LEDGER] = self._ledger(replace(ledger, pending=tuple(kept)))
        return found

    def _makes_no_difference(self, operation: Operation, part: Any) -> bool:
        if operation.point == "commit":  # its claims are committed by another unit, for good
            return isinstance(do(operation, part)[1], Raises)
        if operation.point == "release":  # what it is about is gone, for good
            numbers = {entry.number for entry in part.entries}
            return not any(receipt.number in numbers for receipt in operation.arguments[0])
        if operation.point == "send":  # nobody reads the sink
            return all(send.to == SINK for send in operation.arguments[0])
        return all(form.part == part for form in successes(operation, part))  # without effect once, so for good

    def _is_calm(self, ledger: int) -> bool:
        """Tell whether no call can fail or be interrupted any more; notes where nothing can happen by itself either."""
        found = self._calm.get(ledger)
        if found is None:
            known = self._ledger_of(ledger)
            found = self._calm[ledger] = not (known.left.crashes or known.left.failures)
            if not (known.left.expiries or known.pending):
                self._quiet.add(ledger)
        return found

    def _commutes(self, worker: int, broker: int, ledger: int) -> bool:
        key = (worker, broker, ledger)
        found = self._commuting.get(key)
        if found is None:
            found = self._commuting[key] = self._is_independent(self.trie.nodes[worker].call, broker, ledger)
        return found

    def _is_independent(self, call: Call | None, broker: int, ledger: int) -> bool:
        """Tell whether a call can neither fail nor meet anybody: nobody reads the sink, nobody else settles what is held."""
        known = self._ledger_of(ledger)
        if not isinstance(call, Operation):
            return False
        if call.point == "send":
            return all(send.to == SINK for send in call.arguments[0])
        settled = call.point in {"ack", "release"} and not known.left.expiries
        late = any(operation.point in {"ack", "release"} for _, operation in known.pending)
        return settled and not late and set(call.arguments[0]) <= set(self._held_in(broker))

    def _ledger(self, ledger: Ledger) -> int:
        number = self.parts.known[LEDGER].number(ledger)
        if ledger.pending:
            self._busy.add(number)
        return number

    def _ledger_of(self, number: int) -> Ledger:
        ledger: Ledger = self.parts.known[LEDGER].values[number]
        return ledger

    # What a worker's call comes to.

    def _moving(self, number: int, state: State) -> list[Move]:
        node = self.trie.nodes[number]
        call = node.call
        if not isinstance(call, Operation):
            return []  # its program let something escape: a violation, found before this
        place = self.parts.place_of(call)
        key = (number, self.parts.at(state, place), state[LEDGER])
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = list(self._outcomes(node, call, (place, key[1]), self._ledger_of(state[LEDGER])))
            self.happened.update(move.label.kind for move in found)
        return found

    def _outcomes(self, node: Node, call: Operation, where: tuple[int, int], ledger: Ledger) -> Iterator[Move]:
        bare = self.parts.bare(*where)
        for form in successes(call, bare):
            yield from self._going_on(node, where, form, ledger)
        spent = ledger.spend("failures")
        if spent:
            self.happened.add(f"{self._label(node)}{call.point}: may fail")
            for form in failures(call, bare, blocking=self._workload.blocking):
                yield from self._going_on(node, where, form, spent)
        spent = ledger.spend("crashes")
        if spent:
            for form in interrupted(call, bare):
                yield self._dying(self._said(node, form), node, self._changed(*where, form, spent))

    def _going_on(self, node: Node, where: tuple[int, int], form: Form, ledger: Ledger) -> Iterator[Move]:
        changed = self._changed(*where, form, ledger)
        yield from self._continued(self.trie.child(node, form.outcome), self._said(node, form), changed)

    def _said(self, node: Node, form: Form) -> Label:
        call: Any = node.call
        return Label(self._label(node) + call.point, about(call, self._names), form.form)

    def _label(self, node: Node) -> str:
        return self._cast.role(node.batch).label

    def _continued(self, node: Node, label: Label, now: Changed) -> Iterator[Move]:
        """Go on to the next call; a handler that runs before it ends as chosen here: nobody else can see when it does."""
        for after, ledger, ends, marks in self._choices(node, now.ledger, (), ()):
            said = label._replace(about=label.about + "".join(f"; the handler of {name} {end.value}" for name, end in ends))
            self.happened.update(f"handler: {end.value}" for _, end in ends)
            if ends and ends[-1][1] is End.KILLS:
                yield self._dying(said, node, now._replace(ledger=ledger))
            else:
                over = after.call is None and after.escaped is None
                worker = self._cast.number(after.batch) if over else after.number
                yield Move(said, now.place, now.part, self._ledger(ledger), worker, marks)

    def _choices(self, node: Node, ledger: Ledger, ends: Ends, marks: Marks) -> Iterator[tuple[Node, Ledger, Ends, Marks]]:
        marks = (*marks, *node.marks)
        if not isinstance(node.call, Choice):
            yield node, ledger, ends, marks
            return
        name = node.call.name
        for index, end in enumerate(self._workload.behaviour(name).value):
            rest = ledger.spend("whims") if index else ledger
            if rest is None:
                continue
            if end in {End.FAILS, End.REFUSED, End.KILLS}:
                rest = rest.excuse()
            if end is End.KILLS:
                yield node, rest, (*ends, (name, end)), marks
            else:
                yield from self._choices(self.trie.child(node, end), rest, (*ends, (name, end)), marks)

    def _dying(self, label: Label, node: Node, now: Changed) -> Move:
        """End the worker's process: its units are rolled back, its deliveries stay held, another process takes its place."""
        number = self._cast.number(node.batch)
        store = self._stores[self._cast.roles[number].endpoint]
        rollback = Operation("rollback", store, roll_back, (node.batch[0].receipt,))
        return Move(label, now.place, now.part, self._ledger(now.ledger), number, (rollback,))

    def _changed(self, place: int, before: int, form: Form, ledger: Ledger) -> Changed:
        for operation in form.pending:
            ledger = ledger.later(place, operation)
        if isinstance(form.outcome, tuple) and Answer.REFUSED in form.outcome:
            ledger = ledger.excuse()
        return Changed(place, self.parts.number(place, before, form.part), ledger)

    # What sets an idle worker going.

    def _beginning(self, number: int, state: State) -> list[Move]:
        key = (number, state[BROKER], state[LEDGER])
        found = self._begun.get(key)
        if found is None:
            role, ledger = self._cast.roles[number], self._ledger_of(state[LEDGER])
            found = self._begun[key] = list(self._begins(role, number, state[BROKER], ledger))
            self.happened.update(move.label.kind for move in found)
        return found

    def _begins(self, role: Role, number: int, broker: int, ledger: Ledger) -> Iterator[Move]:
        for world, batch in role.begins(self.parts.bare(BROKER, broker), role, self._programs.transports):
            said = Label(role.label + role.point, ", ".join(delivery_text(delivery) for delivery in batch), "applied")
            now = Changed(BROKER, self.parts.number(BROKER, broker, world), ledger)
            yield from self._continued(self.trie.root(batch), said, now)
            spent = ledger.spend("failures")
            if spent:
                yield Move(said._replace(form=ANSWER_LOST), BROKER, now.part, self._ledger(spent), number, ())

    # What happens by itself.

    def _happening(self, state: State) -> list[Move]:
        found: list[Move] = []
        for receipt in self._held_in(state[BROKER]):
            key = (state[BROKER], state[LEDGER], receipt)
            if key not in self._ends:
                self._ends[key] = self._expiring(*key)
            move = self._ends[key]
            if move:
                found.append(move)
        ledger = self._ledger_of(state[LEDGER])
        for index, (place, _) in enumerate(ledger.pending):
            before = self.parts.at(state, place)
            landing = (state[LEDGER], index, before)
            if landing not in self._landings:
                self._landings[landing] = list(self._landing(ledger, index, before))
                self.happened.update(move.label.kind for move in self._landings[landing])
            found += self._landings[landing]
        return found

    def _held_in(self, broker: int) -> tuple[Any, ...]:
        found = self._held.get(broker)
        if found is None:
            entries = self.parts.bare(BROKER, broker).entries
            found = self._held[broker] = tuple(entry.receipt for entry in entries if entry.held_until)
        return found

    def _expiring(self, broker: int, ledger: int, receipt: Any) -> Move | None:
        """End the lease of a delivery whose worker is still at work."""
        spent = self._ledger_of(ledger).spend("expiries")
        if spent is None:
            return None
        point = f"{self._label_at(receipt, broker)}lease"
        label = Label(point, f"of {receipt_text(receipt)}", "ends with its worker at work")
        self.happened.add(label.kind)
        world, _ = self._programs.transports.expire(self.parts.bare(BROKER, broker), receipt)
        return Move(label, BROKER, self.parts.number(BROKER, broker, world), self._ledger(spent.excuse()), NOBODY, ())

    def _label_at(self, receipt: Any, broker: int) -> str:
        queue = next(entry.queue for entry in self.parts.bare(BROKER, broker).entries if entry.receipt == receipt)
        return next((role.label for role in self._cast.roles if role.queue == queue), "")

    def _landing(self, ledger: Ledger, index: int, before: int) -> Iterator[Move]:
        place, operation = ledger.pending[index]
        rest = replace(ledger, pending=(*ledger.pending[:index], *ledger.pending[index + 1 :]))
        for form in successes(operation, self.parts.bare(place, before)):
            part = self.parts.number(place, before, form.part)
            point = self.parts.label_of(operation) + operation.point
            label = Label(point, about(operation, self._names), f"lands now, {form.form}")
            yield Move(label, place, part, self._ledger(rest), NOBODY, ())

    def _arrivals(self) -> BrokerPart:
        transports = self._programs.transports
        queues = tuple(Topology(endpoint=name) for name in (*self._workload.endpoints, SINK))
        world, _ = transports.declare(transports.BrokerWorld(), queues)
        world, _ = transports.send(world, self._workload.sends(), transports.Rules())
        return BrokerPart(world)
