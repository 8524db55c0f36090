"""What the search leaves out changes nothing that it finds: with and without, the same ends, and the same faults seen."""

from collections.abc import Coroutine
from functools import cache
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.world import Raises
from onceonly.ports.bundle import Ports
from onceonly_verify import CHECKS, MUTANTS, Check, Mutant, partial_order, reductions, run_mutant
from onceonly_verify.check import CHAIN, IMPATIENT, TWICE
from onceonly_verify.clock import START, WIDTH
from onceonly_verify.environment import CheckEnvironment
from onceonly_verify.explorer import Explorer
from onceonly_verify.faults import do
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import imports, replace_answer
from onceonly_verify.partial_order import _RULES
from onceonly_verify.parts import FIRST_STORE
from onceonly_verify.programs import Programs, changed, shipped
from onceonly_verify.reductions import Reductions
from onceonly_verify.roles import Batch, Role
from onceonly_verify.runs import explore
from onceonly_verify.trie import Node
from onceonly_verify.workload import Behaviour, DeduplicationMode, RingChanges, Workload, copies
from onceonly_verify.world import BROKER, LEDGER, LETTERS, STORE, Bounds, Ledger
from tests.verify.harness import RELAYING

ONE = Check(name="one message, no faults", workload=Workload(arrivals=copies("a")), bounds=Bounds())
OPTIMISTIC = Check(
    name="two copies, optimistic store, no lease ends early",
    workload=Workload(arrivals=TWICE, blocking=False),
    bounds=Bounds(failures=1),
)
CHAINED = Check(
    name="a chain, two copies", workload=Workload(arrivals=TWICE, endpoints=CHAIN), bounds=Bounds()
)  # one endpoint's copies are the other's duplicates
CHAINED_PAIR = Check(
    name="a chain, two messages", workload=Workload(arrivals=copies("a", "b"), endpoints=CHAIN), bounds=Bounds()
)
CHAINED_FAILING = Check(
    name="a chain, optimistic stores, and a failed call",
    workload=Workload(arrivals=copies("a"), endpoints=CHAIN, blocking=False),
    bounds=Bounds(failures=1),
)
THING = Check(
    name="an artifact, and a crash",
    workload=Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1),
    bounds=Bounds(crashes=1),
    workers=1,
    sweepers=1,
)
ATTEMPTS = Check(
    name="tokens of two attempts",
    workload=Workload(arrivals=TWICE, deduplication=DeduplicationMode.TOKENS),
    bounds=Bounds(),
    sweepers=1,
)
REFUSED = Check(
    name="a commit that is refused, and a unit that is over before it",
    workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.REFUSED),), retry=IMPATIENT),
    bounds=Bounds(rollbacks=1),
    workers=1,
)
CHANGED_RINGS = Check(
    name="rings, two copies at the end of a ring, and a short time",
    workload=Workload(
        copies("b", "b", instant=START + 2 * WIDTH),
        deduplication=DeduplicationMode.RING,
        quiet=True,
        changes=RingChanges(before=2, after=(4,), steps=2),
    ),
    workers=1,
    stale=1,
    janitors=1,
)
MANY = 100
WITHOUT_STARTS = changed(
    [
        change("algorithms.deaths", "", imports("onceonly.ports.run_markers", "NO_DEATHS")),
        change("algorithms.deaths", "isolate_suspects", replace_answer("run_markers.find_dead", "NO_DEATHS")),
        *next(each.changes for each in MUTANTS if each.name == "those that must run alone run without a record"),
    ]
)
"""A shell that keeps no record of starts. The shipping one asks for that record before it looks at what comes again, so it
never sees how late a settlement by another was. The reductions ask nothing about the program, so they must hold for it."""
RELAYED = "two copies, and a relay"
RELAYED_DYING = "one message, a relay, and a crash"
RELAYED_LATE = "one message, a relay, and an early lease expiry"
OPTIMISTIC_LATE = "given up while it is handled, optimistic store"
UNRECORDED_DYING = "one message, no record of starts, an early lease expiry and a crash"
UNRECORDED_FAILING = "one message, no record of starts, an early lease expiry and a failed call"
RING_LATE = "a ring, and copies that come late, optimistic store"


