"""A run with a limit of time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.again import run_again
from tests.time_limit import REASON, VARIABLE, is_over, left_out


def test_the_time_is_over_when_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit it never is."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not is_over()
    monkeypatch.setenv(VARIABLE, f"{time.time() + 3600:.0f}")
    assert not is_over()
    monkeypatch.setenv(VARIABLE, f"{time.time() - 1:.0f}")
    assert is_over()
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(ValueError, match="soon"):
        is_over()


def test_what_was_left_out_is_counted() -> None:
    """Among tests that were skipped for other reasons."""
    assert left_out(["no server", REASON, f"Skipped: {REASON}"]) == [f"!!! NOT RUN: 2 tests, because {REASON} (ONCEONLY_UNTIL)"]
    assert left_out(["no server"]) == []


@pytest.mark.slow
@pytest.mark.timeout(400)  # three interpreters start, one after the other
def test_a_run_whose_time_is_over_says_so() -> None:
    """In processes of pytest-xdist as well; the exit code is that of a run without failures."""
    words = ["-p", "no:cacheprovider", "--numprocesses", "1", str(ROOT / "tests" / "model" / "test_retry.py")]
    environment = {**os.environ, VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout
    assert f"tests, because {REASON}" in done.stdout
    assert " passed" not in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_tests_that_run_again_within_a_test_have_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That test is under way when the time is over, and would find too few of them."""
    monkeypatch.setenv(VARIABLE, "1")
    run_again(["tests/model/test_retry.py"], tmp_path / "report.xml").check(5)
