"""`python -m benchmarks.dashboard`: the time to the first byte of each page, beside a million records, claims and messages.

It fills PostgreSQL (BENCH_DATABASE), MariaDB (BENCH_MARIADB) and SQLite, each under a prefix of its own that is dropped at the
end, and asks the dashboard for every page over HTTP on this machine. The median of `--rounds` must be below 100 ms.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import httpx
import typer
import uvicorn
from msgspec import Struct

from benchmarks.scale import ENDPOINT, OTHER, SOURCE, Scale, fill
from onceonly import Context, Endpoint
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import drop
from onceonly.sql.store import SCHEMA as STORE
from onceonly_dashboard import dashboard, loopback_only

POSTGRESQL, MARIADB = "postgresql://root@127.0.0.1:5432/postgres", "mysql://root@127.0.0.1:3306/test"
LIMIT_MS = 100.0
RESULTS = Path(__file__).parent / "results" / "dashboard.md"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class PlaceOrder:
    """The message of the endpoints, which have no worker here."""

    order_id: str
    total: int = 0


class PageTime(Struct, frozen=True):
    """Milliseconds to the first byte of a page: of the first request, which opens connections, and of later ones."""

    page: str
    first: float
    median: float
    slowest: float


@app.command()
def main(
    *,
    databases: Annotated[
        str, typer.Option(help="Which of postgresql, mariadb and sqlite, with commas.")
    ] = "postgresql,mariadb,sqlite",
    rounds: Annotated[int, typer.Option(min=1, help="Requests for each page after the first.")] = 20,
    part: Annotated[float, typer.Option(min=0.001, max=1.0, help="The part of the million rows that is filled.")] = 1.0,
    write: Annotated[bool, typer.Option(help="Write benchmarks/results/dashboard.md.")] = False,
) -> None:
    """Measure the pages of the dashboard at scale."""
    found = {name: asyncio.run(_measure(name, rounds, part)) for name in databases.split(",")}
    text = _report(found, rounds=rounds, part=part)
    print(text)
    if write:
        RESULTS.write_text(text)
    named = ((name, each) for name, times in found.items() for each in times)
    if slow := [f"{each.page} on {name}: {each.median:.0f} ms" for name, each in named if each.median > LIMIT_MS]:
        sys.exit("".join(f"!!! slower than {LIMIT_MS:g} ms: {each}\n" for each in slow))


def _report(found: dict[str, list[PageTime]], *, rounds: int, part: float) -> str:
    scale = _scale(part)
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, which the database servers share"
    text = f"""# Pages of the dashboard at scale

{datetime.now(UTC):%Y-%m-%d}, `python -m benchmarks.dashboard --rounds {rounds} --part {part:g} --write`, {load}.

{scale.records:,} pending records, {scale.claims:,} claims, {scale.messages:,} queued messages, {scale.reservations:,} open
attempts and {scale.letters:,} dead letters of about 3 kB, of two endpoints. Milliseconds to the first byte over HTTP: of the
first request, which opens connections, then median and slowest of {rounds} more. The limit for the median is {LIMIT_MS:g} ms.
What is over it is in italics.

| page | {" | ".join(found)} |
|---|{"---|" * len(found)}
"""
    rows = zip(*found.values(), strict=True)
    return text + "".join(f"| {row[0].page} | {' | '.join(map(_cell, row))} |\n" for row in rows)


def _cell(found: PageTime) -> str:
    median = f"{found.median:.0f}" if found.median <= LIMIT_MS else f"*{found.median:.0f}*"
    return f"{found.first:.0f}, {median}, {found.slowest:.0f}"


def _scale(part: float) -> Scale:
    whole = Scale()
    return Scale(**{name: round(getattr(whole, name) * part) for name in Scale.__struct_fields__})


async def _measure(name: str, rounds: int, part: float) -> list[PageTime]:
    with tempfile.TemporaryDirectory() as folder:
        prefix = f"scale_{uuid4().hex[:8]}_"
        servers = {
            "postgresql": os.environ.get("BENCH_DATABASE", POSTGRESQL),
            "mariadb": os.environ.get("BENCH_MARIADB", MARIADB),
            "sqlite": f"sqlite:///{folder}/scale.db",
        }
        url = f"{servers[name]}?prefix={prefix}"
        database = await open_database(url, clock=LIVE.clock)
        try:
            began = time.monotonic()
            await fill(database, _scale(part))
            _say(f"{name}: filled in {time.monotonic() - began:.0f} s")
            return await _visit(url, rounds)
        finally:
            await _drop(database)


async def _drop(database: Database) -> None:
    try:
        await drop(database, STORE, QUEUE)
    finally:
        await database.close()


async def _visit(url: str, rounds: int) -> list[PageTime]:
    served = dashboard(_endpoint(ENDPOINT, url), _endpoint(OTHER, url), auth=loopback_only())
    async with _listening(served) as address, httpx.AsyncClient(base_url=address, timeout=600) as client:
        times: list[PageTime] = []
        for page, path in (await _pages(client)).items():
            _say(f"  {page}")
            first, *later = [await _first_byte(client, path) for _ in range(rounds + 1)]
            times.append(PageTime(page, first, statistics.median(later), max(later)))
        return times


async def _pages(client: httpx.AsyncClient) -> dict[str, str]:
    """Return the address of each page, by what it is."""
    headers = {"accept": "application/json"}
    while True:
        rows = (await client.get("/", headers=headers)).json()["endpoints"]
        if all(row["dead"]["value"] is not None for row in rows):
            break
        await asyncio.sleep(0.05)
    groups = (await client.get("/dead", headers=headers)).json()["endpoints"][0]["groups"]
    group = f"/dead/g/{groups[0]['key']}?endpoint={ENDPOINT}"
    listed = (await client.get(group, headers=headers)).json()
    letter = listed["letters"][0]
    return {
        "overview": "/",
        "endpoint": f"/e/{ENDPOINT}",
        "groups of dead letters": "/dead",
        "a group": group,
        "its second page": f"{group}&after={listed['after']}",
        "all letters": f"/dead/g/all?endpoint={ENDPOINT}",
        "letters by type": f"/dead/g/all?endpoint={ENDPOINT}&type=PlaceOrder",
        "letters by a type without letters": f"/dead/g/all?endpoint={ENDPOINT}&type=Nothing",
        "a letter": f"/dead/{letter['key']}",
        "find": f"/find?source={SOURCE}&id={letter['id']}",
        "find with a time": f"/find?source={SOURCE}&id=A-0&at={datetime.now(UTC):%Y-%m-%dT%H:%M}",
        "pending": "/pending",
        "claims": "/claims",
        "settings": "/settings",
        "actions": "/actions",
        "an action": f"/actions/{ENDPOINT}/1",
        "confirm a retry of all": f"/act/retry?endpoint={ENDPOINT}&group=all",
    }


async def _first_byte(client: httpx.AsyncClient, path: str) -> float:
    began = time.perf_counter()
    async with client.stream("GET", path) as response:
        took = (time.perf_counter() - began) * 1000  # the head of the response has come
        await response.aread()
    response.raise_for_status()
    return took


def _endpoint(name: str, url: str) -> Endpoint:
    made = Endpoint(name, store=url, transport=url)

    async def place(_order: PlaceOrder, _context: Context) -> None:
        pass

    made.handler(place)
    return made


@asynccontextmanager
async def _listening(served: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(served, host="127.0.0.1", port=0, log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    app()
