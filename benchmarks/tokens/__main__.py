"""`python -m benchmarks.tokens`: send messages through a chain of two endpoints with tokens, and look for what is left.

Afterwards there is no token, no record, no claim and no register row, the entities are no larger than after the first
thousand messages, and every message was handled once, however often it came; else it exits with 1. By default the store and
its tokens are one PostgreSQL database (BENCH_DATABASE), the transport is RabbitMQ (BENCH_BROKER).

Databases get tables of the run's own, dropped at the end. A place for documents must be empty, is made where it is missing,
and is empty afterwards. For an emulator of a cloud service, after `make .venv/emulators`:

    GATEWAY_PORT=4566 BIND_HOST=127.0.0.1 LOG_LEVEL=WARNING .venv/emulators-python/bin/ministack
    AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test python -m benchmarks.tokens \
        --store "dynamodb://eu-central-1/bench?endpoint=http://127.0.0.1:4566"

    .venv/emulators-node/node_modules/.bin/azurite --silent --disableTelemetry --skipApiVersionCheck --inMemoryPersistence
    python -m benchmarks.tokens --store "azure-table://devstoreaccount1:KEY@devstoreaccount1/bench?endpoint=http%3A%2F%2F127.0.0.1%3A10002%2Fdevstoreaccount1"

where KEY is azurite's public key, with its + and / and = written as %2B, %2F and %3D.
"""

import asyncio
import os
import sys
from typing import Annotated

import msgspec
import typer

from benchmarks.crew import RunFailed
from benchmarks.tokens.census import TokenCensus
from benchmarks.tokens.running import TokensJob, TokensOutcome, run
from benchmarks.worker import new_event_loop
from onceonly import WorkerSettings

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(  # noqa: PLR0913 - one option each
    *,
    messages: Annotated[int, typer.Option(min=2, help="How many distinct messages; every tenth is delivered twice.")] = 100_000,
    store: Annotated[str, typer.Option(help="The store's URL.")] = os.environ.get("BENCH_DATABASE", DATABASE),
    tokens: Annotated[str, typer.Option(help="Where tokens are; without it beside the store.")] = "",
    transport: Annotated[str, typer.Option(help="The transport's URL.")] = os.environ.get("BENCH_BROKER", BROKER),
    batch: Annotated[int, typer.Option(help="How many messages share a batch.")] = 100,
    concurrency: Annotated[int, typer.Option(help="How many batches are handled at once.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count what tokens, records and entities leave behind."""
    worker = WorkerSettings(batch_size=batch, concurrency=concurrency)
    job = TokensJob(messages=messages, store=store, tokens=tokens, transport=transport, worker=worker)
    outcome = _run(job)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(outcome)).decode())
    else:
        _show(outcome)
    if outcome.problems:
        sys.exit("".join(f"!!! {problem}\n" for problem in outcome.problems))


def _run(job: TokensJob) -> TokensOutcome:
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(run(job, _say))
    except* RunFailed as group:  # it comes through the group of tasks that runs the endpoints
        reasons = "; ".join(map(str, group.exceptions))
    sys.exit(f"!!! FAILED: {reasons}")


def _show(outcome: TokensOutcome) -> None:
    print(f"{outcome.messages:,} messages and {outcome.copies:,} copies; {outcome.refused:,} refused for want of a token")
    print(f"{outcome.seconds:g} s, {outcome.rate:,} messages/s through both endpoints")
    print(", ".join(f"{number:g} {name}" for name, number in outcome.each.items()), "for each message")
    for when, census in (("early", outcome.early), ("late", outcome.late)):
        print(f"{when}: {_words(census)}")


def _words(census: TokenCensus) -> str:
    left = ", ".join(f"{number:,} {name}" for name, number in census.left().items()) or "no token, no record, nothing left"
    return f"{census.entities} entities, the largest {census.largest:,} bytes, together {census.size:,}; {left}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