class World(NamedTuple):
    """What is explored: a check, and roles and a program that are perhaps not its own."""

    check: Check
    roles: tuple[Role, ...]
    programs: Programs = shipped()


class Found(NamedTuple):
    """What was found: states at rest, how many are stuck, kinds of what happened, and every history of a worker."""

    ends: set[Any]
    stuck: int | None
    happened: frozenset[str]
    histories: set[Any]


def with_a_relay(**changes: Any) -> World:
    """Put a relay beside the endpoint's own workers."""
    check = replace(ONE, **changes)
    return World(check, (*check.roles, RELAYING))


def unwatched(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Run the delivery shell without the log of its batch, which asks for a record of each start."""
    return programs.delivery.deliver(batch, ports)


def without_run_markers(bounds: Bounds) -> World:
    """Have a shell without a record of starts handle one message."""
    check = replace(ONE, bounds=bounds)
    return World(check, tuple(replace(role, program=unwatched) for role in check.roles), WITHOUT_STARTS)


WORLDS = {
    check.name: World(check, check.roles)
    for check in (*CHECKS, OPTIMISTIC, CHAINED, CHAINED_PAIR, CHAINED_FAILING, THING, ATTEMPTS, REFUSED, CHANGED_RINGS)
} | {
    RELAYED: with_a_relay(workload=Workload(arrivals=TWICE)),
    RELAYED_DYING: with_a_relay(bounds=Bounds(crashes=1)),
    RELAYED_LATE: with_a_relay(bounds=Bounds(expiries=1)),
    UNRECORDED_DYING: without_run_markers(Bounds(crashes=1, expiries=1)),
    UNRECORDED_FAILING: without_run_markers(Bounds(expiries=1, failures=1)),
}
COMPARED = (
    "one message",
    "two messages in one unit, one is unsteady",
    "two messages in one unit, and a crash",
    "a handler that fails: retry, then dead letter",
    "a handler that fails, and nothing else does",
    "a commit that is refused",
    "a message that kills its process, no retries",
    "the same id with another body",
    "given up with its effects pending",
    "two effects of one message",
    "a message that kills its process, beside one that must run alone",
    "given up while it is handled, blocking store",
    OPTIMISTIC_LATE,
    UNRECORDED_DYING,
    UNRECORDED_FAILING,
    "a relay beside a worker",
    "a committed transaction whose process died",
    "two transactions whose processes died",
    "a chain, one worker and one relay each",
    "a client that retries",
    "a control message next to a good message",
    "asked by another service for two things",
    "a chain with tokens, and a sweeper at each endpoint",
    "a chain with tokens elsewhere, a sweeper of both endpoints, and a failed call",
    "tokens in the same database, two enlisted transactions, and a relay",
    "an artifact, a relay, and an early sweep",
    "time, delays of retries, and clocks that differ",
    OPTIMISTIC.name,
    "a chain, two workers each",
    "a chain, both handlers fail",
    "a chain, two senders with one id, two effects each",
    CHAINED.name,
    CHAINED_PAIR.name,
    CHAINED_FAILING.name,
    RELAYED,
    RELAYED_DYING,
    RELAYED_LATE,
    "two entities in one batch",
    "a dedup store, two copies",
    "a dedup store, a lease that ends early",
    "a dedup store, a crash and a failed call",
    "tokens, two copies",
    "tokens and a sweeper, a crash",
    "a chain with tokens, two copies and a failed call",
    "tokens in the same database, and a relay",
    "an artifact, and early sweeps",
    "a relay, and two attempts with one key",
    "one key, two requests",
    "one key, with an entity and without",
    THING.name,
    ATTEMPTS.name,
    "a ring, copies that come late, and nothing to send",
    "a ring, two slices of one bucket, and a failed call",
    RING_LATE,
    "two messages with two effects each, and a failed call",
    "two messages that sometimes fail, with different counts",
    "a message that must run alone and fails",
    "an event with two subscribers, a dedup store",
    "two messages of one entity in a batch, its history, and a failed call",
    "a host, two copies, a crash, and a lease that ends early",
    "a host whose time ends while it redelivers",
    "a host, a handler that fails",
    "a host that gives up while a process is at work, and a relay",
    "a host, an entity and its history",
    "a key in the caller's transaction, savepoints, and a failed call",
    "a key in the caller's transaction, two requests under one key",
    "time, a control message, and a crash",
    "time, a request of another service, late and deleted",
    "a frozen host that thaws, and its transaction may be over, optimistic store",
    REFUSED.name,
    "a frozen host that thaws, and was taken for dead",
    "a frozen host that thaws, tokens elsewhere, and a sweeper meanwhile",
    "two relays on documents, a message that does not come again",
)

LARGE = {
    "one message",
    "two messages in one unit, one is unsteady",
    "two messages in one unit, and a crash",
    "a handler that fails: retry, then dead letter",
    "two effects of one message",
    "given up while it is handled, blocking store",
    OPTIMISTIC_LATE,
    "a relay beside a worker",
    "a chain, two senders with one id, two effects each",
}
"""Those that take seconds without reductions."""


def found_in(name: str, *, reduced: bool, merged: bool = True) -> Found:
    """Explore all. Only where equal futures are not `merged` has every history a node of its own."""
    check, roles, programs = WORLDS[name]
    world = CheckEnvironment(check.workload, check.bounds, programs=programs, roles=roles, reduced=reduced)
    if not merged:
        world.trie._foresight = 0
    search = Explorer(world, Auditor(world, check.workload, check.patience))
    found = search.explore(10**6)
    world.trie.close()
    assert found.complete, found.violation
    ends = {as_values(world, search._states[number]) for number in search._resting}
    return Found(ends, found.stuck, frozenset(world.happened), {history_of(node) for node in world.trie.nodes})


def as_values(world: CheckEnvironment, state: tuple[int, ...]) -> tuple[Any, ...]:
    """Say what a state is: its numbers are another world's in another search."""
    others = (world.parts.known[place].values[state[place]] for place in (BROKER, LETTERS, LEDGER))
    return (*world.parts.stores(state[STORE]), *others)


@cache
def everything_in(name: str) -> Found:
    """Explore a world in every order, once for all tests."""
    return found_in(name, reduced=False)


def history_of(node: Node) -> tuple[Any, ...]:
    """Return what a worker received, and how each of its calls ended.

    Of what is raised the kind counts, not the words: a commit that is refused may find another reason later.
    """
    history: list[Any] = [node.batch]
    while node.parent:
        outcome = node.outcome
        history.append(outcome.kind if isinstance(outcome, Raises) else outcome)
        node = node.parent
    return tuple(history)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LARGE or number % 9 else [])
        for number, name in enumerate(COMPARED)
    ],
)
def test_whatever_goes_first_the_same_histories_end_in_the_same_states(name: str) -> None:
    """Everything a worker can be answered, every state in which all is at rest, and every kind of fault."""
    everything = everything_in(name)
    assert found_in(name, reduced=True, merged=False) == everything
    assert found_in(name, reduced=True)[:3] == everything[:3]


