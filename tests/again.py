"""Tests that are run again elsewhere, in a process of their own: with another server, interpreter or version of a package.

What has run is read from pytest's report, so that a run which tested too little fails.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from tests import ROOT
from tests.time_limit import VARIABLE


class Run(NamedTuple):
    """What a run has reported: the tests that passed, each as `module.class::name[parameters]`, and all that it printed."""

    passed: Sequence[str]
    output: str

    def count(self, chosen: Callable[[str], bool] = lambda _: True) -> int:
        """Count the passed tests whose names are chosen."""
        return sum(map(chosen, self.passed))

    def check(self, least: int) -> None:
        """Check that at least this many passed. Raises AssertionError with what was printed."""
        assert len(self.passed) >= least, f"{len(self.passed)} tests passed, fewer than {least}\n{self.output}"


def run_again(
    paths: Sequence[str],
    report: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    python: Sequence[str] = (sys.executable,),
    seconds: float = 800,
) -> Run:
    """Run these files and directories with pytest, and these variables in its environment; `report` is a file for its report.

    `python` is the command of the interpreter. The run is one process unless an option says otherwise, and it includes tests
    that are marked `slow`. It is part of a test that is under way, so the time limit of this run does not interrupt it. Raises
    AssertionError, with all that was printed, if a test has failed, and TimeoutExpired.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != VARIABLE}
    words = ("-q", "-p", "no:cacheprovider", "-n", "0", "-m", "", f"--junitxml={report}", *options)
    done = subprocess.run(
        [*python, "-m", "pytest", *words, *paths],
        cwd=ROOT,
        env={**inherited, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout
    return read_report(report, done.stdout)


def read_report(report: Path, output: str) -> Run:
    """Read what pytest has reported as JUnit's XML."""
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest has written it
    passed = [case for case in cases if not len(case)]  # a failure and a skip are elements within
    return Run(["::".join(filter(None, map(case.get, ("classname", "name")))) for case in passed], output)
