"""The parts of the world: each distinct value of a part is one number, and a state is a tuple of them.

The broker, the dead letters and the ledger have a place of their own in a state. The stores, and what is beside them (tokens,
a dedup store, things), share one, whose number stands for a tuple of numbers; behind it each is a part by itself, so that what
concerns one of them is remembered once.
"""

from collections.abc import Mapping
from typing import Any

from onceonly.adapters.memory.world import PortOperation
from onceonly_verify.faults import do
from onceonly_verify.forms import drained, in_order
from onceonly_verify.workload_ports import leaves_garbage, leaves_records
from onceonly_verify.world import BROKER, LEDGER, LETTERS, STORE, BrokerPart, Ledger, Marks, Numbering

FIRST_STORE = 4
"""From here on, places are those of the stores."""


class Parts:
    """What is known of the parts. A *place* says which part; `numbers` are a state's, or the first four of them."""

    def __init__(self, stores: Mapping[str, Any], labels: Mapping[str, str], first: tuple[BrokerPart, Any, Ledger]) -> None:
        """Begin with what the first state is made of: stores by their places' names in operations, which `labels` call them."""
        self.places = {"broker": BROKER, "dead letters": LETTERS}
        self.places |= {name: FIRST_STORE + index for index, name in enumerate(stores)}
        self.known: tuple[Numbering[Any], ...] = tuple(Numbering() for _ in range(FIRST_STORE + len(stores)))
        self._store_names = tuple(stores)
        self.busy: set[int] = set()
        """Ledgers with something under way."""
        self._labels = labels
        self._stores = self.known[FIRST_STORE:]
        ordered = {name: in_order(world) for name, world in stores.items()}
        each = tuple(known.number(world) for known, world in zip(self._stores, ordered.values(), strict=True))
        rest = (known.number(part) for known, part in zip(self.known[BROKER:], first, strict=False))
        self.first: tuple[int, ...] = (self.known[STORE].number(each), *rest)
        self._shown: tuple[int, Mapping[str, Any]] = (self.first[STORE], ordered)
        """The latest answer of `stores`, and the number that it is for: one state is looked at many times in a row."""
        self._held: dict[int, tuple[Any, ...]] = {}
        self._put: dict[tuple[int, int, int], int] = {}
        self._marked: dict[tuple[Marks, int], int] = {}
        self._pending: dict[tuple[int, tuple[str, ...], tuple[str, ...]], bool] = {}

    def place_of(self, operation: PortOperation) -> int:
        """Return which part a call is about."""
        return self.places[operation.place.name]

    def label_of(self, operation: PortOperation) -> str:
        """Return what comes before a call that nobody waits for any more."""
        return self.label_at(operation.place.name)

    def label_at(self, place: str) -> str:
        """Return what comes before what happens to a store without a call."""
        return self._labels.get(place, "")

    def at(self, numbers: tuple[int, ...] | list[int], place: int) -> int:
        if place < FIRST_STORE:
            return numbers[place]
        number: int = self.known[STORE].values[numbers[STORE]][place - FIRST_STORE]
        return number

    def has_pending(self, numbers: tuple[int, ...] | list[int], stores: tuple[str, ...], swept: tuple[str, ...] = ()) -> bool:
        """Return whether one of these stores has a record, or in one of the places `swept` something is left to sweep."""
        key = (numbers[STORE], stores, swept)
        found = self._pending.get(key)
        if found is None:
            worlds = self.stores(numbers[STORE])
            pending = any(leaves_records(worlds[name]) for name in stores)
            found = self._pending[key] = pending or any(leaves_garbage(worlds[name]) for name in swept)
        return found

    def put(self, numbers: list[int], place: int, number: int) -> None:
        if place < FIRST_STORE:
            numbers[place] = number
            return
        key = (numbers[STORE], place, number)
        found = self._put.get(key)
        if found is None:
            each = list(self.known[STORE].values[numbers[STORE]])
            each[place - FIRST_STORE] = number
            found = self._put[key] = self.known[STORE].number(tuple(each))
        numbers[STORE] = found

    def stores(self, number: int) -> Mapping[str, Any]:
        """Return every store and what is beside them, by their places' names, for a state's number at STORE."""
        if self._shown[0] != number:
            each: tuple[int, ...] = self.known[STORE].values[number]
            worlds = [known.values[at] for known, at in zip(self._stores, each, strict=True)]
            self._shown = number, dict(zip(self._store_names, worlds, strict=True))
        return self._shown[1]

    def bare(self, place: int, number: int) -> Any:
        """Return a part as its operations see it."""
        part = self.known[place].values[number]
        return part.broker if place == BROKER else part

    def ledger(self, number: int) -> Ledger:
        found: Ledger = self.known[LEDGER].values[number]
        return found

    def ledger_number(self, ledger: Ledger) -> int:
        number = self.known[LEDGER].number(ledger)
        if ledger.pending:
            self.busy.add(number)
        return number

    def held(self, broker: int) -> tuple[Any, ...]:
        """Return the receipts of what is held."""
        found = self._held.get(broker)
        if found is None:
            entries = self.bare(BROKER, broker).entries
            found = self._held[broker] = tuple(entry.receipt for entry in entries if entry.held_until)
        return found

    def entry(self, receipt: Any, broker: int) -> Any:
        """Return what is delivered under a receipt."""
        return next(entry for entry in self.bare(BROKER, broker).entries if entry.receipt == receipt)

    def number(self, place: int, before: int, part: Any) -> int:
        """Return the number of what an operation made of a part, in the form in which equal ones are equal."""
        if place >= FIRST_STORE:
            return self.known[place].number(in_order(part))
        if place == BROKER:
            return self.known[BROKER].number(drained(self.known[BROKER].values[before], part))
        return self.known[place].number(part)

    def mark(self, marks: Marks, numbers: list[int]) -> None:
        """Apply what was done to stores at once, without a call."""
        found = self._marked.get((marks, numbers[STORE]))
        if found is None:
            after = list(numbers)
            for mark in marks:
                place = self.place_of(mark)
                before = self.at(after, place)
                self.put(after, place, self.number(place, before, do(mark, self.bare(place, before))[0]))
            found = self._marked[marks, numbers[STORE]] = after[STORE]
        numbers[STORE] = found