@pytest.mark.parametrize(
    ("point", "name"),
    [
        pytest.param("begin", "one message", marks=pytest.mark.slow),
        pytest.param("forget", "one message", marks=pytest.mark.slow),
        ("ack", UNRECORDED_DYING),
        pytest.param("release", OPTIMISTIC_LATE, marks=pytest.mark.slow),
        ("commit", OPTIMISTIC.name),
        ("begin", CHAINED.name),
        ("commit", CHAINED_FAILING.name),
        ("begin", RELAYED),
        ("forget", RELAYED),
        ("forget", RELAYED_LATE),
        pytest.param("begin", "given up while it is handled, blocking store", marks=pytest.mark.slow),
        ("save", "two entities in one batch"),
        ("save", "a dedup store, two copies"),
        ("dedup-contains", "a dedup store, two copies"),
        ("dedup-add", "a dedup store, a lease that ends early"),
        ("commit", RING_LATE),
    ],
)
def test_a_call_that_goes_first_and_should_not_is_seen(point: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a rule that always says yes loses histories."""
    everything = everything_in(name)
    monkeypatch.setitem(_RULES, point, lambda _call, _part, _ledger: True)
    assert found_in(name, reduced=True, merged=False).histories < everything.histories


def test_maintenance_of_rings_goes_first_and_workers_have_the_same_histories() -> None:
    """What takes one step is made when it begins. Only answers of maintenance are left out that nobody else sees."""
    everything, reduced = everything_in(CHANGED_RINGS.name), found_in(CHANGED_RINGS.name, reduced=True, merged=False)
    assert reduced[:3] == everything[:3]
    workers = {each for each in everything.histories if not is_of_maintenance(each)}
    assert {each for each in reduced.histories if not is_of_maintenance(each)} == workers
    assert len(workers) > MANY


def is_of_maintenance(history: tuple[Any, ...]) -> bool:
    """Return whether this is the history of a run that moves the clock, changes the retention or rotates a bucket."""
    return any(delivery.queue.startswith("maintenance") for delivery in history[0])


def test_a_commit_waits_for_a_database_that_may_end_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused at once, it would hide that the connection may be closed before it."""
    everything = everything_in(REFUSED.name)
    monkeypatch.setitem(_RULES, "commit", lambda call, part, _: isinstance(do(call, part)[1], Raises))
    assert found_in(REFUSED.name, reduced=True, merged=False).histories < everything.histories


def test_a_call_must_meet_nobody_in_the_store_of_its_own_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked about the first endpoint's store, a second endpoint's commit is no unit's and goes first."""
    everything = everything_in(CHAINED_FAILING.name)
    honest = Reductions.is_first

    def asked(self: Reductions, node: Node, where: tuple[int, int], ledger: Ledger) -> bool:
        return honest(self, node, (FIRST_STORE, 0) if where[0] > FIRST_STORE else where, ledger)

    monkeypatch.setattr(Reductions, "is_first", asked)
    assert found_in(CHAINED_FAILING.name, reduced=True, merged=False).histories < everything.histories


def test_a_worker_whose_delivery_another_may_settle_never_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at rivals, a late settlement meets too little."""
    everything = everything_in(UNRECORDED_FAILING)
    for module in (partial_order, reductions):
        monkeypatch.setattr(module, "are_rivals", lambda _mine, _theirs: False)
    assert found_in(UNRECORDED_FAILING, reduced=True, merged=False).histories < everything.histories


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] if number % 12 else [])
        for number, mutant in enumerate(each for each in MUTANTS if len(each.checks) > 1)
    ],
)
def test_a_mutant_is_caught_where_the_whole_search_catches_it(mutant: Mutant) -> None:
    """By the same check: the whole search finds nothing in those before."""
    told = run_mutant(mutant)
    before = mutant.checks[: mutant.checks.index(told.check)]
    whole = [
        explore(WORLDS[name].check, changed(mutant.changes, has_log=mutant.needs_log), reduced=False)[0] for name in before
    ]
    assert not any(found.steps for found in whole)


def test_a_violation_is_told_as_the_whole_search_tells_it() -> None:
    """Its history is as short as can be, though what goes first makes it longer."""
    mutant = next(each for each in MUTANTS if each.name == "a failed message kept as one that is handled")
    check = WORLDS[mutant.checks[0]].check
    programs = changed(mutant.changes, has_log=mutant.needs_log)
    whole, _ = explore(check, programs, reduced=False)
    assert run_mutant(mutant).steps == whole.steps
    assert len(whole.steps) < len(explore(check, programs)[0].steps)
