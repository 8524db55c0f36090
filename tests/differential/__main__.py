"""Runs random programs for a while, on all databases in turn, and prints what was run.

`python -m tests.differential --minutes 60 --seed 1` repeats a run of which that was the seed.
"""

import argparse
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import SystemRandom
from tempfile import TemporaryDirectory

from tests.differential.comparison import Counts
from tests.differential.run import Runner
from tests.servers.available import mariadb_database, postgresql_database
from tests.sql.every_database import PLACES

AT_ONCE = 100
"""Programs on one database before the next one has its turn."""


@contextmanager
def place(name: str) -> Iterator[str]:
    """Make a database for the run; gives its URL."""
    if name == "sqlite":
        with TemporaryDirectory(prefix="onceonly-differential-") as folder:
            yield f"sqlite:///{folder}/shop.db"
    elif name == "mariadb":
        with mariadb_database() as url:
            yield f"{url}?prefix=diff_"
    else:
        with postgresql_database() as url:
            yield f"{url.replace('postgresql:', f'{name}:')}?prefix=diff_"


def run(minutes: float, number: int, names: list[str]) -> Counts:
    """Run for so long. Raises AssertionError with the smallest program that differs."""
    counts, until = Counts(), time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        runners = [stack.enter_context(Runner(name, stack.enter_context(place(name)), counts)) for name in names]
        while time.monotonic() < until:
            for runner in runners:
                runner.check_many(AT_ONCE, number)
                number += 1
    return counts


def main() -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to run [default: 60]")
    parser.add_argument("--seed", type=int, help="the first seed [default: a random one]")
    parser.add_argument("--database", action="append", choices=PLACES, help="only this database; repeat for several")
    chosen = parser.parse_args()
    number = SystemRandom().randrange(10**9) if chosen.seed is None else chosen.seed
    logging.disable(logging.CRITICAL)  # time-outs and failures are part of the programs
    print(f"seed: {number}", flush=True)  # noqa: T201 - a program
    try:
        counts = run(chosen.minutes, number, chosen.database or list(PLACES))
    except AssertionError as error:
        print(error)  # noqa: T201 - the same
        return 1
    print("\n".join(counts.lines()))  # noqa: T201 - the same
    return 0


if __name__ == "__main__":
    sys.exit(main())
