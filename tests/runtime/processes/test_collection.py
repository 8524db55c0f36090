"""Garbage collection of a worker process. It is a setting of a whole process, so each test has one of its own."""

import subprocess
import sys

PROGRAM = """
import asyncio, gc
from onceonly.runtime.processes.child import frozen_start

async def main():
    kept = []
    {before}
    was = gc.get_threshold()
    async with frozen_start(again_seconds=0):
        first = gc.get_freeze_count()
        kept.extend([number] for number in range(10_000))
        while gc.get_freeze_count() < first + len(kept):
            await asyncio.sleep(0)
        print(first > 1_000, gc.get_threshold())
    print((gc.get_freeze_count(), gc.get_threshold()) == (0, was))

asyncio.run(main())
"""


def said(before: str = "") -> list[str]:
    """Run the program, and return its lines."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_what_exists_at_the_start_and_a_little_later_is_frozen_until_the_end() -> None:
    """The second time includes what was made in between. Afterwards nothing is, nor what Python 3.12 freezes itself."""
    assert said("gc.set_threshold(700, 10, 10)") == ["True (2000, 10, 100)", "True"]


def test_thresholds_of_the_program_are_not_lowered() -> None:
    """Nor is a collector turned on that it has turned off by them."""
    assert said("gc.set_threshold(50_000, 20, 200)") == ["True (50000, 20, 200)", "True"]
    assert said("gc.set_threshold(0)")[0].startswith("True (0, ")
