"""The model checker: drives the shipping algorithms through every interleaving of small worlds with faults."""

from onceonly_verify.check import Check
from onceonly_verify.checks import CHECKS
from onceonly_verify.mutants import MUTANTS, Mutant
from onceonly_verify.results import CheckResult, MutantResult, all_passed, render
from onceonly_verify.runs import run_check, run_checks, run_mutant, run_mutants

__all__ = [
    "CHECKS",
    "MUTANTS",
    "Check",
    "CheckResult",
    "Mutant",
    "MutantResult",
    "all_passed",
    "render",
    "run_check",
    "run_checks",
    "run_mutant",
    "run_mutants",
]
