"""Generated mutants: the same ones under the same names, each another program; survivors are counted, named and judged."""

import ast
import importlib
import inspect
import pickle
from collections.abc import Callable, Mapping
from functools import cache

import pytest
from msgspec.structs import replace

from onceonly_verify import CHECKS
from onceonly_verify.generated import runs, suite
from onceonly_verify.generated.generator import GeneratedMutant, generated_modules, generated_mutants, mutants_of
from onceonly_verify.generated.lists import ListedTwice, equivalents, known_survivors, parse
from onceonly_verify.generated.reach import CheckReach, Reach, record_reach
from onceonly_verify.generated.runs import GeneratedResult, Limits, MutantTask, run_generated, run_one
from onceonly_verify.generated.suite import GeneratedPlan, choose, summed_up, tasks_of
from onceonly_verify.invariants.batch_log import BatchLog
from onceonly_verify.mutations import change, mutated
from onceonly_verify.mutations.operations import drop, insert_first
from onceonly_verify.output import generated_json, show_generated
from onceonly_verify.step_limit import SECONDS
from onceonly_verify.trie import NotDeterministic

CHECK = next(check for check in CHECKS if check.name == "given up with its effects pending")
PARTS = 16
"""`make test` applies one mutant of sixteen."""
CODE = '''
async def serve(items: Sequence[str], ports):
    """Serve."""
    claimed = await ports.store.begin(items)
    try:
        sent = [item for item in claimed.new if item.due and item.count > 1]
        await ports.transport.send(sent)
        await ports.store.keep(claimed)
    except (ValueError, KeyError):
        claimed.abandon()
        raise
    if not sent:
        return None
    for item in items:
        item.ack()
    return sent
'''
NAMES = """\
drop transport.send #1
drop store.keep #1
drop claimed.abandon #1
drop item.ack #1
drop raise #1
drop return None #1
swap transport.send and store.keep #1
negate item.due and item.count > 1 #1
drop filter item.due and item.count > 1 #1
drop operand item.due of item.due and item.count > 1 #1
drop operand item.count > 1 of item.due and item.count > 1 #1
negate not sent #1
turn item.count > 1 #1
first of items for store.begin #1
first of claimed.new #1
first of sent for transport.send #1
first of items #1
put 2 for 1 in item.count > 1 #1
put 0 for 1 in item.count > 1 #1
drop ValueError of except (ValueError, KeyError) #1
drop KeyError of except (ValueError, KeyError) #1
drop except (ValueError, KeyError) #1
"""


@cache
def source(module: str) -> str:
    """Read a module that mutants are made of."""
    return inspect.getsource(importlib.import_module(f"onceonly.{module}"))


@cache
def shipping(module: str) -> str:
    """Write its syntax tree out."""
    return ast.dump(ast.parse(source(module)))


def test_each_operator_makes_its_mutants() -> None:
    """Calls, statements, conditions, comparisons, sequences, numbers and handlers; nothing else."""
    found = list(mutants_of("model.retry", CODE))
    assert sorted(each.name for each in found) == sorted(f"generated: model.retry.serve: {name}" for name in NAMES.splitlines())
    words = {each.name.removeprefix("generated: model.retry.serve: "): each.words for each in found}
    assert words["drop store.keep #1"] == "drops the call to `store.keep` in `serve`"
    assert words["negate not sent #1"] == "negates the condition `not sent` in `serve`"


def test_names_survive_other_formatting() -> None:
    """Comments and line breaks are gone: the same mutants, in the same order."""
    for module in ("algorithms.relay", "algorithms.intake"):
        before = list(mutants_of(module, source(module)))
        after = list(mutants_of(module, ast.unparse(ast.parse(source(module)))))
        assert [(each.name, each.words) for each in after] == [(each.name, each.words) for each in before]


def test_every_mutant_has_its_own_name_in_one_line() -> None:
    """Lists and reports are keyed by it."""
    names = [each.name for each in generated_mutants()]
    assert len(set(names)) == len(names) > 1000
    assert all(name.isprintable() and name.startswith("generated: algorithms.") for name in names)
    assert {each.change.module for each in generated_mutants()} == set(generated_modules())


def test_mutants_can_be_sent_to_another_process() -> None:
    """They are data."""
    assert pickle.loads(pickle.dumps(generated_mutants())) == generated_mutants()  # noqa: S301 - our own


