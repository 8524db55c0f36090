"""What a worker knows: its program, its arguments and the outcomes so far, memoised so that it is one small number.

A coroutine cannot be copied, but it can be run again: given the same outcomes it makes the same calls. A node of the trie is
one such run; its call is what the worker does next. That running again does give the same calls is checked every time.

Workers with the same future are one: near its end a program often no longer differs by how it came there. Of a call that
answers nothing every outcome is known beforehand, so all that can follow is tried out, and nodes from which the same calls
follow share one number. What they did before is in the world already.
"""

from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery
from onceonly_verify.call_text import difference_text
from onceonly_verify.driver import Call, CheckerDriver
from onceonly_verify.faults import silent_answers
from onceonly_verify.step_limit import STEP_LIMIT, EndlessStep
from onceonly_verify.time_steps import Timing

Start = Callable[[tuple[Delivery, ...]], tuple[CheckerDriver, Coroutine[Any, Any, Any]]]
Run = tuple[CheckerDriver, Coroutine[Any, Any, Any]]

FORESIGHT = 3
"""Calls that are looked ahead. A longer end is not wrong, its nodes are just not recognised as equal."""


class NotDeterministic(OnceOnlyError):
    """The same program with the same outcomes made another call: it looks at something that is not an argument."""


class UnexpectedOutcome(OnceOnlyError):
    """A call that answers nothing was given another outcome than it can have: equal futures were found on a wrong ground."""


class Node:
    """A worker in the middle of a batch. `call` is None when the batch is over; `escaped` is what it raised, if it did.

    Nodes with the same future share one `number`. Where time passes, `since` is when the run began, and `at` is what the clock
    showed when the node was reached. `timed` are children that read the clock, by outcome and instant.
    """

    __slots__ = (
        "at",
        "batch",
        "call",
        "children",
        "escaped",
        "known",
        "marks",
        "number",
        "outcome",
        "parent",
        "reads",
        "receipts",
        "run",
        "since",
        "timed",
    )

    def __init__(
        self, number: int, batch: tuple[Delivery, ...], parent: "Node | None", outcome: Hashable, *, at: int = 0
    ) -> None:
        self.at = at
        self.since: int = parent.since if parent else at
        self.reads = False
        self.timed: dict[tuple[Hashable, int], Node] = {}
        self.number = number
        self.batch = batch
        self.receipts: frozenset[Hashable] = parent.receipts if parent else frozenset(delivery.receipt for delivery in batch)
        self.parent = parent
        self.outcome = outcome
        self.children: dict[Hashable, Node] = {}
        self.marks: tuple[PortOperation, ...] = ()
        self.call: Call | None = None
        self.escaped: BaseException | None = None
        self.known = False  # whether its number is the shared one
        self.run: Run | None = None  # suspended at this node's call, until a child takes it over


class Trie:
    """All the nodes of one check. The first are idle workers, one for each of their kinds."""

    def __init__(self, start: Start, idle: int = 1, *, reduced: bool = True, timing: Timing | None = None) -> None:
        """Run programs that `start` begins; without `reduced` every node keeps a number of its own.

        With `timing`, programs may read a clock, and nothing is looked ahead: what follows depends on the time as well.
        """
        self._start = start
        self._foresight = FORESIGHT if reduced and not timing else 0
        self._timing = timing
        self._per_call = timing is not None and timing.per_call
        self._futures: dict[Hashable, int] = {}
        self._roots: dict[tuple[tuple[Delivery, ...], int], Node] = {}
        self.nodes = [Node(number, (), None, None) for number in range(idle)]

    def root(self, batch: tuple[Delivery, ...], now: int = 0) -> Node:
        """Return the worker that has just received this batch."""
        found = self._roots.get((batch, now))
        if found is None:
            found = self._roots[batch, now] = self._node(batch, None, None, now)
            self._advance(found, self._start(batch), None)
            self._number(found)
        return found

    def child(self, node: Node, outcome: Hashable, now: int = 0) -> Node:
        """Return the worker after its call had this outcome, now. Raises UnexpectedOutcome."""
        found = _known_child(node, outcome, now)
        if found is None or not found.known:
            foreseen = silent_answers(node.call) if self._foresight else ()
            if foreseen and outcome not in foreseen:
                raise UnexpectedOutcome(f"{node.call}\nanswered {outcome}")
            found = self._child(node, outcome, now)
            self._number(found)
        return found

    def began(self, node: Node) -> int:
        """Return the instant from which the time is bounded that a worker may take."""
        point = node.call.point if isinstance(node.call, PortOperation) else ""
        return self._timing.bounded_since(point, node.since, node.at) if self._timing else 0

    def close(self) -> None:
        for node in self.nodes:
            if node.run:
                with suppress(RuntimeError, EndlessStep), STEP_LIMIT:  # a broken program may call even now, or not end
                    node.run[1].close()
                node.run = None

    def _child(self, node: Node, outcome: Hashable, now: int = 0) -> Node:
        found = _known_child(node, outcome, now)
        if found is None:
            found = self._node(node.batch, node, outcome, now)
            run, node.run = node.run, None
            self._advance(found, run or self._again(node), outcome)
            if found.reads or self._per_call:
                node.timed[outcome, now] = found
            else:
                node.children[outcome] = found
        return found

    def _number(self, node: Node) -> None:
        """Return the node the number of the first one of its role with the same receipts and the same future."""
        node.known = True
        key = (node.batch[0].queue, node.batch[0].receipt, node.receipts, self._future_key(node, self._foresight))
        node.number = self._futures.setdefault(key, node.number)

    def _future_key(self, node: Node, foresight: int) -> Hashable:
        """Describe all that can follow: a node that cannot be looked behind is its own description."""
        outcomes = silent_answers(node.call) if foresight else ()
        if not outcomes:
            return None if node.call is None and node.escaped is None else node
        after = [(outcome, self._child(node, outcome)) for outcome in outcomes]
        return node.call, tuple((outcome, child.marks, self._future_key(child, foresight - 1)) for outcome, child in after)

    def _node(self, batch: tuple[Delivery, ...], parent: Node | None, outcome: Hashable, now: int) -> Node:
        node = Node(len(self.nodes), batch, parent, outcome, at=now)
        self.nodes.append(node)
        return node

    def _advance(self, node: Node, run: Run, outcome: Hashable) -> None:
        driver, coroutine = run
        driver.marks.clear()
        driver.now, driver.has_read_clock = node.at, False
        try:
            with STEP_LIMIT:
                node.call = coroutine.send(outcome)
            node.run = run
        except StopIteration:
            node.call = None
        except (Exception, EndlessStep) as error:  # noqa: BLE001 - what a program lets escape is a finding, not an end of the search
            node.call, node.escaped = None, error
        node.marks = tuple(driver.marks)
        node.reads = driver.has_read_clock

    def _again(self, node: Node) -> Run:
        """Run up to this node's call once more."""
        path: list[Node] = []
        walk: Node | None = node
        while walk:
            path.append(walk)
            walk = walk.parent
        driver, coroutine = self._start(node.batch)
        for step in reversed(path):
            driver.now = step.at
            try:
                call = coroutine.send(step.outcome)
            except StopIteration:
                call = None
            except Exception as error:
                raise NotDeterministic(difference_text(step.call, error)) from error
            if call != step.call:
                coroutine.close()
                raise NotDeterministic(difference_text(step.call, call))
        return driver, coroutine


def _known_child(node: Node, outcome: Hashable, now: int) -> Node | None:
    found = node.children.get(outcome)
    return node.timed.get((outcome, now)) if found is None and node.timed else found
