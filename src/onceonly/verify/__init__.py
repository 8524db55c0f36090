"""The model checker: drives the shipping algorithms through every interleaving of small worlds with faults."""

from onceonly.verify.check import Check
from onceonly.verify.checks import CHECKS
from onceonly.verify.mutants import MUTANTS, Mutant
from onceonly.verify.results import CheckResult, MutantResult, render, verdict
from onceonly.verify.running import run_check, run_checks, run_mutant, run_mutants

__all__ = [
    "CHECKS",
    "MUTANTS",
    "Check",
    "CheckResult",
    "Mutant",
    "MutantResult",
    "render",
    "run_check",
    "run_checks",
    "run_mutant",
    "run_mutants",
    "verdict",
]
