"""What must hold: in every state, and when everything is at rest. The promise, as a program."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from onceonly.algorithms.intake import OTHER_BODY
from onceonly.verify.workload import Behaviour, Workload
from onceonly.verify.world import BROKER, LEDGER, LETTERS, STORE, Known, State

Row = tuple[str, str]


class Scene(Protocol):
    """What is looked at: numbered parts, and what a worker let escape."""

    parts: tuple[Known[Any], ...]

    def escaped(self, state: State) -> BaseException | None:
        """Give what a worker's program let escape, if one did."""


class Auditor:
    """Looks at states of one check. Each verdict depends on a few parts only and is remembered for them."""

    def __init__(self, environment: Scene, workload: Workload, patience: int) -> None:
        """Judge histories of this workload; after `patience` deliveries of one copy, or copies, nothing is settling."""
        self._parts = environment.parts
        self._environment = environment
        self._workload = workload
        self._patience = patience
        self._known: dict[tuple[int, ...], str] = {}

    def violation(self, state: State) -> str:
        """Say what is wrong with this state; empty when nothing is."""
        return (
            self._look((0, state[STORE], state[BROKER]), self._safe)
            or self._look((1, state[BROKER], state[LEDGER]), self._settling)
            or self._look((2, state[STORE], state[LETTERS], state[LEDGER]), self._fair)
            or self._escape(state)
        )

    def violation_at_rest(self, state: State) -> str:
        """Say what is wrong with this state, in which nothing is left to do."""
        return self._look((3, state[STORE], state[BROKER], state[LETTERS]), self._finished)

    def _look(self, key: tuple[int, ...], rule: Any) -> str:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = next(rule(*key[1:]), "")
        return found

    def _escape(self, state: State) -> str:
        error = self._environment.escaped(state)
        return f"escape: the delivery shell let {type(error).__name__} escape: {error}" if error else ""

    def _safe(self, store: int, broker: int) -> Iterator[str]:
        rows: tuple[Row, ...] = self._parts[STORE].values[store].notes
        for name, times in Counter(name for name, _ in rows).items():
            if times > 1:
                yield f"duplicate: {name!r} was handled {times} times"
        marks: dict[str, str] = {}
        ids: dict[tuple[str, str], str] = {}
        for id_, body in sorted(self._parts[BROKER].values[broker].sunk):
            name, index, mark = body.split(" ")
            if (name, mark) not in rows:
                yield f"ghost: a message of attempt {mark} of {name!r} was sent, and that attempt was never committed"
            if marks.setdefault(name, mark) != mark:
                yield f"mixed: effects of {name!r} come from attempts {marks[name]} and {mark}"
            if ids.setdefault((name, index), id_) != id_:
                yield f"fresh id: effect {index} of {name!r} was sent under two ids: receivers see two messages"

    def _settling(self, broker: int, ledger: int) -> Iterator[str]:
        world = self._parts[BROKER].values[broker].broker
        if self._parts[LEDGER].values[ledger].left_behind:
            yield "left behind: a worker ended its batch and neither acked nor released a delivery"
        if world.last > self._patience:
            yield f"endless: {world.last} copies were made, and there is no end to it"
        for entry in world.entries:
            if entry.times > self._patience:
                yield f"endless: one copy was delivered {entry.times} times, and there is no end to it"
            count = int(dict(entry.headers).get("ce-onceonlyattempts", "0"))
            excuses = self._parts[LEDGER].values[ledger].excuses
            if count > excuses:
                yield f"unfair: {entry.body.decode()!r} counts {count} failures, but it had {excuses} of its own"

    def _fair(self, store: int, letters: int, ledger: int) -> Iterator[str]:
        handled = {name for name, _ in self._parts[STORE].values[store].notes}
        excuses = self._parts[LEDGER].values[ledger].excuses
        for letter in self._parts[LETTERS].values[letters].letters:
            name = letter.body.decode()
            if letter.finish_only and name not in handled:
                yield f"wrong letter: {name!r} is kept as handled, but no attempt was committed"
            blameless = self._workload.behaviour(name) is Behaviour.WORKS and not self._workload.may_be_given_up
            if blameless and letter.reason != OTHER_BODY and not letter.finish_only:
                yield f"unfair: {name!r} was given up, but its handler never fails"
            if letter.reason != OTHER_BODY and not 0 < letter.attempts <= excuses:
                yield f"unfair: {name!r} was given up after {letter.attempts} failures, but had {excuses} of its own"

    def _finished(self, store: int, broker: int, letters: int) -> Iterator[str]:
        world = self._parts[STORE].values[store]
        marks = dict(world.notes)
        given_up = {letter.body.decode() for letter in self._parts[LETTERS].values[letters].letters}
        waiting = {letter.body.decode() for letter in self._parts[LETTERS].values[letters].letters if letter.finish_only}
        sunk = {body for _, body in self._parts[BROKER].values[broker].sunk}
        for name in sorted({arrival.name for arrival in self._workload.arrivals} - set(marks) - given_up):
            yield f"lost: {name!r} is neither handled nor a dead letter"
        for name, mark in marks.items():
            expected = {f"{name} {index} {mark}" for index in range(self._workload.effects)}
            if not expected <= sunk and name not in waiting:
                yield f"phantom: {name!r} was handled, but what it sends never arrived"
        if world.open:
            yield "leak: a unit is still open"
        for stored in world.records:
            if stored.record.identity.id not in waiting:
                yield f"leak: the record of {stored.record.identity.id!r} is still there"
        for identity, _ in world.claims:
            if identity.id not in marks and identity.id not in {a.id for a in self._workload.arrivals if a.name in marks}:
                yield f"lost: {identity.id!r} is claimed but was never handled"
