"""Coverage of the algorithms by the checks: what is measured, how places are named, and when the list is wrong."""

from pathlib import Path

from onceonly_verify import CHECKS
from onceonly_verify.coverage.measurement import Arcs, functions_of, run_measured
from onceonly_verify.coverage.suite import ModuleCoverage, coverage_of, findings_of, share, uncovered

CHECK = next(check for check in CHECKS if check.name == "a handler that fails, and nothing else does")
CODE = """\
LIMIT = 1


class Sender:
    async def send(self, items, limit=LIMIT):
        for item in items:
            if item.due:
                await item.send(
                    limit
                )
        if limit:
            raise ValueError  # pragma: no cover
        try:
            items.clear()
        except (KeyError,
                ValueError):
            return
        if limit:
            raise ValueError


def never():
    if LIMIT:
        return 1
    return 2
"""
SENT = frozenset({(-5, 6), (6, 7), (7, 8), (8, 6), (6, 11), (11, 13), (13, 14), (14, 18), (18, -5)})
"""A run of `send` with one item that is due."""


def covered(tmp_path: Path, code: str, arcs: Arcs) -> ModuleCoverage:
    """Return the coverage of this code by a run that executed these arcs."""
    file = tmp_path / "sender.py"
    file.write_text(code)
    return coverage_of("sender", code, functions_of([{"sender": arcs}], {"sender": file})["sender"])


def test_places_are_named_by_function_and_source(tmp_path: Path) -> None:
    """Lines that are not reached, and branches between lines that are; no comment can exclude a line."""
    found = covered(tmp_path, CODE, SENT)
    assert found.missing == (
        "sender.Sender.send: if item.due -> for item in items",
        "sender.Sender.send: raise ValueError",
        "sender.Sender.send: except (KeyError, ValueError)",
        "sender.Sender.send: return",
        "sender.Sender.send: raise ValueError #2",
        "sender.never: if LIMIT",
        "sender.never: return 1",
        "sender.never: return 2",
    )
    assert (found.covered_lines, found.lines) == (7, 14)
    assert (found.covered_branches, found.branches) == (5, 10)
    assert "sender.never: if LIMIT -> return 2" in found.places
    assert {*found.missing} < found.places


def test_another_layout_changes_no_name(tmp_path: Path) -> None:
    """Line numbers and line breaks are not part of a name."""
    moved = {line: line + 3 for line in range(1, 26)}
    arcs = frozenset((first + 3 if first > 0 else first - 3, then + 3 if then > 0 else then - 3) for first, then in SENT)
    later = covered(tmp_path, "'''Doc.'''\n\n\n" + CODE.replace("if item.due", "if (item . due)"), arcs)
    assert moved[1] == 4
    assert later.missing == covered(tmp_path, CODE, SENT).missing


def test_two_runs_add_up(tmp_path: Path) -> None:
    """One run takes one branch, and another takes the other one."""
    file = tmp_path / "sender.py"
    file.write_text(CODE)
    runs: list[dict[str, Arcs]] = [{"sender": SENT}, {"sender": frozenset({(-22, 23), (23, 24), (24, -22)})}, {}]
    both = coverage_of("sender", CODE, functions_of(runs, {"sender": file})["sender"])
    assert [name for name in both.missing if ".never" in name] == ["sender.never: return 2"]


def test_only_all_of_it_is_100_percent() -> None:
    """Rounding hides nothing."""
    assert share(2999, 3000) == 99.9
    assert share(3000, 3000) == 100
    assert share(0, 0) == 100


def test_a_check_measures_its_own_process() -> None:
    """A check reaches the lines that it must, and none of those that its world does not have."""
    (measured,) = run_measured([CHECK], jobs=1)
    assert measured.result.passed
    assert {*measured.arcs} >= {"algorithms.delivery", "algorithms.outbox"}
    assert "algorithms.sweeper" not in measured.arcs
    found = findings_of([measured.arcs], listed={}, whole=False)
    assert found.modules["algorithms.sweeper"].covered_lines == 0
    assert "algorithms.settlement.give_up: await ports.dead_letters.add(letter.letter)" not in found.total.missing
    assert "algorithms.control.check_transaction: return ControlOutcome.OVER" in found.total.missing
    assert found.complaints == []
    assert run_measured([CHECK], limit=5, jobs=1)[0].result.complete is False


def test_the_list_is_about_the_code() -> None:
    """Each listed place is in the code. `onceonly verify --coverage` finds out whether a check reaches it."""
    assert findings_of([]).gone == ()
    assert all(uncovered().values())
