"""`onceonly verify`: what it prints and how it ends, for findings good and bad; the findings are tested elsewhere."""

from typing import TYPE_CHECKING

import pytest

from onceonly.cli import verify
from onceonly.verify import CHECKS, MUTANTS, CheckResult, MutantResult
from onceonly.verify.explorer import Step

if TYPE_CHECKING:
    from conftest import Terminal

STEPS = (Step("world", "deliver a", "to A"), Step("A", "commit", "applied"), Step("A", "crash", "dead"))
WORLD = {"algorithm": "outbox", "bound": "two copies", "states": 1200, "transitions": 3400, "seconds": 0.5, "megabytes": 30}
FINE = CheckResult(**WORLD, complete=True)
VIOLATED = CheckResult(**WORLD, complete=False, violation="a was handled twice", steps=STEPS)
STUCK = CheckResult(**WORLD, complete=True, stuck=2, steps=STEPS)
CUT_OFF = CheckResult(**WORLD, complete=False)
INCAPABLE = CheckResult(**WORLD, complete=True, missing=("commit: crash before",))
CAUGHT = MutantResult(name="ack before processing", caught=True, violation="a was lost", states=7, steps=STEPS)
SURVIVED = MutantResult(name="nothing changed", caught=False, states=9)


def let_the_checker_find(monkeypatch: pytest.MonkeyPatch, checked: CheckResult, hunted: MutantResult) -> None:
    """Let there be one check and one mutant, with these results."""

    def checks(chosen: object, *, jobs: int, progress: object, done: object) -> tuple[CheckResult, ...]:
        assert (chosen, jobs) == (CHECKS, 0)
        progress("outbox", 5, 5)
        done(checked)
        return (checked,)

    def mutants(chosen: object, *, jobs: int, done: object) -> tuple[MutantResult, ...]:
        assert (chosen, jobs) == (MUTANTS, 0)
        done(hunted)
        return (hunted,)

    monkeypatch.setattr(verify, "run_checks", checks)
    monkeypatch.setattr(verify, "run_mutants", mutants)


def test_the_answer_has_every_check_and_every_mutant(onceonly: "Terminal", monkeypatch: pytest.MonkeyPatch) -> None:
    """All well: exit code 0, as JSON and as tables."""
    let_the_checker_find(monkeypatch, FINE, CAUGHT)
    done = onceonly("verify", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.answer == {
        "checks": [WORLD | {"complete": True, "violations": 0, "stuck": 0, "missing": []}],
        "mutants": [{"name": "ack before processing", "caught": True, "violation": "a was lost", "steps": 3, "states": 7}],
    }
    tables = onceonly("verify")
    assert (tables.code, tables.err) == (0, "")
    assert "two copies" in tables.out
    assert "ack before processing" in tables.out


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (VIOLATED, "=> a was handled twice"),
        (STUCK, "nothing leads to rest"),
        (CUT_OFF, "outbox:"),
        (INCAPABLE, "never happened: commit: crash before"),
    ],
)
def test_a_finding_ends_with_exit_code_1_and_says_what_it_is(
    onceonly: "Terminal", monkeypatch: pytest.MonkeyPatch, found: CheckResult, words: str
) -> None:
    """A violation, a stuck state and a search that did not see everything are all no."""
    let_the_checker_find(monkeypatch, found, CAUGHT)
    done = onceonly("verify", "--no-mutants")
    assert done.code == 1
    assert "the promise was not shown for: outbox" in done.error
    assert words in done.out
    assert ("  2. A: commit: applied\n" in done.out) == bool(found.steps)
    assert onceonly("verify", "--no-mutants", "--json").answer["mutants"] == []


def test_a_mutant_that_survives_is_a_no(onceonly: "Terminal", monkeypatch: pytest.MonkeyPatch) -> None:
    """A checker that does not see a broken program proves nothing."""
    let_the_checker_find(monkeypatch, FINE, SURVIVED)
    done = onceonly("verify", "--json")
    assert done.code == 1
    assert "the checker is blind to: nothing changed" in done.error
    assert not done.answer["mutants"][0]["caught"]