@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] if part else []) for part in range(PARTS)])
def test_every_mutant_applies_and_is_another_program(part: int) -> None:
    """It compiles, and it is not the shipping code."""
    for mutant in generated_mutants()[part::PARTS]:
        tree = mutated(source(mutant.change.module), [mutant.change])
        compile(tree, mutant.name, "exec")
        assert ast.dump(tree) != shipping(mutant.change.module), mutant.name


def test_no_two_mutants_are_the_same_program() -> None:
    """The generator leaves repetitions out."""
    programs = [
        ast.dump(mutated(source(each.change.module), [each.change]))
        for each in mutants_of("algorithms.relay", source("algorithms.relay"))
    ]
    assert len(set(programs)) == len(programs)


@pytest.mark.parametrize("listed", [equivalents, known_survivors])
def test_every_listed_mutant_exists(listed: Callable[[], Mapping[str, str]]) -> None:
    """A name that no mutant has any more must leave its list."""
    assert set(listed()) <= {each.name for each in generated_mutants()}
    assert not set(equivalents()) & set(known_survivors())


def test_a_list_has_names_and_a_reason_below_them() -> None:
    """Several names may share one; a name without any, or there twice, is refused."""
    found = parse("# comment\na: drop b #1\na: drop c #1\n    one reason,\n    two lines\n\nd: drop e #1\n  another\n")
    assert found == {
        "generated: a: drop b #1": "one reason, two lines",
        "generated: a: drop c #1": "one reason, two lines",
        "generated: d: drop e #1": "another",
    }
    with pytest.raises(ListedTwice, match="no reason"):
        parse("a: drop b #1\n")
    with pytest.raises(ListedTwice, match="twice"):
        parse("a: drop b #1\n  why\na: drop b #1\n  why\n")


def test_a_seed_chooses_the_sample() -> None:
    """The same one each time, another one for another seed; equivalent mutants are never in it."""
    plan = GeneratedPlan(sample=20, seed=1)
    chosen = choose(generated_mutants(), plan)
    assert len(chosen) == 20
    assert choose(generated_mutants(), plan) == chosen
    assert choose(generated_mutants(), replace(plan, seed=2)) != chosen
    everything = choose(generated_mutants(), GeneratedPlan(sample=None))
    assert {each.name for each in everything} == {each.name for each in generated_mutants()} - set(equivalents())


def test_reach_is_recorded_line_by_line() -> None:
    """A check reaches the commit, and never a handler of errors that it does not have."""
    seen: list[CheckReach] = []
    reach = record_reach(["algorithms.outbox"], [CHECK], limit=500, jobs=1, done=seen.append)
    assert list(reach.each) == seen
    lines = source("algorithms.outbox").splitlines()
    reached = {lines[line - 1].strip() for _, line in seen[0].lines}
    assert "await unit.commit(records)" in reached
    assert "failed.append((message.identity, error.failure))" not in reached
    assert seen[0].states > 400


def test_checks_that_reach_a_line_are_tried_cheapest_first() -> None:
    """Where none is known to reach it, those that reach its function."""
    reach = Reach(
        (
            CheckReach(check="small", lines=frozenset({("m", 3)}), states=10, complete=True),
            CheckReach(check="large", lines=frozenset({("m", 3), ("m", 4)}), states=99, complete=True),
            CheckReach(check="other", lines=frozenset({("n", 4)}), states=99, complete=True),
        )
    )
    assert reach.checks_for("m", 3, 1, 9) == ("small", "large")
    assert reach.checks_for("m", 4, 1, 9) == ("large",)
    assert reach.checks_for("m", 5, 1, 9) == ("small", "large")
    assert reach.checks_for("m", 5, 5, 9) == ()


def test_a_mutant_is_caught_by_the_first_check_that_sees_it() -> None:
    """By what must hold, or by a call that must occur and does not."""
    result = run_one(_task("unforgotten", drop("_forget_and_ack"), function="finish"))
    assert (result.caught, result.check) == (True, CHECK.name)
    assert result.violation.startswith("left behind: ")
    assert 0 < result.states < 1000


