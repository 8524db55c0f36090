"""`python -m benchmarks.copies`: print how many events are repeated, with kills and without, for each way."""

import asyncio
from typing import Annotated
from uuid import uuid4

import typer

from benchmarks.copies.running import QUEUES, Plan, measure


def main(  # noqa: PLR0913 - one for each option
    store: Annotated[str, typer.Option(help="A database whose tables may be created and dropped.")],
    transport: Annotated[str, typer.Option(help="A broker, without a prefix.")],
    *,
    kills: Annotated[int, typer.Option(help="SIGKILLs, spread over the run.")] = 8,
    processes: Annotated[int, typer.Option(help="Processes that handle orders at once.")] = 1,
    rate: Annotated[float, typer.Option(help="Orders a second. 0 sends all of them before the start.")] = 0.0,
    runs: Annotated[int, typer.Option(help="How often to measure each.")] = 1,
    control: Annotated[bool, typer.Option("--control", help="Wait for no dispatch, and delete by the hundred.")] = False,
    way: Annotated[list[str] | None, typer.Option(help="worker or sending [default: both].")] = None,
) -> None:
    """Measure the events that a receiver gets twice."""
    for each in way or [*QUEUES]:
        for killed in dict.fromkeys((kills, 0)):
            for _ in range(runs):
                mark = "&" if "?" in transport else "?"
                place = f"{transport}{mark}prefix=copies-{uuid4().hex[:8]}-" if "sql" not in transport else transport
                plan = Plan(
                    way=each, store=store, transport=place, kills=killed, processes=processes, rate=rate, control=control
                )
                print(f"{each}: {asyncio.run(measure(plan))}", flush=True)


typer.run(main)
