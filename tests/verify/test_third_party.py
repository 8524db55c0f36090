"""Calls to services that are not ours, under the checker: the shipping code holds, and what breaks it is found."""

import pytest

from onceonly_verify.checks import CHECKS
from onceonly_verify.checks.third_party import THIRD_PARTY_CHECKS
from onceonly_verify.mutants import MUTANTS
from onceonly_verify.mutants.third_party import THIRD_PARTY
from onceonly_verify.runs import run_check, run_mutant

NAMED = {check.name: check for check in CHECKS}
MEANT = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("name", [name for name in THIRD_PARTY_CHECKS if not name.startswith("time")])
def test_a_call_is_executed_once(name: str) -> None:
    """Whatever fails, comes late or comes twice."""
    found = run_check(NAMED[name])
    assert (found.complete, found.violation, found.stuck, found.missing) == (True, "", 0, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in THIRD_PARTY_CHECKS if name.startswith("time")])
def test_a_call_is_executed_once_by_a_service_that_forgets_keys(name: str) -> None:
    """Copies come at any time, also after that."""
    found = run_check(NAMED[name])
    assert (found.complete, found.violation, found.stuck, found.missing) == (True, "", 0, ())


@pytest.mark.parametrize("name", THIRD_PARTY)
def test_each_broken_version_is_found(name: str) -> None:
    """By one of the checks that it names."""
    found = run_mutant(MEANT[name])
    assert found.caught, found.violation
