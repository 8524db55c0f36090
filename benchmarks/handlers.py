"""`python -m benchmarks.handlers`: what handlers that fail, or wait for something else than the database, cost.

All messages wait in the queue when the endpoint starts. Its handler adds an ORM object and publishes an event. With `--bad` a
share of the messages is rejected after that, chosen at random, and the runs of the others are counted: each run after the
first is one too many. With `--later` these messages fail once, by `RetryLater`, and are handled a second later. With
`--reads` each handler executes a statement before it adds its object. With `--waits` it also awaits `asyncio.sleep`. The time
runs from the first handler's start to the last commit, and contains no start of a process.

It needs a database and a broker, uses tables and queues with a prefix of their own there, and drops them.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

import msgspec
import typer
from sqlalchemy import String, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from benchmarks.instructions import instructions
from benchmarks.pauses import measured_pauses
from benchmarks.worker import new_event_loop
from onceonly import Context, Endpoint, Journal, Reject, RetryLater, WorkerSettings
from onceonly.assembly import open_database, open_transport, schemas, temporary_transport
from onceonly.model.message import Headers, Message, Send
from onceonly.ports.transport import Topology
from onceonly.runtime.processes.child import frozen_start
from onceonly.sql.database import Database
from onceonly.sql.schema import Schema, create, drop

DATABASE, BROKER = "postgresql://postgres@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"
SEED, SENT_AT_ONCE, GLANCE = 1, 500, 0.02

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Place:
    """A command."""

    id: str
    bad: bool = False


@dataclass
class Placed:
    """What its handler publishes."""

    id: str


class Base(DeclarativeBase):
    """The tables of the application."""


class Order(Base):
    """The row that every message writes."""

    __tablename__ = f"handlers_{uuid4().hex[:8]}"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)


@dataclass
class Seen:
    """What the handlers saw: runs by message, when the first began, and how many were in progress at once."""

    runs: Counter[str]
    began: float = 0.0
    now: int = 0
    most: int = 0


class Behaviour(NamedTuple):
    """What handlers do: seconds that each waits, whether it reads first, and whether the bad ones only come later."""

    waits: float = 0.0
    reads: bool = False
    later: bool = False


ADDS = Behaviour()


@app.command()
def main(  # noqa: PLR0913 - one for each option
    *,
    database: Annotated[str, typer.Option(help="The store's URL.")] = DATABASE,
    broker: Annotated[str, typer.Option(help="The transport's URL; empty for the queue in the store's database.")] = BROKER,
    messages: Annotated[int, typer.Option(help="Number of messages.")] = 10_000,
    bad: Annotated[float, typer.Option(help="Share of the messages that is rejected.")] = 0.0,
    later: Annotated[bool, typer.Option(help="These messages are retried once instead, a second later.")] = False,
    reads: Annotated[bool, typer.Option(help="Each handler reads its row first.")] = False,
    waits: Annotated[float, typer.Option(help="Seconds that each handler waits.")] = 0.0,
    concurrency: Annotated[int, typer.Option(help="The worker's concurrency; 0 for the default.")] = 0,
    freeze: Annotated[bool, typer.Option(help="Collect garbage as `onceonly run` does, or as an application.")] = True,
) -> None:
    """Measure, and print one line of JSON."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        behaviour = Behaviour(waits, reads=reads, later=later)
        found = runner.run(measure(database, broker, messages, bad=bad, how=behaviour, concurrency=concurrency, freeze=freeze))
    print(msgspec.json.encode({**found, "load": round(os.getloadavg()[0], 1)}).decode())


async def measure(  # noqa: PLR0913 - one for each option
    database: str,
    broker: str,
    count: int,
    *,
    bad: float = 0.0,
    how: Behaviour = ADDS,
    concurrency: int = 0,
    freeze: bool = True,
    telemetry: Any = None,
    journal: Journal | None = None,
    extensions: Headers = (),
) -> dict[str, Any]:
    """Make the tables and queues, and run the endpoint until all is handled."""
    prefix = f"h{uuid4().hex[:8]}_"
    store, transport = f"{database}?prefix={prefix}", f"{broker or database}?prefix={prefix}"
    topology = [Topology(endpoint="shop", events=(Place.__name__,)), Topology(endpoint="web", events=(Placed.__name__,))]
    rng = random.Random(SEED)  # noqa: S311 - no secret
    places = [Place(f"m{number}", rng.random() < bad) for number in range(count)]
    good = [place.id for place in places if how.later or not place.bad]
    async with (
        open_database(store) as opened,
        _tables(opened, schemas("store", "transport", *(["journal"] if journal else []))),
        temporary_transport(transport, topology),
        open_transport(transport, "web") as web,
    ):
        await web.declare(topology)
        for first in range(0, count, SENT_AT_ONCE):
            await web.send([_sent(place, extensions) for place in places[first : first + SENT_AT_ONCE]])
        seen = Seen(Counter())
        worker = WorkerSettings(concurrency=concurrency) if concurrency else WorkerSettings()
        endpoint = Endpoint("shop", store=store, transport=transport, worker=worker, telemetry=telemetry, journal=journal)
        shop = _shop(endpoint, seen, how)
        cpu, executed = time.process_time(), instructions()
        async with frozen_start() if freeze else nullcontext(), shop.running():
            with measured_pauses() as pauses:
                while await _committed(opened) < len(good):  # noqa: ASYNC110 - the server has no event
                    await asyncio.sleep(GLANCE)
            seconds, cpu = time.perf_counter() - seen.began, time.process_time() - cpu
            executed = (instructions() or 0) - (executed or 0)
    again = sum(seen.runs[place.id] - 1 for place in places if not place.bad)
    return {
        "messages": count,
        "bad": sum(place.bad for place in places),
        "good run again": again,
        "share": round(again / len(good), 4),
        "seconds": round(seconds, 3),
        "messages a second": round(count / seconds),
        "cpu seconds per 1,000": round(cpu / count * 1000, 3),
        "instructions per message": round(executed / count),
        "garbage collection seconds per 1,000": round(pauses.total / count * 1000, 4),
        "longest garbage collection ms": round(pauses.longest * 1000, 1),
        "most at once": seen.most,
    }


def _shop(shop: Endpoint, seen: Seen, how: Behaviour) -> Endpoint:
    @shop.handler
    async def place(command: Place, session: AsyncSession, context: Context) -> None:
        seen.began = seen.began or time.perf_counter()
        seen.runs[command.id] += 1
        seen.now += 1
        seen.most = max(seen.most, seen.now)
        if how.reads:
            await session.get(Order, command.id)
        session.add(Order(id=command.id))
        context.publish(Placed(command.id))
        if how.waits:
            await asyncio.sleep(how.waits)
        seen.now -= 1
        if command.bad and how.later:
            if seen.runs[command.id] == 1:
                raise RetryLater(1)
        elif command.bad:
            raise Reject("not for us")

    return shop


@asynccontextmanager
async def _tables(database: Database, parts: Sequence[Schema]) -> AsyncIterator[None]:
    for schema in parts:
        await create(database, schema)
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    try:
        yield
    finally:
        for schema in parts:
            await drop(database, schema)
        async with database.engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)


def _sent(place: Place, extensions: Headers) -> Send:
    message = Message(id=place.id, source="web", type=Place.__name__, body=msgspec.json.encode(place), extensions=extensions)
    return Send(message=message, to="shop")


async def _committed(database: Database) -> int:
    async with database.reading() as connection:
        return int(await connection.scalar(select(func.count()).select_from(Order)) or 0)


if __name__ == "__main__":
    app()
