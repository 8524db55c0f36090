"""What is left out of the search, because no history needs it: orders of things that nobody could tell apart.

Each is sound by a reason of its own, given beside it. Turned off, more states are seen, as many at rest, and nothing else.
"""

from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises
from onceonly_verify.faults import do, successes
from onceonly_verify.partial_order import are_rivals, is_first
from onceonly_verify.parts import Parts
from onceonly_verify.roles import Cast
from onceonly_verify.trie import Node
from onceonly_verify.workload import SINKS
from onceonly_verify.world import BROKER, LEDGER, SPONTANEOUS, STORE, WORKERS, Ledger, State


class Reductions:
    """Tells what happens at once, and what may go first."""

    def __init__(self, parts: Parts, cast: Cast, transports: Any, *, nodes: list[Node]) -> None:
        """Reduce histories of these workers: `nodes` are theirs, a list that grows."""
        self.happened: set[str] = set()
        """Every kind of thing that happened, here and in the environment."""
        self._parts = parts
        self._cast = cast
        self._transports = transports
        self._nodes = nodes
        self._left: dict[tuple[int, int, tuple[int, ...], bool], tuple[int, int]] = {}
        self._landed: dict[tuple[int, ...], list[int]] = {}
        self._quiet: dict[int, bool] = {}
        self._places: dict[int, int] = {}
        self._rivals: dict[tuple[int, int], bool] = {}

    def abandon(self, numbers: list[int], workers: tuple[int, ...], *, ended: bool) -> None:
        """End the leases of deliveries that nobody works on any more; later ones can still be received first."""
        key = (numbers[BROKER], numbers[LEDGER], workers, ended)
        found = self._left.get(key)
        if found is None:
            found = self._left[key] = self._abandoned(*key[:3], ended=ended)
        numbers[BROKER], numbers[LEDGER] = found

    def _abandoned(self, broker: int, ledger: int, workers: tuple[int, ...], *, ended: bool) -> tuple[int, int]:
        world, after = self._parts.bare(BROKER, broker), self._parts.ledger(ledger)
        for receipt in self._parts.held(broker):
            if not any(receipt in self._nodes[number].receipts for number in workers):
                entry = self._parts.entry(receipt, broker)
                self.happened.add(f"{self._cast.label_at(entry.queue)}lease: ends")
                world, _ = self._transports.expire(world, receipt)
                after = replace(after, left_behind=after.left_behind or (ended and not after.unsettled))
        return self._parts.number(BROKER, broker, world), self._parts.ledger_number(after)

    def settled(self, *parts: int) -> list[int]:
        """Land now what is under way and makes no difference when it lands: it changes nothing, or what nobody reads."""
        found = self._landed.get(parts)
        if found is None:
            found = self._landed[parts] = list(parts)
            ledger = self._parts.ledger(parts[LEDGER])
            kept = []
            for place, operation in ledger.pending:
                if makes_no_difference(operation, self._parts.bare(place, self._parts.at(parts, place))):
                    before = self._parts.at(found, place)
                    after = do(operation, self._parts.bare(place, before))[0]
                    self._parts.put(found, place, self._parts.number(place, before, after))
                else:
                    kept.append((place, operation))
            found[LEDGER] = self._parts.ledger_number(ledger.settled(tuple(kept)))
        return found

    def is_quiet(self, ledger: int) -> bool:
        """Return whether nothing can happen by itself any more."""
        found = self._quiet.get(ledger)
        if found is None:
            known = self._parts.ledger(ledger)
            found = self._quiet[ledger] = not (known.pending or any(getattr(known.left, name) for name in SPONTANEOUS))
        return found

    def is_first(self, node: Node, where: tuple[int, int], ledger: Ledger) -> bool:
        """Return whether a call, on this part, may be made before all that others may do, if its worker has no rivals."""
        return isinstance(node.call, PortOperation) and is_first(node.call, self._parts.bare(*where), ledger, node.receipts)

    def place(self, worker: int) -> int:
        """Return the part of the world that the worker's call is about."""
        found = self._places.get(worker)
        if found is None:
            call = self._nodes[worker].call
            found = self._places[worker] = self._parts.place_of(call) if isinstance(call, PortOperation) else STORE
        return found

    def has_rivals(self, worker: int, state: State) -> bool:
        """Return whether another may settle what this one holds."""
        for other in state[WORKERS:]:
            if other != worker:
                found = self._rivals.get((worker, other))
                if found is None:
                    nodes = self._nodes
                    found = self._rivals[worker, other] = are_rivals(nodes[worker].receipts, nodes[other].receipts)
                if found:
                    return True
        return False


def makes_no_difference(operation: PortOperation, part: Any) -> bool:
    """Return whether it is all the same when a call that is under way lands: it changes nothing, or what nobody reads."""
    if operation.point == "commit":  # its claims are committed by another unit, for good
        return isinstance(do(operation, part)[1], Raises)
    if operation.point == "release":  # what it is about is gone, for good
        numbers = {entry.number for entry in part.entries}
        return not any(receipt.number in numbers for receipt in operation.arguments[0])
    if operation.point == "send":  # nobody reads the sink
        return all(send.to in SINKS for send in operation.arguments[0])
    if operation.point == "artifact-create":  # what is there already may be deleted, and then be made again
        return False
    return all(form.part == part for form in successes(operation, part))  # without effect once, so for good