def test_what_the_world_cannot_follow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not deterministic, and one that makes the world itself raise."""
    for error, words in ((NotDeterministic("another call"), "not deterministic: another call"), (KeyError(1), "KeyError: 1")):

        def explore(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(runs, "explore", explore)
        result = run_one(_task("odd", insert_first("unused = 1")))
        assert result.caught
        assert words in result.violation


def test_an_error_of_the_checker_itself_catches_no_mutant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is printed, and fails the run even if the mutant is a known survivor."""
    monkeypatch.setattr(BatchLog, "_after_begin", lambda *_, **__: {}["missing"])
    result = run_one(_task("odd", insert_first("unused = 1")))
    assert (result.caught, result.check, result.broken) == (False, CHECK.name, "the log of a batch raised KeyError('missing')")
    monkeypatch.setattr(suite, "known_survivors", lambda: {"odd": "known"})
    found = summed_up([result], GeneratedPlan(sample=None), [_mutant("odd", insert_first("unused = 1"))])
    assert not found.passed
    show_generated(found)
    assert f"(the checker failed: {result.broken}, in check {CHECK.name!r})" in capsys.readouterr().out


def test_a_mutant_that_makes_no_call_any_more_is_caught() -> None:
    """After some seconds of processor time in one step, also if it swallows the interruption."""
    for code in ("while True:\n    pass", "try:\n    while True:\n        pass\nexcept BaseException:\n    pass"):
        endless = run_one(_task("endless", insert_first(code)))
        assert (endless.caught, endless.check) == (True, CHECK.name)
        assert endless.violation == f"endless: a program made no port call for {SECONDS} seconds of processor time"
        assert endless.states < 20


def test_a_mutant_without_end_is_limited() -> None:
    """By seconds, and by states. Both have survived."""
    slow = run_one(_task("slow", insert_first("sum(range(3_000_000))"), limits=Limits(seconds=0.2)))
    assert (slow.caught, slow.complete) == (False, False)
    cut = run_one(_task("harmless", insert_first("unused = 1"), limits=Limits(check_states=50)))
    assert (cut.caught, cut.complete) == (False, False)
    assert cut.states < 500


def test_a_survivor_is_reported_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless a list says why it survives. The figures count modules, and JSON has them all."""
    mutants = [_mutant("harmless", insert_first("unused = 1")), _mutant("unforgotten", drop("_forget_and_ack"), "finish")]
    plan = GeneratedPlan(sample=None, jobs=1)
    results = run_generated([MutantTask(mutant=each, checks=(CHECK,), limits=plan.limits) for each in mutants], jobs=1)
    found = summed_up(results, plan, mutants)
    assert not found.passed
    assert [each.name for each in found.unknown] == ["harmless"]
    figures = {"total": 2, "run": 2, "caught": 1, "equivalent": 0, "percent": 50.0}
    assert generated_json(found) == {
        **figures,
        "sampled": False,
        "seed": 0,
        "survivors": [{"name": "harmless", "does": "adds `unused = 1` first in `process`", "known": None}],
        "modules": {"outbox": {**figures, "survivors": 1}},
    }
    show_generated(found)
    printed = capsys.readouterr().out
    assert "Survivors that are in no list" in printed
    assert "* harmless: adds `unused = 1` first in `process`" in printed


def test_a_listed_survivor_is_reported_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its reason is printed with it; a listed equivalent mutant is counted and does not run."""
    mutants = [_mutant("harmless", insert_first("unused = 1")), _mutant("equal", insert_first("other = 1"))]
    monkeypatch.setattr(suite, "known_survivors", lambda: {"harmless": "no check counts variables"})
    monkeypatch.setattr(suite, "equivalents", lambda: {"equal": "the variable is unused"})
    reach = Reach((CheckReach(check=CHECK.name, lines=frozenset({("algorithms.outbox", 1)}), states=1, complete=True),))
    (task,) = tasks_of(GeneratedPlan(sample=None), reach, mutants=mutants)
    assert not tasks_of(GeneratedPlan(sample=9), reach, mutants=mutants)
    sampled = summed_up([], GeneratedPlan(sample=9), mutants)
    assert [each.known for each in sampled.survivors] == ["no check counts variables"]
    assert (task.mutant.name, task.checks) == ("harmless", (CHECK,))
    found = summed_up([GeneratedResult(name="harmless", caught=False)], GeneratedPlan(sample=None), mutants)
    assert found.passed
    assert not found.sampled
    assert (found.figures.total, found.figures.equivalent, found.figures.survivors) == (2, 1, 1)
    show_generated(found)
    assert "(no check counts variables)" in capsys.readouterr().out


def _mutant(name: str, operation: object, function: str = "process") -> GeneratedMutant:
    return GeneratedMutant(name=name, change=change("algorithms.outbox", function, operation), line=1)  # type: ignore[arg-type]


def _task(name: str, operation: object, *, function: str = "process", limits: Limits | None = None) -> MutantTask:
    return MutantTask(mutant=_mutant(name, operation, function), checks=(CHECK,), limits=limits or Limits())
