"""What the search leaves out changes nothing that it finds: with and without, the same ends, and the same faults seen."""

from functools import cache
from typing import Any

import pytest

from onceonly.verify import CHECKS, MUTANTS, Check, Mutant, environment, reductions, run_mutant
from onceonly.verify.auditor import Auditor
from onceonly.verify.environment import Environment
from onceonly.verify.explorer import Explorer
from onceonly.verify.programs import patched, shipped
from onceonly.verify.reductions import _RULES
from onceonly.verify.running import MUTANT_LIMIT, explore
from onceonly.verify.trie import Node
from onceonly.verify.workload import Workload, copies
from onceonly.verify.world import Bounds, Scale

OPTIMISTIC = Check(
    name="two copies, optimistic store, no lease ends early",
    workload=Workload(arrivals=copies("a", "a"), blocking=False),
    bounds=Bounds(failures=1),
)
NAMED = {check.name: check for check in (*CHECKS, OPTIMISTIC)}
COMPARED = (
    "one message",
    "two messages in one unit, one is unsteady",
    "two messages in one unit, and a crash",
    "a handler that fails: retry, then dead letter",
    "a handler that fails, and nothing else does",
    "a commit that is refused",
    "a message that kills its process",
    "a message that kills its process, no retries",
    "the same id with another body",
    "given up with its effects owed",
    "two effects of one message",
    OPTIMISTIC.name,
)


def found_in(check: Check, *, reduced: bool, merged: bool = True) -> tuple[set[Any], int, frozenset[str], set[Any]]:
    """Explore all: the states at rest, how many are stuck, the kinds of what happened, and each worker's every history.

    Only where equal futures are not `merged` has every history a node of its own.
    """
    world = Environment(
        check.workload, check.bounds, programs=shipped(), scale=Scale(check.workers, check.batch), reduced=reduced
    )
    if not merged:
        world.trie._foresight = 0
    search = Explorer(world, Auditor(world, check.workload, check.patience))
    found = search.explore(10**6)
    world.trie.close()
    assert found.complete, found.violation
    resting = [search._states[number] for number in search._resting]
    ends = {tuple(known.values[number] for known, number in zip(world.parts, state, strict=False)) for state in resting}
    return ends, found.stuck or 0, frozenset(world.happened), {history_of(node) for node in world.trie.nodes}


@cache
def everything_in(name: str) -> tuple[set[Any], int, frozenset[str], set[Any]]:
    """Explore a check in every order, once for all tests."""
    return found_in(NAMED[name], reduced=False)


def history_of(node: Node) -> tuple[Any, ...]:
    """Give what a worker received, and how each of its calls ended."""
    history: list[Any] = [node.batch]
    while node.parent:
        history.append(node.outcome)
        node = node.parent
    return tuple(history)


@pytest.mark.parametrize("name", COMPARED)
def test_whatever_goes_first_the_same_histories_end_in_the_same_states(name: str) -> None:
    """Everything a worker can be answered, every state in which all is at rest, and every kind of fault."""
    everything = everything_in(name)
    assert found_in(NAMED[name], reduced=True, merged=False) == everything
    assert found_in(NAMED[name], reduced=True)[:3] == everything[:3]


@pytest.mark.parametrize(
    ("point", "name"),
    [("begin", "one message"), ("forget", "one message"), ("ack", "one message"), ("commit", OPTIMISTIC.name)],
)
def test_a_call_that_goes_first_and_should_not_is_seen(point: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a rule that always says yes loses histories."""
    everything = everything_in(name)
    monkeypatch.setitem(_RULES, point, lambda _call, _part, _ledger: True)
    assert found_in(NAMED[name], reduced=True, merged=False)[3] < everything[3]


def test_a_worker_whose_delivery_another_may_settle_never_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at rivals, a late settlement meets too little."""
    everything = everything_in("one message")
    for module in (environment, reductions):
        monkeypatch.setattr(module, "are_rivals", lambda _mine, _theirs: False)
    assert found_in(NAMED["one message"], reduced=True, merged=False)[3] < everything[3]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_where_the_whole_search_catches_it(mutant: Mutant) -> None:
    """By the same check, and the history that is told is the whole search's: as short as can be."""
    told = run_mutant(mutant)
    programs = patched(mutant.patches)
    whole = ((name, explore(NAMED[name], programs, limit=MUTANT_LIMIT, reduced=False)[0]) for name in mutant.checks)
    assert (told.check, told.steps) == next((name, found.steps) for name, found in whole if found.steps)
