"""Run the shop on the local servers under kills: `python -m examples.hosts.django_shop`.

It prints what plain SQL counts in the table of the shop and in that of the other service, and exits with code 1 if something is
lost or doubled. With `--control` the shop is plain Django, which is meant to lose and to double.
"""

import argparse
import asyncio
import sys
from functools import partial

from rich.console import Console

from examples.hosts import harness, rabbitmq
from examples.hosts.django_shop.world import PACKAGE, ShopWire, opened_shop

VICTIMS = (harness.WORKERS, harness.BESIDE, harness.APPLICATION, harness.WORKERS, harness.BESIDE)
"""What is killed, in turns: both workers of gunicorn, the relay, and gunicorn's master without its workers."""


def host_of(places: harness.Places, *, by_relay: bool = False) -> harness.Host:
    """Return the host. Web processes send messages, and the relay those that were left; or all of them, `by_relay`."""
    settings = f"{PACKAGE}.settings_relay" if by_relay else f"{PACKAGE}.settings_once"
    return harness.Host(
        "django_shop" + ("_relay" if by_relay else ""),
        partial(ShopWire, places.postgresql),
        control=_gunicorn(f"{PACKAGE}.settings"),
        exactly_once=_gunicorn(settings),
        beside=[sys.executable, "-m", f"{PACKAGE}.manage", "onceonly", "relay", f"--settings={settings}"],
        victims=VICTIMS,
        books=opened_shop,
    )


def _gunicorn(settings: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gunicorn", "--config=python:examples.hosts.flask_gunicorn.settings"),
        *("-kgthread", "--threads=4", "--preload", f"--env=DJANGO_SETTINGS_MODULE={settings}", f"{PACKAGE}.wsgi"),
    ]


def main() -> None:
    """Run it once and print the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.hosts.django_shop")
    parser.add_argument("--control", action="store_true", help="Run the shop without onceonly.")
    parser.add_argument("--relay", action="store_true", help="Let only the relay send.")
    parser.add_argument("--orders", type=int, default=300, help="Orders [default: 300].")
    parser.add_argument("--kills", type=int, default=25, help="SIGKILLs [default: 25].")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the moments of the kills [default: 1].")
    chosen = parser.parse_args()
    places = harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL)
    host = host_of(places, by_relay=chosen.relay)
    run = harness.run(host, places, is_control=chosen.control, ids=chosen.orders, kills=chosen.kills, seed=chosen.seed)
    counts = asyncio.run(run)
    Console().print(harness.table_of(host, [counts]))
    sys.exit(not counts.is_exact)


if __name__ == "__main__":
    main()
