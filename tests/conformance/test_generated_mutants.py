"""The conformance suites catch generated mutants of the SQL adapters: a sample. `python -m tests.mutants sqlite` runs all."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE, SEED = 10, 2
LIMIT_SECONDS = 900


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.repeated
def test_a_sample_of_the_mutants_is_caught() -> None:
    """A mutant that survives needs a new rule, a line in `equivalent.txt` or `outside.txt`, or one in `surviving.txt`."""
    words = [
        sys.executable,
        "-m",
        "tests.mutants",
        "sqlite",
        "--sample",
        str(SAMPLE),
        "--seed",
        str(SEED),
        "--only",
        "^sql[.]store[.]dead_letters",
    ]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
