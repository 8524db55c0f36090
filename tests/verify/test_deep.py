"""Deep checks go as far as their budget, and say how far that was; a violation on the way is still one."""

import pytest

from onceonly_verify import CHECKS, CheckResult
from onceonly_verify.deep import Budget, holds, run_deep, run_within
from onceonly_verify.mutations import change
from onceonly_verify.mutations.operations import replace
from onceonly_verify.mutations.places import argument
from onceonly_verify.processes import peak, resident
from onceonly_verify.programs import changed

NAMED = {check.name: check for check in CHECKS}
SMALL = NAMED["a handler that fails, and nothing else does"]
BIG = NAMED["two copies, blocking store"]


def test_a_check_that_fits_into_its_budget_is_complete() -> None:
    """Then it is a check like any other."""
    result = run_within(SMALL, Budget(seconds=60))
    assert result.complete
    assert result.states == 77


@pytest.mark.parametrize("budget", [Budget(seconds=0), Budget(memory=1)], ids=["time", "memory"])
def test_a_check_whose_budget_is_spent_tells_how_far_it_came(budget: Budget) -> None:
    """It is not complete, and that is no failure here."""
    result = run_within(BIG, budget)
    assert not result.complete
    assert 0 < result.states < 100_000
    assert holds(result)
    assert resident() > 1
    assert peak() > 1


@pytest.mark.slow
def test_a_violation_within_the_budget_is_found() -> None:
    """A budget is no excuse."""
    early = change(
        "algorithms.outbox", "process", replace("_commit", "dispatch(records, ports)", records=argument("_commit", 1))
    )
    result = run_within(SMALL, Budget(), programs=changed([early]))
    assert result.complete  # this handler never works
    result = run_within(BIG, Budget(seconds=60), programs=changed([early]))
    assert result.violation
    assert not holds(result)


@pytest.mark.slow
def test_time_that_one_check_does_not_need_is_left_to_the_next() -> None:
    """Each gets its share of what is left; results come as they are found."""
    seen: list[CheckResult] = []
    results = run_deep(Budget(seconds=30), [SMALL, SMALL], done=seen.append)
    assert [result.complete for result in results] == [True, True]
    assert tuple(seen) == results


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_done() -> None:
    """Ctrl-C in the second check leaves the first."""

    def interrupt(name: str, _states: int, _transitions: int) -> None:
        if name == BIG.name:
            raise KeyboardInterrupt

    results = run_deep(Budget(), [SMALL, BIG], progress=interrupt)
    assert [result.algorithm for result in results] == [SMALL.name]
