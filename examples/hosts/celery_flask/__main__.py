"""Run the application and its control runs under kills: `python -m examples.hosts.celery_flask [rabbitmq|redis]`.

With `--all` Celery's `worker_deduplicate_successful_tasks`, celery-once and django-celery-outbox run as well, each with the
same kills. `pip install '.[bench]'` installs the two packages.
"""

import argparse
import asyncio
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table

from examples.hosts.celery_flask.running import PROGRAMS, Counts, Places, run

FEW = ("defaults", "acks_late", "exactly_once")


def table_of(runs: list[Counts]) -> Table:
    """Return the numbers of several runs, a line for each."""
    table = Table(title=f"Flask and Celery on {runs[0].broker}" if runs else "")
    for name in ("program", *(each.replace("_", " ") for each in Counts._fields[2:])):
        table.add_column(name, justify="left" if name == "program" else "right")
    for each in runs:
        table.add_row(each.program, *map(str, each[2:]))
    return table


def main() -> None:
    """Run the programs and print the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.hosts.celery_flask")
    parser.add_argument("broker", nargs="?", choices=("rabbitmq", "redis"), default="rabbitmq")
    parser.add_argument("--all", action="store_true", help="Run the other libraries as well.")
    parser.add_argument("--program", action="append", choices=tuple(PROGRAMS), help="Run this program; may be repeated.")
    parser.add_argument("--orders", type=int, default=240, help="Orders of each run [default: 240].")
    parser.add_argument("--kills", type=int, default=24, help="SIGKILLs of each run [default: 24].")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the moments of the kills [default: 1].")
    chosen = parser.parse_args()
    programs = [PROGRAMS[name] for name in chosen.program or (PROGRAMS if chosen.all else FEW)]
    places = Places.local(chosen.broker)
    runs: list[Counts] = []
    for each in programs:
        if each.needs and find_spec(each.needs) is None:
            print(f"{each.name}: {each.needs} is not installed")
            continue
        runs.append(asyncio.run(run(each, places, orders=chosen.orders, kills=chosen.kills, seed=chosen.seed)))
    Console(width=160).print(table_of(runs))


if __name__ == "__main__":
    main()
