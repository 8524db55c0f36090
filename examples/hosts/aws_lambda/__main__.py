"""Run both functions on Lambda as `examples/hosts/lambda_runtime.py` plays it: `python -m examples.hosts.aws_lambda`.

SQS and DynamoDB are the emulator ministack, which is started for the run, or what listens at the URL in ONCEONLY_SQS.
"""

import os
import sys
from contextlib import nullcontext
from enum import StrEnum
from typing import Annotated

import typer

from examples.hosts import harness, sqs
from examples.hosts.dynamodb import opened_accounts

PACKAGE = "examples.hosts.aws_lambda"


class Store(StrEnum):
    """Where orders are written: rows in PostgreSQL, or entities in DynamoDB."""

    POSTGRESQL = "postgresql"
    DYNAMODB = "dynamodb"


def host_of(store: Store, *, fifo: bool) -> harness.Host:
    """Return the host with a store and a kind of queue."""
    programs = ("control", "exactly_once") if store is Store.POSTGRESQL else ("entities_control", "entities")
    wire = sqs.FifoWire if fifo else sqs.SqsWire
    control, exactly_once = (
        [sys.executable, "-m", "examples.hosts.lambda_runtime", f"{PACKAGE}.{program}", wire.suffix] for program in programs
    )
    return harness.Host(
        "aws_lambda" + ("" if store is Store.POSTGRESQL else f"_{store}") + ("_fifo" if fifo else ""),
        wire,
        control=control,
        exactly_once=exactly_once,
        endpoint=f"{PACKAGE}.{programs[1]}:shop",
        victims=[harness.WORKERS],
        books=None if store is Store.POSTGRESQL else opened_accounts,
        is_ordered=fifo,
    )


HOSTS = {host.name: host for store in Store for fifo in (False, True) for host in [host_of(store, fifo=fifo)]}


def main(
    store: Annotated[Store, typer.Option(help="Where orders are written.")] = Store.POSTGRESQL,
    *,
    fifo: Annotated[bool, typer.Option("--fifo", help="Take the orders from a FIFO queue.")] = False,
    ids: Annotated[int, typer.Option(min=1, help="Number of orders.")] = 300,
    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 8,
) -> None:
    """Run both functions and print the table."""
    named = os.environ.get("ONCEONLY_SQS", "")
    with nullcontext(named) if named else sqs.emulator() as url:
        harness.main(host_of(store, fifo=fifo), harness.Places.local("ONCEONLY_SQS", url), ids=ids, kills=kills)


if __name__ == "__main__":
    typer.run(main)
