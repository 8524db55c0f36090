"""`onceonly verify --coverage`: what it prints and how it ends, when the list is complete and when it is not."""

from typing import Any

import pytest

from onceonly_verify import CHECKS, Check, command
from onceonly_verify.coverage import measurement, suite
from onceonly_verify.generated.generator import generated_modules
from tests.cli.terminal import Terminal

CHECK = next(check for check in CHECKS if check.name == "a handler that fails, and nothing else does")


@pytest.fixture
def one_check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Let there be one check."""
    monkeypatch.setattr(command, "CHECKS", (CHECK,))
    return CHECK


def listing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these places be listed."""
    monkeypatch.setattr(suite, "uncovered", lambda: dict.fromkeys(names, "no check has one"))


def test_a_hole_in_the_list_fails_the_command(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch, one_check: Check) -> None:
    """With every missing place in the list the exit code is 0. It is 1 with one too few or one too many."""
    listing(monkeypatch)
    first = onceonly("verify", "--coverage", "--json", "--jobs", "1")
    assert first.code == 1
    assert [each["algorithm"] for each in first.answer["checks"]] == [one_check.name]
    assert first.answer["mutants"] == []
    measured = first.answer["coverage"]
    assert 0 < measured["covered_lines"] < measured["lines"]
    assert 0 < measured["covered_branches"] < measured["branches"]
    assert [*measured["modules"]] == [*generated_modules()]
    missing = [each["place"] for each in measured["missing"]]

    listing(monkeypatch, *missing)
    fine = onceonly("verify", "--coverage", "--jobs", "1")
    assert fine.code == 0
    assert "no check has one" in fine.out

    hole, *rest = missing
    reached = "algorithms.settlement.give_up: await ports.dead_letters.add(letter.letter)"
    listing(monkeypatch, *rest, reached, "algorithms.delivery.nothing: return")
    bad = onceonly("verify", "--coverage", "--json", "--jobs", "1")
    assert bad.code == 1
    assert bad.err.splitlines() == [
        f"error: coverage: no check reaches, and uncovered.txt does not list: {hole}",
        f"error: coverage: uncovered.txt lists, but a check reaches: {reached}",
        "error: coverage: uncovered.txt lists, but the code does not contain: algorithms.delivery.nothing: return",
    ]
    assert bad.answer["coverage"]["listed_but_covered"] == [reached]
    assert bad.answer["coverage"]["missing"][0] == {"place": hole, "reason": None}


def test_a_part_of_the_checks_does_not_need_the_list(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other checks reach is missing here. What is listed must still not be reached."""
    listing(monkeypatch)
    done = onceonly("verify", "--coverage", "--check", CHECK.name, "--json")
    assert done.code == 0
    assert done.answer["coverage"]["complete"] is False
    reached = "algorithms.delivery.deliver: intake = sort(deliveries, ports)"
    listing(monkeypatch, reached)
    done = onceonly("verify", "--coverage", "--check", CHECK.name)
    assert (done.code, reached in done.error) == (1, True)


@pytest.mark.parametrize(
    "others",
    [
        ("--mutant", "no version check"),
        ("--replay", "found.json"),
        ("--generated",),
        ("--deep",),
        ("--schedules", "1"),
        ("--check-states", "5"),
        ("--schedules", "0"),
    ],
)
def test_coverage_runs_checks_only(onceonly: Terminal, others: tuple[str, ...]) -> None:
    """Other work is refused: it is not measured."""
    done = onceonly("verify", "--coverage", *others)
    assert done.code == 2
    assert f"--coverage cannot be combined with {others[0]}" in done.error


def test_without_the_library_nothing_runs(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""

    def gone(_name: str) -> Any:
        raise ModuleNotFoundError

    monkeypatch.setattr(measurement.importlib, "import_module", gone)
    done = onceonly("verify", "--coverage")
    assert done.code == 2
    assert "pip install 'onceonly-verify[coverage]'" in done.error
