"""The last lines of a test run are there however many processes ran the tests."""

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

TESTS = ROOT / "tests"
NOWHERE = "redis://127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.timeout(400)  # three interpreters start, one after the other
def test_what_was_not_tested_is_said_at_the_end() -> None:
    """Redis is away, in another process than the one that prints: loudly, and the last line counts what ran there."""
    words = ["-p", "no:cacheprovider", "--numprocesses", "1", "-k", "entities_count_once"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"ONCEONLY_REDIS": NOWHERE}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(TESTS / "demo" / "test_demo.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
        timeout=300,
    )
    assert "!!! NOT TESTED: Redis does not answer" in done.stdout, done.stdout + done.stderr
    assert re.search(r"3 skipped", done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(400)  # four interpreters start
def test_the_last_line_counts_the_tests_of_every_process() -> None:
    """Two processes ran them, and markers left none of them out."""
    words = ["-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadfile", "-m", "not slow and not soak"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *(str(TESTS / "model" / f"test_{name}.py") for name in ("ring", "retry"))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    begun = re.search(r"2 workers \[(\d+) items\]", done.stdout)
    assert begun, done.stdout + done.stderr
    assert re.search(rf"\b{begun[1]} passed in ", done.stdout.splitlines()[-1])
