"""What is left out of the search, because no history needs it: orders of things that nobody could tell apart.

Each is sound by a reason of its own, given beside it. Turned off, more states are seen, as many at rest, and nothing else.
"""

from typing import Any

from msgspec.structs import replace

from onceonly.drivers.memory import Operation, Raises
from onceonly.verify.asking import Call
from onceonly.verify.faults import do, successes
from onceonly.verify.forms import is_alone
from onceonly.verify.parts import Parts
from onceonly.verify.roles import Cast
from onceonly.verify.trie import Node
from onceonly.verify.workload import SINK
from onceonly.verify.world import BROKER, LEDGER


class Reductions:
    """Tells what happens at once, and what may go first."""

    def __init__(self, parts: Parts, cast: Cast, transports: Any, *, nodes: list[Node], failures: int) -> None:
        """Reduce histories in which `failures` calls may fail; `nodes` are the workers', a list that grows."""
        self.happened: set[str] = set()
        """Every kind of thing that happened, here and in the environment."""
        self.quiet: set[int] = set()
        """Ledgers with which nothing can happen by itself, as far as they were asked about."""
        self._parts = parts
        self._cast = cast
        self._transports = transports
        self._nodes = nodes
        self._failures = failures
        self._left: dict[tuple[int, int, tuple[int, ...], bool], tuple[int, int]] = {}
        self._landed: dict[tuple[int, ...], list[int]] = {}
        self._calm: dict[int, bool] = {}
        self._commuting: dict[tuple[int, int, int], bool] = {}

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
                behind = ended and after.left.failures == self._failures
                after = replace(after.excuse() if is_alone(entry) else after, left_behind=after.left_behind or behind)
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
            found[LEDGER] = self._parts.ledger_number(replace(ledger, pending=tuple(kept)))
        return found

    def is_calm(self, ledger: int) -> bool:
        """Tell whether no call can fail or be interrupted any more; notes where nothing can happen by itself either."""
        found = self._calm.get(ledger)
        if found is None:
            known = self._parts.ledger(ledger)
            found = self._calm[ledger] = not (known.left.crashes or known.left.failures)
            if not (known.left.expiries or known.pending):
                self.quiet.add(ledger)
        return found

    def commutes(self, worker: int, broker: int, ledger: int) -> bool:
        """Tell whether a worker's call may be made before all that others may do: they cannot tell when it was."""
        key = (worker, broker, ledger)
        found = self._commuting.get(key)
        if found is None:
            found = self._commuting[key] = self._is_independent(self._nodes[worker].call, broker, ledger)
        return found

    def _is_independent(self, call: Call | None, broker: int, ledger: int) -> bool:
        """Tell whether a call can neither fail nor meet anybody: nobody reads the sink, nobody else settles what is held."""
        known = self._parts.ledger(ledger)
        if not isinstance(call, Operation):
            return False
        if call.point == "send":
            return all(send.to == SINK for send in call.arguments[0])
        settled = call.point in {"ack", "release"} and not known.left.expiries
        late = any(operation.point in {"ack", "release"} for _, operation in known.pending)
        return settled and not late and set(call.arguments[0]) <= set(self._parts.held(broker))


def makes_no_difference(operation: Operation, part: Any) -> bool:
    """Tell whether it is all the same when a call that is under way lands: it changes nothing, or what nobody reads."""
    if operation.point == "commit":  # its claims are committed by another unit, for good
        return isinstance(do(operation, part)[1], Raises)
    if operation.point == "release":  # what it is about is gone, for good
        numbers = {entry.number for entry in part.entries}
        return not any(receipt.number in numbers for receipt in operation.arguments[0])
    if operation.point == "send":  # nobody reads the sink
        return all(send.to == SINK for send in operation.arguments[0])
    return all(form.part == part for form in successes(operation, part))  # without effect once, so for good
