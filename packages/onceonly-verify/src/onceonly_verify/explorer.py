"""The search: breadth first through every state, so that the first bad one found is one of the nearest."""

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol

from msgspec import Struct

from onceonly_verify.world import Label, State

Successor = tuple[Label, int, State]


class Transitions(Protocol):
    initial: State

    def successors(self, state: State) -> list[Successor]:
        """List what may happen next."""

    def is_at_rest(self, state: State) -> bool:
        """Return whether nothing is left to do."""


class StateAuditor(Protocol):
    """What says whether a state is bad, and why; empty text when it is not."""

    def violation(self, state: State) -> str:
        """Return what is wrong with any state."""

    def violation_at_rest(self, state: State) -> str:
        """Return what is wrong with a state in which nothing is left to do."""


class ExploredStep(Struct, frozen=True):
    """One step of a history: who (a letter for each worker, or the world), what, and what came of it."""

    who: str
    what: str
    outcome: str


class Exploration(Struct, frozen=True, kw_only=True):
    """What a search found. `stuck` counts the states from which rest cannot be reached; None when that was not looked at.

    `steps` is the shortest way to the violation, or to a stuck state.
    """

    states: int
    transitions: int
    seconds: float
    complete: bool
    resting: int = 0
    violation: str = ""
    stuck: int | None = None
    steps: tuple[ExploredStep, ...] = ()


class Explorer:
    """Searches one world; `tick` is called now and then with the states and transitions so far."""

    def __init__(self, world: Transitions, auditor: StateAuditor, tick: Callable[[int, int], None] | None = None) -> None:
        self._world = world
        self._auditor = auditor
        self._tick = tick
        self._numbers: dict[State, int] = {world.initial: 0}
        self._states: list[State] = [world.initial]
        self._parents = array("i", [-1])
        self._sources, self._targets = array("i"), array("i")
        self._resting: list[int] = []

    def explore(self, limit: int) -> Exploration:
        """Search until everything is seen, something bad is found, or `limit` states are known."""
        began = time.perf_counter()
        with _without_collector():  # nothing here is garbage: looking for it among millions of states costs a third of the time
            violation, at = self._search(limit)
        complete = not violation and at < 0
        stuck = self._stuck_states() if complete else []
        if stuck:
            at = stuck[0]
        return Exploration(
            states=len(self._states),
            transitions=len(self._sources),
            seconds=time.perf_counter() - began,
            complete=complete,
            resting=len(self._resting),
            violation=violation,
            stuck=len(stuck) if complete else None,
            steps=tuple(self._path_to(at)) if violation or stuck else (),
        )

    def _search(self, limit: int) -> tuple[str, int]:
        """Return the first violation and its state; no violation with a state means that the limit was reached there."""
        violation = self._auditor.violation(self._world.initial)
        if violation:
            return violation, 0
        for number, state in enumerate(self._states):  # the list grows while it is walked: that is the queue
            if self._world.is_at_rest(state):
                self._resting.append(number)
                violation = self._auditor.violation_at_rest(state)
                if violation:
                    return violation, number
            violation = self._expand(number, state)
            if violation:
                return violation, len(self._states) - 1
            if len(self._states) > limit:
                return "", number
            if self._tick and number % 4096 == 0:
                self._tick(len(self._states), len(self._sources))
        return "", -1

    def _expand(self, number: int, state: State) -> str:
        numbers, find_violation = self._numbers, self._auditor.violation
        for _, _, after in self._world.successors(state):
            target = numbers.get(after)
            if target is None:
                target = numbers[after] = len(self._states)
                self._states.append(after)
                self._parents.append(number)
                violation = find_violation(after)
                if violation:
                    return violation
            self._sources.append(number)
            self._targets.append(target)
        return ""

    def _stuck_states(self) -> list[int]:
        """List the states from which no state at rest can be reached, by walking backwards from those at rest."""
        offsets = array("i", bytes(4 * (len(self._states) + 1)))
        for target in self._targets:
            offsets[target + 1] += 1
        for index in range(len(self._states)):
            offsets[index + 1] += offsets[index]
        fill = array("i", offsets)
        into = array("i", bytes(4 * len(self._targets)))
        for source, target in zip(self._sources, self._targets, strict=True):
            into[fill[target]] = source
            fill[target] += 1
        reached = bytearray(len(self._states))
        todo = list(self._resting)
        for number in todo:
            reached[number] = 1
        while todo:
            number = todo.pop()
            for source in into[offsets[number] : offsets[number + 1]]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        return [number for number, seen in enumerate(reached) if not seen]

    def _path_to(self, number: int) -> Iterator[ExploredStep]:
        way = [number]
        while self._parents[way[-1]] >= 0:
            way.append(self._parents[way[-1]])
        states = [self._states[number] for number in reversed(way)]
        busy = len(states[0]) - FIRST_WORKER
        names = [chr(ord("A") + index) for index in range(busy)]
        for before, after in pairwise(states):
            label, who = next((label, who) for label, who, state in self._world.successors(before) if state == after)
            yield ExploredStep(
                f"worker {names[who]}" if who >= 0 else "the world", f"{label.point} {label.about}".strip(), label.form
            )
            if who >= 0:
                names = _reordered(names, before, who, after)


@contextmanager
def _without_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


FIRST_WORKER = 4


def _reordered(names: list[str], before: State, who: int, after: State) -> list[str]:
    """Follow the workers' names through the sorting of their numbers."""
    others = [(number, name) for i, (number, name) in enumerate(zip(before[FIRST_WORKER:], names, strict=True)) if i != who]
    left = list(after[FIRST_WORKER:])
    for number, _ in others:
        left.remove(number)
    return [name for _, name in sorted([*others, (left[0], names[who])], key=lambda pair: pair[0])]
