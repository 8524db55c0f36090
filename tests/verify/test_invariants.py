"""The lists of invariants and of what is not covered: complete, proven by mutants, and the same in the documentation."""

import ast
import re
from pathlib import Path

import pytest

import onceonly_verify
from onceonly_verify import MUTANTS, run_mutant
from onceonly_verify.invariants.kinds import AT_REST, IN_EVERY_STATE, KINDS, NOT_COVERED, kind_of, unreported

PACKAGE = Path(onceonly_verify.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "verification.md").read_text(encoding="utf-8")
WITNESSES = {
    "apart": "every message taken for one that was only held",
    "blocked": "tombstone on the client's key",
    "both": "another body given up without asking the store",
    "dead token": "sweeper does not fence an execution",
    "duplicate": "a duplicate within a batch handled twice",
    "endless": "found tombstone not acked",
    "escape": "the error of an acknowledgement raised",
    "evicted": "slice of an undispatched record forgotten",
    "forgotten": "history forgotten a step early",
    "fresh id": "fresh ids on re-dispatch",
    "ghost": "dispatch before commit",
    "half": "application's documents never written",
    "hasty": "control message delivered a step early",
    "held up": "a handler that runs on taken for an outage",
    "late": "commit without a deadline",
    "leak": "ack before forget",
    "left behind": "a message that cannot be finished left to its lease",
    "lost": "ack before processing",
    "miscopied": "attempt count lost",
    "mixed up": "fingerprint compared only once",
    "phantom": "relay: forgotten before dispatch",
    "refused": "what waits for its bucket refused",
    "stray": "an endpoint takes from another's queue",
    "stuck": "relay: records of handlers passed over",
    "torn": "a failed handler committed with the others",
    "unfair": "an outage counted as a failure",
    "unmade": "sweeper without cancel",
    "unanswered": "followed up before POST is answered",
    "unsent": "unanswered control message reported as OutcomeUnknown",
    "wrong answer": "key bound after the commit",
    "miscounted": "what is released for an unknown outcome not reported",
    "wrong unit": "a batch begun without isolation in which a handler may fail",
    "wrong look": "key of a transaction not read by a control message",
    "wrong letter": "a failed message kept as one that is handled",
}
"""For each kind a mutant that violates it."""


def reported_in(module: Path) -> set[str]:
    """Return the kinds of violations that a module reports, by the texts that it yields and returns."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    parts = [each for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values[:1]]
    parts += [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return {found.group(1) for text in texts if (found := re.match(r"([a-z]+(?: [a-z]+)?): ", text))}


def test_every_invariant_is_listed() -> None:
    """Each kind that the auditor reports, and a stuck state, which the search finds."""
    modules = [each for each in (PACKAGE / "invariants").glob("*.py") if each.name != "kinds.py"]
    assert set[str]().union(*map(reported_in, modules)) | {"stuck"} == set(KINDS)


def test_the_documentation_lists_every_invariant_in_the_same_words() -> None:
    """One row for each kind, in two tables."""
    for kinds in (IN_EVERY_STATE, AT_REST):
        rows = "\n".join(f"| {kind} | {text} |" for kind, text in kinds.items())
        assert rows in PAGE


def test_the_documentation_lists_what_is_not_covered_in_the_same_words() -> None:
    """Lines are broken for the page only."""
    section = PAGE.split("\n## What is not covered\n")[1].split("\n## ")[0]
    listed = [" ".join(each.split()) for each in section.strip().split("\n\n")[1].removeprefix("* ").split("\n* ")]
    assert tuple(listed) == NOT_COVERED


def test_an_invariant_that_no_mutant_violates_is_named() -> None:
    """A run of all mutants fails with these names."""
    assert unreported(f"{kind}: something" for kind in KINDS) == ()
    assert unreported(f"{kind}: something" for kind in KINDS if kind != "leak") == ("leak",)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
def test_a_mutant_violates_the_invariant(kind: str) -> None:
    """The mutant is caught by this very invariant."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == WITNESSES[kind])
    assert kind_of(run_mutant(mutant).violation) == kind
