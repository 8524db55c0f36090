"""One run: clients order, processes die, a broker is away for a while; then all is let come to rest, and audited."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from examples.shop.orders import engine, shop
from examples.shop_demo.audit import Books, Findings, audit, read_books
from examples.shop_demo.clients import Clients
from examples.shop_demo.programs import Program, handle_messages, serve_web
from examples.shop_demo.rabbitmq import OwnRabbitMQ, free_port

SETTLING = 90.0  # seconds that orders may take to come, and to go all their way
GLANCE = 0.2


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run. `wishes` are what clients wanted: with keys, distinct keys."""

    wishes: int
    orders: int
    requests: int
    kills_web: int
    kills_worker: int
    broker: str
    broker_away_seconds: float
    orders_while_away: int
    findings: Findings
    seconds: float

    def numbers(self) -> dict[str, object]:
        """Return the numbers flat, as `--json` prints them."""
        own = {name: getattr(self, name) for name in self.__struct_fields__ if name != "findings"}
        return {**own, **msgspec.structs.asdict(self.findings)}


class Outage:
    """Stops the broker once, for so many seconds."""

    def __init__(self, broker: OwnRabbitMQ | None, seconds: float) -> None:
        self.seconds = 0.0
        self.orders = 0
        self._broker = broker
        self._wanted = seconds

    async def happen(self) -> None:
        """Once there are orders, stop it, wait, and start it again; counts the orders that are placed meanwhile."""
        if self._broker is None:
            return
        before = len((await _until(lambda books: bool(books.orders))).orders)
        await asyncio.to_thread(self._broker.stop)
        since = time.monotonic()
        await asyncio.sleep(self._wanted)
        await asyncio.to_thread(self._broker.start)
        self.seconds = round(time.monotonic() - since, 1)
        self.orders = len((await read_books()).orders) - before


async def run(*, kills: int, keys: bool, seed: int, broker: OwnRabbitMQ | None, outage: float) -> Result:
    """Do it all. The shop's settings are in the environment."""
    started = time.monotonic()
    port, rng = free_port(), random.Random(seed)  # noqa: S311 - when a process dies is no secret
    web, worker = Program("web", serve_web, port), Program("worker", handle_messages)
    clients, away = Clients(port, keys=keys, seed=seed), Outage(broker, outage)
    async with _running(web, worker):
        enough = asyncio.Event()
        ordering = asyncio.create_task(clients.order_until(enough))
        await asyncio.gather(
            web.be_killed(kills // 2, rng, clients.answered),
            worker.be_killed(kills - kills // 2, rng, _handled),
            away.happen(),
        )
        enough.set()
        await ordering
        if keys:
            await clients.ask_again()
        books = await _until(lambda books: books.is_settled)
    await engine.dispose()
    return Result(
        wishes=len(clients.wishes),
        orders=len(books.orders),
        requests=clients.requests,
        kills_web=web.kills,
        kills_worker=worker.kills,
        broker="none" if broker is None else "RabbitMQ",
        broker_away_seconds=away.seconds,
        orders_while_away=away.orders,
        findings=audit(clients.wishes, books),
        seconds=round(time.monotonic() - started, 1),
    )


@asynccontextmanager
async def _running(*programs: Program) -> AsyncIterator[None]:
    async with shop.opened():  # makes the tables and the queue, or says what is wrong with the settings
        pass
    for program in programs:
        program.start()
    try:
        yield
    finally:
        for program in programs:
            await program.stop()


async def _handled() -> int:
    books = await read_books()
    return books.invoices.total() + books.parcels.total()


async def _until(is_so: Callable[[Books], bool]) -> Books:
    """Read what there is until it is so, or for long enough: the audit says what is missing then."""
    for _ in range(round(SETTLING / GLANCE)):
        if is_so(books := await read_books()):
            return books
        await asyncio.sleep(GLANCE)
    return await read_books()
