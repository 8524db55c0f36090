"""`python -m benchmarks.telemetry`: what traces cost the endpoint of `benchmarks.handlers`, in CPU time of its process.

Each round runs the endpoint without telemetry, with a tracer whose sampler records nothing, and with one that records all. All
messages carry the context of a trace that is not sampled, except where all are sampled. "no trace" is a run without that
context and with a sampler that records nothing: it is asked for each message. The order changes with each round.
Recorded spans go through the batch processor of the SDK to an exporter that drops them.

It needs a database and a broker, uses tables and queues with a prefix of their own there, and drops them.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any

import msgspec
import typer
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

from benchmarks.handlers import BROKER, DATABASE, measure
from benchmarks.worker import new_event_loop
from onceonly.telemetry import OpenTelemetry

OFF, UNSAMPLED, NO_TRACE, SAMPLED = "off", "unsampled", "no trace", "sampled"
WAYS = (OFF, UNSAMPLED, NO_TRACE, SAMPLED)
IN_TRACE = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),)
WARM_UP = 2_000
CPU, INSTRUCTIONS = "cpu seconds per 1,000", "instructions per message"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class DroppingExporter(SpanExporter):
    """Counts spans, and drops them."""

    spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop them."""
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


@app.command()
def main(
    *,
    database: Annotated[str, typer.Option(help="The store's URL.")] = DATABASE,
    broker: Annotated[str, typer.Option(help="The transport's URL.")] = BROKER,
    messages: Annotated[int, typer.Option(help="Number of messages of each run.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Number of runs of each kind.")] = 5,
) -> None:
    """Measure, and print one line of JSON: medians, and the medians of the rounds' ratios.

    Instructions are 0, without ratios, where nothing counts them.
    """
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(OFF, database, broker, WARM_UP))
        for number in range(rounds):
            turn = number % len(WAYS)
            for way in (*WAYS[turn:], *WAYS[:turn]):
                found[way].append(runner.run(_run(way, database, broker, messages)))
    told = {what: _compared(what, found) for what in (CPU, INSTRUCTIONS)}
    print(msgspec.json.encode({**told, "load": round(os.getloadavg()[0], 1)}).decode())


def _compared(what: str, found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    values = {way: [result[what] for result in results] for way, results in found.items()}
    ratios = {
        way: round(median(a / b for a, b in zip(values[way], values[OFF], strict=True)), 3)
        for way in WAYS[1:]
        if all(values[OFF])
    }
    return {"median": {way: median(each) for way, each in values.items()}, "ratio to off": ratios}


async def _run(way: str, database: str, broker: str, messages: int) -> dict[str, Any]:
    provider = None if way == OFF else TracerProvider(sampler=ParentBased(ALWAYS_ON if way == SAMPLED else ALWAYS_OFF))
    if provider is not None:
        provider.add_span_processor(BatchSpanProcessor(DroppingExporter(), max_queue_size=1 << 16))
    telemetry = None if provider is None else OpenTelemetry(tracer_provider=provider)
    try:
        return await measure(
            database, broker, messages, telemetry=telemetry, extensions=IN_TRACE if way in (OFF, UNSAMPLED) else ()
        )
    finally:
        if provider is not None:
            provider.shutdown()


if __name__ == "__main__":
    app()
