"""The time at which a run starts no further test: ONCEONLY_UNTIL, in seconds since 1970.

Continuous integration has a limit, and machines differ by a factor of two. What is left out is said in the last lines, with its
number. Tests that are under way are not interrupted.
"""

import os
import time
from collections.abc import Sequence

VARIABLE = "ONCEONLY_UNTIL"
REASON = "the time of this run was over"


def is_over() -> bool:
    """Return whether the time is over. It never is without a limit. Raises ValueError for one that is no number."""
    until = os.environ.get(VARIABLE)
    return bool(until) and time.time() >= float(until or 0)


def left_out(reasons: Sequence[str]) -> list[str]:
    """Return the lines about tests that were left out, from the reasons of all tests that were skipped."""
    count = sum(REASON in reason for reason in reasons)
    return [f"!!! NOT RUN: {count} tests, because {REASON} ({VARIABLE})"] if count else []
