"""Run the shop on the local servers under kills: `python -m examples.hosts.django_shop`.

It prints what plain SQL counts in the table of the shop and in that of the other service, and exits with code 1 if something is
lost or doubled. With `--control` the shop is plain Django, which is meant to lose and to double. With `--invoices` a
worker of Celery writes an invoice for each order, is killed as well, and the invoices are counted.
"""

import argparse
import asyncio
import sys
from functools import partial

from rich.console import Console

from examples.hosts import harness, rabbitmq
from examples.hosts.django_shop.invoices.world import InvoiceWire, opened_invoices
from examples.hosts.django_shop.world import PACKAGE, ShopWire, opened_shop

VICTIMS = (harness.WORKERS, harness.BESIDE, harness.APPLICATION, harness.WORKERS, harness.BESIDE)
"""What is killed, in turns: both workers of gunicorn, what runs beside, and gunicorn's master without its workers."""
PATIENCE = 10.0
"""Seconds without a new invoice after which no more are expected of a control run."""


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


def host_with_invoices(places: harness.Places, *, is_control: bool) -> harness.Host:
    """Return the host with a worker of Celery, which also sends what web processes have left."""
    return harness.Host(
        "django_shop_invoices",
        partial(InvoiceWire, places.postgresql, patience=PATIENCE if is_control else None),
        control=_gunicorn(f"{PACKAGE}.settings_invoices_control"),
        exactly_once=_gunicorn(f"{PACKAGE}.settings_invoices"),
        beside=_worker("once"),
        control_beside=_worker("control"),
        victims=VICTIMS,
        books=opened_invoices,
    )


def _worker(module: str) -> list[str]:
    own = ("--concurrency=2", "--without-gossip", "--without-mingle", "--without-heartbeat")
    return [sys.executable, "-m", "celery", f"--app={PACKAGE}.invoices.{module}", "worker", "--loglevel=ERROR", *own]


def _gunicorn(settings: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gunicorn", "--config=python:examples.hosts.flask_gunicorn.settings"),
        *("-kgthread", "--threads=4", "--preload", f"--env=DJANGO_SETTINGS_MODULE={settings}", f"{PACKAGE}.wsgi"),
    ]


def main() -> None:
    """Run it once and print the table."""
    parser = argparse.ArgumentParser(prog="python -m examples.hosts.django_shop")
    parser.add_argument("--control", action="store_true", help="Run the shop without onceonly.")
    chosen_host = parser.add_mutually_exclusive_group()
    chosen_host.add_argument("--relay", action="store_true", help="Let only the relay send.")
    chosen_host.add_argument("--invoices", action="store_true", help="Run a worker of Celery, and count invoices.")
    parser.add_argument("--orders", type=int, default=300, help="Orders [default: 300].")
    parser.add_argument("--kills", type=int, default=25, help="SIGKILLs [default: 25].")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the moments of the kills [default: 1].")
    chosen = parser.parse_args()
    places = harness.Places.local("ONCEONLY_RABBITMQ", rabbitmq.URL)
    with_invoices = partial(host_with_invoices, is_control=chosen.control)
    host = with_invoices(places) if chosen.invoices else host_of(places, by_relay=chosen.relay)
    run = harness.run(host, places, is_control=chosen.control, ids=chosen.orders, kills=chosen.kills, seed=chosen.seed)
    counts = asyncio.run(run)
    Console().print(harness.table_of(host, [counts]))
    sys.exit(not counts.is_exact)


if __name__ == "__main__":
    main()
