"""Measure what a cold start takes of onceonly: `python -m examples.hosts.aws_lambda.cold_start`.

imports    onceonly's own modules, by `-X importtime`, of a function on SQLite and SQS that has handled a message; and their CPU
           time, which a busy machine changes less
bytecode   the modules were compiled before. Without it, each cold start compiles them: nothing can be written on Lambda
opening    the endpoint is opened a second time, in memory: no imports, no driver and no network
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from onceonly import Endpoint

PROGRAM = """
import os, sys
from onceonly import Endpoint
from onceonly.integrations.aws_lambda import sqs_handler

shop = Endpoint("shop", store=f"sqlite:///{sys.argv[1]}/shop.db", transport="sqs://key:secret@eu-central-1?endpoint=http://127.0.0.1:9")

@shop.handler(type="Any")
def handle(order: dict[str, object]) -> None:
    pass

record = {"messageId": "1", "body": "{}", "eventSource": "aws:sqs"}
assert sqs_handler(shop)({"Records": [record]}, None) == {"batchItemFailures": []}
print(*[name for name in sys.modules if name.split(".")[0] == "onceonly"])
"""
"""A function. SQS is not called, because the handler sends nothing. It prints the modules that it has imported."""
END = """
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # as Lambda ends a process: nothing is closed
"""
LONGEST_SECONDS = 120.0
COUNTING = """
import builtins, time
imported, within, spent = builtins.__import__, [0.0], []

def count(name, globals=None, locals=None, fromlist=(), level=0):
    began = time.process_time()
    within.append(0.0)
    try:
        return imported(name, globals, locals, fromlist, level)
    finally:
        whole = time.process_time() - began
        own = whole - within.pop()
        within[-1] += whole
        if (globals["__name__"] if level else name).split(".")[0] == "onceonly":
            spent.append(own)

builtins.__import__ = count
"""
"""Counts the CPU time of onceonly's own modules, each without what it imports."""


class Took(NamedTuple):
    """Milliseconds of each run."""

    runs: list[float]

    def __str__(self) -> str:
        """The least and the median."""
        return f"{min(self.runs):6.0f} {median(self.runs):6.0f}"


def modules(cache: str) -> list[str]:
    """Return onceonly's modules that a function imports."""
    return _run([], PROGRAM, cache).stdout.split()


def by_clock(cache: str) -> float:
    """Return the milliseconds of onceonly's own modules in a new process."""
    written = _run(["-X", "importtime"], PROGRAM, cache).stderr
    lines = [line.removeprefix("import time:").split("|") for line in written.splitlines() if line.startswith("import time:")]
    return sum(int(own) for own, _, name in lines[1:] if name.strip().split(".")[0] == "onceonly") / 1000


def by_cpu(cache: str) -> float:
    """Return the same in milliseconds of CPU."""
    return float(_run([], f"{COUNTING}{PROGRAM}print(1000 * sum(spent))\n", cache).stdout.splitlines()[-1])


def _run(options: Sequence[str], program: str, cache: str) -> "subprocess.CompletedProcess[str]":
    """Run a program. An empty cache of bytecode stays empty."""
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": cache,
        "PYTHONDONTWRITEBYTECODE": "" if Path(cache).name == "kept" else "1",
    }
    with TemporaryDirectory() as folder:
        command = [sys.executable, *options, "-c", program + END, folder]
        return subprocess.run(  # noqa: S603 - of this program
            command, capture_output=True, text=True, check=True, env=environment, timeout=LONGEST_SECONDS
        )


def memory() -> "Endpoint":
    """Return an endpoint in memory."""
    from onceonly import Endpoint  # noqa: PLC0415 - measured in another process

    made = Endpoint("shop", store="memory://cold")

    @made.handler(type="Any")
    def handle(order: dict[str, object]) -> None:
        """Do nothing."""

    return made


async def opening() -> float:
    """Return the milliseconds that an opening takes."""
    made = memory()
    async with made.hosted():
        pass
    since = time.perf_counter()
    async with made.hosted():
        return (time.perf_counter() - since) * 1000


def main(rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each.")] = 7) -> None:
    """Measure, and print the least and the median of each in milliseconds."""
    with TemporaryDirectory() as folder:
        kept, none = f"{folder}/kept", f"{folder}/none"
        count = len(modules(kept))
        print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, {count} modules of onceonly, {rounds} runs")
        print(f"{'milliseconds':42} least median")
        for name, cache in (("with bytecode", kept), ("compiled at each start", none)):
            print(f"{f'imports, {name}':40} {Took([by_clock(cache) for _ in range(rounds)])}")
            print(f"{f'CPU of imports, {name}':40} {Took([by_cpu(cache) for _ in range(rounds)])}")
    print(f"{'opening, without imports and network':40} {Took([asyncio.run(opening()) for _ in range(rounds)])}")


if __name__ == "__main__":
    typer.run(main)
