"""The library runs on each version of Python that it declares, with warnings as errors."""

import tomllib
from pathlib import Path
from time import monotonic

import pytest

from tests import ROOT
from tests.again import Run, run_again
from tests.servers.available import MEASURED, POSTGRESQL, RABBITMQ, need
from tests.versions.environments import PythonEnvironment, editable, made
from tests.versions.interpreters import VERSIONS, Interpreter, interpreter_of
from tests.versions.selections import NORMAL, QUICK, SUITES

LEAST_QUICK, LEAST_SUITES = 2000, 1500
LEAST_ON = {"sqlite": 200, "postgresql": 100, "rabbitmq": 40}
"""The fewest tests that must pass: of the quick ones, of the suites, and of those with a system in their names."""
ENOUGH = [f"test_a[{system}]" for system in LEAST_ON for _ in range(LEAST_SUITES)]
_OPTIONS = ("--numprocesses", "2", "--dist", "worksteal", "--timeout", "600")
"""A machine that has more to do gets more time for each test."""


def environment_for(version: str, interpreter: Interpreter) -> PythonEnvironment:
    """Return an environment like that of the tests, as the Makefile makes it."""
    makefile = (ROOT / "Makefile").read_text().splitlines()
    without_dependencies = next(line.partition(":= ")[2] for line in makefile if line.startswith("ARQ := "))
    steps = [["--constraint", "constraints.txt", *editable("dev")], ["--no-deps", without_dependencies]]
    return PythonEnvironment(f"pythons/{version}", interpreter.program, steps)


def check_suites(run: Run) -> None:
    """Check that enough tests passed, and enough on each system. Raises AssertionError."""
    run.check(LEAST_SUITES)
    found = {system: sum(system in name for name in run.passed) for system in LEAST_ON}
    few = {system: count for system, count in found.items() if count < LEAST_ON[system]}
    assert not few, f"fewer tests than {LEAST_ON} passed: {few}\n{run.output}"


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.longest
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("version", VERSIONS)
def test_everything_works_with_each_python(version: str, tmp_path: Path) -> None:
    """The tests of `make test-quick`, and the suites on SQLite, PostgreSQL and RabbitMQ."""
    for server in (POSTGRESQL, RABBITMQ):
        need(server)
    interpreter = interpreter_of(version)
    python = (str(made(environment_for(version, interpreter)).python),)
    began = monotonic()
    quick = run_again(
        ["tests", "--ignore", "tests/verify"], tmp_path / "quick", *_OPTIONS, environment=QUICK, python=python, seconds=1800
    )
    quick.check(LEAST_QUICK)
    between = monotonic()
    suites = run_again(SUITES, tmp_path / "suites", *_OPTIONS, "-m", NORMAL, python=python, seconds=3000)
    check_suites(suites)
    MEASURED.append(
        f"Python {interpreter.version}: {quick.count()} quick tests in {between - began:.0f} s,"
        f" {suites.count()} of the suites in {monotonic() - between:.0f} s"
    )


def test_a_run_that_tested_too_little_fails() -> None:
    """Control: nothing, one system less, and too few tests."""
    check_suites(Run(ENOUGH, ""))
    without = [each for each in ENOUGH if "rabbitmq" not in each]
    for wrong in (Run([], ""), Run(ENOUGH[: LEAST_SUITES - 1], ""), Run(without, "")):
        with pytest.raises(AssertionError, match="fewer"):
            check_suites(wrong)


@pytest.mark.slow
def test_a_run_with_a_deprecation_fails(tmp_path: Path) -> None:
    """Control: what a version of Python deprecates is an error in the tests that run on it."""
    (tmp_path / "test_old.py").write_text("import warnings\n\ndef test_old():\n    warnings.warn('old', DeprecationWarning)\n")
    options = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT))
    with pytest.raises(AssertionError, match="DeprecationWarning: old"):
        run_again([str(tmp_path / "test_old.py")], tmp_path / "report", *options)


def test_the_files_that_run_are_there() -> None:
    """A file that was renamed would not be run."""
    assert [each for each in SUITES if not (ROOT / each).exists()] == []


def test_the_declared_versions_are_those_that_are_tested() -> None:
    """The lowest runs all other tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [each.rpartition(" :: ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert words == [project["requires-python"].removeprefix(">="), *VERSIONS]
