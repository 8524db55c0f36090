"""`python -m benchmarks.start`: how soon the library is imported, a command answers, and a worker handles its first message.

Each is measured in processes of its own, which take turns: user and system CPU of the process and its children, and wall clock.
The import is what it adds to asyncio and msgspec. `onceonly run` starts with a message in its queue, on SQLite, and its time
ends when the handler starts.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import typer

ONCEONLY = ("-m", "onceonly")
BASE = "import asyncio, msgspec"
IMPORTS = {
    "import onceonly": f"{BASE}, onceonly",
    "from onceonly import Endpoint, Context, Retry": f"{BASE}; from onceonly import Endpoint, Context, Retry",
}
COMMANDS = ("--version", "--help", "nothing", "run", "send --nothing", "status --nothing", "schema create --nothing", "demo -n")
HANDLED = "handled\n"
PROGRAM = f"""
import os
from onceonly import Endpoint

shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///queue.db")

@shop.handler(type="PlaceOrder")
async def place_order(order: dict) -> None:
    os.write(2, {HANDLED.encode()!r})
"""


class Took(NamedTuple):
    """Milliseconds of CPU and of wall clock."""

    cpu: float
    wall: float


def measured(command: list[str], folder: str = ".") -> Took:
    """Run a command until it ends, and measure it."""
    began = time.perf_counter()
    return ended(started(command, folder), began)


def started(command: list[str], folder: str, **streams: Any) -> Popen[str]:
    """Start Python with these arguments."""
    streams = {"stdout": DEVNULL, "stderr": DEVNULL, **streams}
    return Popen([sys.executable, *command], cwd=folder, text=True, **streams)  # noqa: S603 - our own commands


def ended(process: Popen[str], began: float, wall: float | None = None) -> Took:
    """Wait for the end of a process, and return what it took with all its children."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began if wall is None else wall
    return Took(1000 * (used.ru_utime + used.ru_stime), 1000 * wall)


def imported(code: str) -> Took:
    """Measure what an import adds to the imports that every program with asyncio has."""
    with_it, without = (measured(["-c", each]) for each in (code, BASE))
    return Took(with_it.cpu - without.cpu, with_it.wall - without.wall)


def first_message(folder: str) -> Took:
    """Send a message, and measure from the start of `onceonly run` until its handler starts; CPU until the command ends."""
    (Path(folder) / "orders.jsonl").write_text(f'{{"id": "{uuid4()}"}}\n', encoding="utf-8")
    succeed(["send", "orders.jsonl", "--to", "shop:shop", "--type", "PlaceOrder", "--id-from", "id"], folder)
    began = time.perf_counter()
    with started([*ONCEONLY, "run", "shop:shop"], folder, stderr=PIPE) as process:
        assert process.stderr is not None  # noqa: S101 - for the type checker: it was started with a pipe
        if HANDLED not in process.stderr:
            raise RuntimeError("onceonly run ended without handling the message")
        wall = time.perf_counter() - began
        process.terminate()
        process.stderr.read()
        return ended(process, began, wall)


def succeed(arguments: list[str], folder: str) -> None:
    """Run a command that must succeed."""
    if started([*ONCEONLY, *arguments], folder).wait():
        raise RuntimeError(f"onceonly {arguments[0]} failed")


def main(rounds: Annotated[int, typer.Option(min=1, help="Number of runs of each.")] = 9) -> None:
    """Measure, and print a table in Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(PROGRAM, encoding="utf-8")
        succeed(["schema", "create", "shop:shop"], folder)
        measures: dict[str, Callable[[], Took]] = {name: partial(imported, code) for name, code in IMPORTS.items()}
        measures |= {f"onceonly {words}": partial(measured, [*ONCEONLY, *words.split()]) for words in COMMANDS}
        measures["onceonly run shop:shop"] = partial(first_message, folder)
        found: dict[str, list[Took]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, measure in measures.items():
                found[name].append(measure())
    print(f"Load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, medians of {rounds}, the least in brackets.\n")
    print("| | CPU ms | wall ms |\n|---|---|---|")
    for name, runs in found.items():
        cells = (f"{statistics.median(each):.0f} ({min(each):.0f})" for each in zip(*runs, strict=True))
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    typer.run(main)
