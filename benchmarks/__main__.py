"""`python -m benchmarks`: measure, show a table, and write the page."""

import asyncio
import os
import sys
from typing import Annotated

import msgspec
import typer

from benchmarks.benchmark import Benchmark, Servers, opened
from benchmarks.crew import ROOT
from benchmarks.modes import FULL, QUICK, TINY, Mode
from benchmarks.page import page
from benchmarks.report import show
from benchmarks.results import Results, fill_ratios
from benchmarks.rows import BY_NAME, ROWS, BenchmarkRow
from benchmarks.worker import new_event_loop

DATABASE, BROKER = "postgresql://root@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"
MARIADB = "mariadb://root@127.0.0.1:3306/"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


STORED = ROOT / "benchmarks" / "results" / "benchmarks.json"
"""What the page is written from."""


@app.command()
def main(  # noqa: PLR0913 - one for each option
    *,
    rows: Annotated[list[str] | None, typer.Option(help="Measure this row only; may be given several times.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes: no tuning, no growth, fewer messages.")] = False,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="A few dozen messages for each row: only the totals mean anything.")
    ] = False,
    growth: Annotated[bool, typer.Option("--growth", help="With --quick too, measure how cost grows.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the page, its picture and benchmarks/results/benchmarks.json.")
    ] = False,
    only_latency: Annotated[
        bool, typer.Option("--latency", help="Measure only the latency, and write it into the page of the last run.")
    ] = False,
    rewrite: Annotated[bool, typer.Option("--rewrite", help="Measure nothing: write the page of the last run.")] = False,
) -> None:
    """Measure onceonly against other libraries and against code written by hand, in one scenario."""
    if rewrite or only_latency:
        stored = msgspec.json.decode(STORED.read_bytes(), type=Results)
        fill_ratios(stored)
        _write(_run_latency(stored) if only_latency else stored)
        return
    mode = TINY if tiny else QUICK if quick else FULL
    if growth:
        mode = msgspec.structs.replace(mode, growth=True)
    results = _run(_chosen(rows), mode)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        show(results)
    if write:
        _write(results)
    if results.failed:
        sys.exit(f"!!! FAILED: {', '.join(results.failed)}")


def _chosen(names: list[str] | None) -> list[BenchmarkRow]:
    unknown = sorted(set(names or ()) - BY_NAME.keys())
    if unknown:
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return [row for row in ROWS if not names or row.name in names]


def _run(rows: list[BenchmarkRow], mode: Mode) -> Results:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_measure(rows, mode))


def _run_latency(stored: Results) -> Results:
    async def measure() -> Results:
        async with opened(_servers()) as place:
            return await Benchmark(place, list(ROWS), FULL, _say).measure_latency_again(stored)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(measure())


async def _measure(rows: list[BenchmarkRow], mode: Mode) -> Results:
    async with opened(_servers()) as place:
        return await Benchmark(place, rows, mode, _say).measure()


def _servers() -> Servers:
    return Servers(
        database=os.environ.get("BENCH_DATABASE", DATABASE),
        broker=os.environ.get("BENCH_BROKER", BROKER),
        mariadb=os.environ.get("BENCH_MARIADB", MARIADB),
    )


def _write(results: Results) -> None:
    from benchmarks.plot import draw  # noqa: PLC0415 - matplotlib comes with the extra only

    picture, text = ROOT / "docs" / "images" / "benchmarks.png", ROOT / "docs" / "explanation" / "benchmarks.md"
    draw(results, picture)
    STORED.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    text.write_text(page(results), encoding="utf-8")
    for path in (text, STORED, picture):
        _say(str(path.relative_to(ROOT)))


def _say(line: str) -> None:
    """Tell a person how far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
