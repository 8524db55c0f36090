"""Everything that may happen next: which worker moves, what its call comes to, which process dies, which lease ends."""

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from msgspec.structs import replace

from onceonly.drivers.memory import Operation, Place, Raises
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.verify.asking import Choice
from onceonly.verify.faults import Form, do, failures, interrupted, successes
from onceonly.verify.forms import drained, in_order, roll_back
from onceonly.verify.programs import Programs
from onceonly.verify.reductions import are_rivals, goes_first
from onceonly.verify.trie import Node, Trie
from onceonly.verify.wording import about, delivery_text, receipt_text
from onceonly.verify.workload import ENDPOINT, SINK, End, Workload, start
from onceonly.verify.world import (
    BROKER,
    LEDGER,
    STORE,
    WORKERS,
    Bounds,
    BrokerPart,
    Changed,
    Known,
    Label,
    Ledger,
    Move,
    Scale,
    State,
    place_of,
)

IDLE = 0

Ends = tuple[tuple[str, End], ...]
Marks = tuple[Operation, ...]


class Environment:
    """The transitions of one check. What depends on less than the whole state is computed once and remembered."""

    def __init__(self, workload: Workload, bounds: Bounds, *, programs: Programs, scale: Scale, reduced: bool = True) -> None:
        """Set up queues with the workload's arrivals in them, and idle workers. Without `reduced`, no call goes first."""
        self.parts: tuple[Known[Any], ...] = (Known(), Known(), Known(), Known())
        self.trie = Trie(lambda batch: start(workload, programs, batch), reduced=reduced)
        self.happened: set[str] = set()
        self._workload = workload
        self._programs = programs
        self._batch = scale.batch
        self._failures = bounds.failures
        self._reduced = reduced
        self._moves: dict[tuple[int, int, int], list[Move]] = {}
        self._batches: dict[tuple[int, int], list[Move]] = {}
        self._ends: dict[tuple[int, int, Any], Move | None] = {}
        self._landings: dict[tuple[int, int, int], list[Move]] = {}
        self._held: dict[int, tuple[Any, ...]] = {}
        self._left: dict[tuple[int, int, tuple[int, ...], bool], tuple[int, int]] = {}
        self._landed: dict[tuple[int, ...], list[int]] = {}
        self._first: dict[tuple[int, int, int], bool] = {}
        self._rivals: dict[tuple[int, int], bool] = {}
        self._places: dict[int, int] = {}
        self._busy: set[int] = set()
        self._quiet: dict[int, bool] = {}
        self._marked: dict[tuple[tuple[Operation, ...], int], int] = {}
        self._workload_place = Place("store", None)
        first = (programs.stores.StoreWorld(), self._arrivals(), programs.stores.LettersWorld())
        numbers = [known.number(part) for known, part in zip(self.parts, (*first, Ledger(bounds)), strict=True)]
        self.initial: State = (*numbers, *(IDLE for _ in range(scale.workers)))

    def successors(self, state: State) -> list[tuple[Label, int, State]]:
        """List what may happen next: what it is, whose place among the workers it concerns (-1: nobody's), the state after.

        A call that meets nobody is made before anything else: the orders that are left out lead to the same states.
        """
        for place in range(WORKERS, len(state)):
            if state[place] != IDLE and self._goes_first(state[place], state) and (moves := self._moving(state[place], state)):
                return [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        found: list[tuple[Label, int, State]] = []
        previous = -1
        for place in range(WORKERS, len(state)):
            number = state[place]
            if number == previous:
                continue  # two workers in the same state are interchangeable
            previous = number
            moves = self._receiving(state[BROKER], state[LEDGER]) if number == IDLE else self._moving(number, state)
            found += [(move.label, place - WORKERS, self._after(state, move, place)) for move in moves]
        if not self._is_quiet(state[LEDGER]):
            found += [(move.label, -1, self._after(state, move, -1)) for move in self._happening(state)]
        return found

    def is_at_rest(self, state: State) -> bool:
        """Tell whether nothing is left to do: no worker busy, nothing under way, nothing waiting in the queue."""
        if any(state[WORKERS:]) or self.parts[LEDGER].values[state[LEDGER]].pending:
            return False
        return not self.parts[BROKER].values[state[BROKER]].broker.entries

    def escaped(self, state: State) -> BaseException | None:
        """Give what a worker's program let escape, if one did."""
        return next((e for number in state[WORKERS:] if (e := self.trie.nodes[number].escaped)), None)

    def _after(self, state: State, move: Move, place: int) -> State:
        parts = [*state[:WORKERS]]
        parts[move.place] = move.part
        parts[LEDGER] = move.ledger
        if move.marks:
            parts[STORE] = self._mark(move.marks, parts[STORE])
        workers = state[WORKERS:]
        if place >= 0:
            workers = tuple(sorted((*state[WORKERS:place], move.worker, *state[place + 1 :])))
            if move.worker == IDLE:
                ended = not (move.marks and move.marks[-1].point == "rollback") and move.label.point != "receive"
                parts[BROKER], parts[LEDGER] = self._abandoned(parts[BROKER], parts[LEDGER], workers, ended=ended)
        if parts[LEDGER] in self._busy:
            parts = self._settled(*parts)
        return (*parts, *workers)

    def _abandoned(self, broker: int, ledger: int, workers: tuple[int, ...], *, ended: bool) -> tuple[int, int]:
        """End the leases of deliveries that nobody works on any more; later ones can still be received first."""
        key = (broker, ledger, workers, ended)
        found = self._left.get(key)
        if found is None:
            world, after = self._bare(BROKER, broker), self.parts[LEDGER].values[ledger]
            for receipt in self._held_in(broker):
                if not any(receipt in self.trie.nodes[number].receipts for number in workers):
                    world, _ = self._programs.transports.expire(world, receipt)
                    behind = ended and after.left.failures == self._failures
                    after = replace(after.excuse(), left_behind=after.left_behind or behind)
                    self.happened.add("lease: ends")
            found = self._left[key] = (self._number(BROKER, broker, world), self._ledger(after))
        return found

    def _settled(self, *parts: int) -> list[int]:
        """Land now what is under way and makes no difference when it lands: it changes nothing, or what nobody reads."""
        found = self._landed.get(parts)
        if found is None:
            found = self._landed[parts] = list(parts)
            ledger: Ledger = self.parts[LEDGER].values[parts[LEDGER]]
            kept = []
            for place, operation in ledger.pending:
                if self._makes_no_difference(operation, self._bare(place, parts[place])):
                    found[place] = self._number(place, found[place], do(operation, self._bare(place, found[place]))[0])
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

    def _is_quiet(self, ledger: int) -> bool:
        """Tell whether nothing can happen by itself any more."""
        found = self._quiet.get(ledger)
        if found is None:
            known: Ledger = self.parts[LEDGER].values[ledger]
            found = self._quiet[ledger] = not (known.left.expiries or known.pending)
        return found

    def _goes_first(self, worker: int, state: State) -> bool:
        place = self._place(worker)
        key = (worker, state[place], state[LEDGER])
        found = self._first.get(key)
        if found is None:
            node, part, ledger = (
                self.trie.nodes[worker],
                self._bare(place, state[place]),
                self.parts[LEDGER].values[state[LEDGER]],
            )
            found = isinstance(node.call, Operation) and goes_first(node.call, part, ledger, node.receipts)
            self._first[key] = found = found and self._reduced
        return found and not self._has_rivals(worker, state)

    def _place(self, worker: int) -> int:
        """Give the part of the world that the worker's call is about."""
        found = self._places.get(worker)
        if found is None:
            call = self.trie.nodes[worker].call
            found = self._places[worker] = place_of(call) if isinstance(call, Operation) else STORE
        return found

    def _has_rivals(self, worker: int, state: State) -> bool:
        for other in state[WORKERS:]:
            if other not in (IDLE, worker):
                found = self._rivals.get((worker, other))
                if found is None:
                    nodes = self.trie.nodes
                    found = self._rivals[worker, other] = are_rivals(nodes[worker].receipts, nodes[other].receipts)
                if found:
                    return True
        return False

    def _ledger(self, ledger: Ledger) -> int:
        number = self.parts[LEDGER].number(ledger)
        if ledger.pending:
            self._busy.add(number)
        return number

    def _mark(self, marks: tuple[Operation, ...], store: int) -> int:
        found = self._marked.get((marks, store))
        if found is None:
            part = self.parts[STORE].values[store]
            for mark in marks:
                part, _ = do(mark, part)
            found = self._marked[marks, store] = self.parts[STORE].number(in_order(part))
        return found

    # What a worker's call comes to.

    def _moving(self, number: int, state: State) -> list[Move]:
        place = self._place(number)
        key = (number, state[place], state[LEDGER])
        found = self._moves.get(key)
        if found is None:
            node = self.trie.nodes[number]
            if not isinstance(node.call, Operation):
                return []  # its program let something escape: a violation, found before this
            found = self._moves[key] = list(self._outcomes(node, node.call, place, state))
            self.happened.update(move.label.kind for move in found)
        return found

    def _outcomes(self, node: Node, call: Operation, place: int, state: State) -> Iterator[Move]:
        bare = self._bare(place, state[place])
        ledger: Ledger = self.parts[LEDGER].values[state[LEDGER]]
        for form in successes(call, bare):
            yield from self._going_on(node, (place, state[place]), form, ledger)
        spent = ledger.spend("failures")
        if spent:
            self.happened.add(f"{call.point}: may fail")
            for form in failures(call, bare, blocking=self._workload.blocking):
                yield from self._going_on(node, (place, state[place]), form, spent)
        spent = ledger.spend("crashes")
        if spent:
            for form in interrupted(call, bare):
                now = self._changed(place, state[place], form, spent)
                yield self._dying(Label(call.point, about(call), form.form), node, now)

    def _going_on(self, node: Node, where: tuple[int, int], form: Form, ledger: Ledger) -> Iterator[Move]:
        call: Any = node.call
        label = Label(call.point, about(call), form.form)
        changed = self._changed(*where, form, ledger)
        yield from self._continued(self.trie.child(node, form.outcome), label, changed)

    def _continued(self, node: Node, label: Label, now: Changed) -> Iterator[Move]:
        """Go on to the next call; a handler that runs before it ends as chosen here: nobody else can see when it does."""
        for after, ledger, ends, marks in self._choices(node, now.ledger, (), ()):
            said = label._replace(about=label.about + "".join(f"; the handler of {name} {end.value}" for name, end in ends))
            self.happened.update(f"handler: {end.value}" for _, end in ends)
            if ends and ends[-1][1] is End.KILLS:
                yield self._dying(said, node, now._replace(ledger=ledger))
            else:
                worker = IDLE if after.call is None and after.escaped is None else after.number
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
        rollback = Operation("rollback", self._workload_place, roll_back, (node.batch[0].receipt,))
        return Move(label, now.place, now.part, self._ledger(now.ledger), IDLE, (rollback,))

    def _changed(self, place: int, before: int, form: Form, ledger: Ledger) -> Changed:
        for operation in form.pending:
            ledger = ledger.later(place, operation)
        if isinstance(form.outcome, tuple) and Answer.REFUSED in form.outcome:
            ledger = ledger.excuse()
        return Changed(place, self._number(place, before, form.part), ledger)

    # What an idle worker receives.

    def _receiving(self, broker: int, ledger: int) -> list[Move]:
        key = (broker, ledger)
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = list(self._arriving(broker, self.parts[LEDGER].values[ledger]))
            self.happened.update(move.label.kind for move in found)
        return found

    def _arriving(self, number: int, ledger: Ledger) -> Iterator[Move]:
        for world, batch in self._batches_of(self._bare(BROKER, number)):
            said = Label("receive", ", ".join(delivery_text(delivery) for delivery in batch), "applied")
            now = Changed(BROKER, self._number(BROKER, number, world), ledger)
            yield from self._continued(self.trie.root(batch), said, now)
            spent = ledger.spend("failures")
            if spent:
                yield Move(said._replace(form="answer lost"), BROKER, now.part, self._ledger(spent), IDLE, ())

    def _batches_of(self, world: Any) -> Iterator[tuple[Any, tuple[Delivery, ...]]]:
        """Take any deliveries in any number: a later one may come before an earlier one. Equal ones are interchangeable."""
        transports = self._programs.transports
        lease = transports.Lease(transports.NEVER - 1, transports.NEVER)
        free = [entry for entry in world.entries if not entry.held_until]
        seen = set()
        for chosen in chain.from_iterable(combinations(free, size) for size in range(1, self._batch + 1)):
            alike = tuple((entry.headers, entry.body, entry.times, entry.suspect) for entry in chosen)
            if alike not in seen:
                seen.add(alike)
                first = replace(world, entries=(*chosen, *(entry for entry in world.entries if entry not in chosen)))
                yield transports.receive(first, ENDPOINT, len(chosen), lease)

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
        ledger: Ledger = self.parts[LEDGER].values[state[LEDGER]]
        for index, (place, _) in enumerate(ledger.pending):
            landing = (state[LEDGER], index, state[place])
            if landing not in self._landings:
                self._landings[landing] = list(self._landing(ledger, index, state[place]))
                self.happened.update(move.label.kind for move in self._landings[landing])
            found += self._landings[landing]
        return found

    def _held_in(self, broker: int) -> tuple[Any, ...]:
        found = self._held.get(broker)
        if found is None:
            entries = self._bare(BROKER, broker).entries
            found = self._held[broker] = tuple(entry.receipt for entry in entries if entry.held_until)
        return found

    def _expiring(self, broker: int, ledger: int, receipt: Any) -> Move | None:
        """End the lease of a delivery whose worker is still at work."""
        spent = self.parts[LEDGER].values[ledger].spend("expiries")
        if spent is None:
            return None
        label = Label("lease", f"of {receipt_text(receipt)}", "ends with its worker at work")
        self.happened.add(label.kind)
        world, _ = self._programs.transports.expire(self._bare(BROKER, broker), receipt)
        return Move(label, BROKER, self._number(BROKER, broker, world), self._ledger(spent.excuse()), IDLE, ())

    def _landing(self, ledger: Ledger, index: int, before: int) -> Iterator[Move]:
        place, operation = ledger.pending[index]
        rest = replace(ledger, pending=(*ledger.pending[:index], *ledger.pending[index + 1 :]))
        for form in successes(operation, self._bare(place, before)):
            part = self._number(place, before, form.part)
            label = Label(operation.point, about(operation), f"lands now, {form.form}")
            yield Move(label, place, part, self._ledger(rest), IDLE, ())

    # Parts of the world, in the form in which equal ones are equal.

    def _bare(self, place: int, number: int) -> Any:
        part = self.parts[place].values[number]
        return part.broker if place == BROKER else part

    def _number(self, place: int, before: int, part: Any) -> int:
        if place == STORE:
            return self.parts[STORE].number(in_order(part))
        if place == BROKER:
            return self.parts[BROKER].number(drained(self.parts[BROKER].values[before], part))
        return self.parts[place].number(part)

    def _arrivals(self) -> BrokerPart:
        transports = self._programs.transports
        queues = (Topology(endpoint=ENDPOINT), Topology(endpoint=SINK))
        world, _ = transports.declare(transports.BrokerWorld(), queues)
        world, _ = transports.send(world, tuple(arrival.send() for arrival in self._workload.arrivals), transports.Rules())
        return BrokerPart(world)
