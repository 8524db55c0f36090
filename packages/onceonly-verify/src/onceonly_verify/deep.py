"""Checks explored as far as a budget goes: what is not finished is reported as far as it got, and is no failure."""

import gc
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from onceonly_verify.check import Check
from onceonly_verify.checks.larger import DEEP
from onceonly_verify.processes import MEGABYTE, peak, resident
from onceonly_verify.programs import Programs
from onceonly_verify.results import CheckResult
from onceonly_verify.runs import Progress, run_check

BOUNDLESS = 2**31 - 2


class Budget(Struct, frozen=True):
    """How much time and memory the deep checks may take together: `seconds` in all, `memory` of this process in bytes."""

    seconds: float = 15 * 60
    memory: int = 8 * 2**30


class BudgetSpent(Exception):
    """The budget of a check is spent."""


def run_deep(
    budget: Budget,
    checks: Sequence[Check] = DEEP,
    *,
    progress: Progress | None = None,
    done: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """Explore checks one after another, each for its share of the time that is left; ends early at a KeyboardInterrupt."""
    results: list[CheckResult] = []
    ends = time.perf_counter() + budget.seconds
    try:
        for index, check in enumerate(checks):
            share = max(0.0, ends - time.perf_counter()) / (len(checks) - index)
            results.append(run_within(check, Budget(share, budget.memory), progress=progress))
            if done:
                done(results[-1])
    except KeyboardInterrupt:
        pass  # what was done so far is an answer
    return tuple(results)


def run_within(
    check: Check, budget: Budget, *, programs: Programs | None = None, progress: Progress | None = None
) -> CheckResult:
    """Explore one check until it is complete or its budget is spent, which is looked at every few thousand states."""
    began = time.perf_counter()
    so_far = (0, 0)

    def watch(name: str, states: int, transitions: int) -> None:
        nonlocal so_far
        so_far = states, transitions
        if progress:
            progress(name, states, transitions)
        if time.perf_counter() - began > budget.seconds or resident() > budget.memory:
            raise BudgetSpent

    try:
        return run_check(check, programs=programs, limit=BOUNDLESS, progress=watch)
    except BudgetSpent:
        return CheckResult(
            algorithm=check.name,
            bound=check.bound,
            states=so_far[0],
            transitions=so_far[1],
            seconds=time.perf_counter() - began,
            megabytes=peak() // MEGABYTE,
            complete=False,
        )
    finally:
        gc.collect()  # millions of states, and cycles among what remembers them


def holds(result: CheckResult) -> bool:
    """Return whether nothing was wrong with what was seen of a deep check."""
    return not (result.violation or result.stuck or result.missing)
