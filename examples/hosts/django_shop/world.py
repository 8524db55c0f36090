"""The world around the shop: clients, the other service, and the tables of both in a database of the run."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import aio_pika
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.hosts.harness import GLANCE_SECONDS, ROOT, Host, Places, Tables, WireEvent, Written, opened_database
from examples.hosts.http_clients import HttpWire, socket_of
from examples.hosts.program import number_of

PACKAGE = "examples.hosts.django_shop"
STARTING_SECONDS = 60.0
_ORDERS = text("SELECT order_id FROM shop_order ORDER BY id")
_UNANNOUNCED = text("SELECT count(*) FROM shop_order WHERE NOT EXISTS (SELECT 1 FROM bookings WHERE number = shop_order.id)")
_BOOKINGS = text("SELECT event_id, order_id, deliveries FROM bookings WHERE order_id <> ''")
_MARK = text("SELECT 1 FROM bookings WHERE event_id = :mark")
_DELAYS = ("due", "unheard", "subscribed", "unsubscribed")
_OF_SHOP = (
    *("onceonly:event:OrderPlaced", "onceonly:census", "onceonly:unsubscribed:shop"),
    *(f"onceonly:delay:{name}" for name in _DELAYS),
)
"""Queues and exchanges that the shop has declared."""


def database_of(prefix: str) -> str:
    """Return the name of the database of a run."""
    return f"onceonly_{prefix.replace('-', '_')}shop"


class ShopTables(Tables):
    """The table of the shop, and that of the other service."""

    async def prepare(self, host: Host, environment: Mapping[str, str]) -> None:
        """Do nothing: migrations have created the tables."""

    async def read(self) -> Written:
        """Return the orders, and count those without an event of their own."""
        async with self.engine.connect() as connection:
            orders = (await connection.execute(_ORDERS)).scalars().all()
            unannounced = (await connection.execute(_UNANNOUNCED)).scalar_one()
        return Written(len(orders), orders, unannounced)


@asynccontextmanager
async def opened_shop(places: Places, prefix: str) -> AsyncIterator[ShopTables]:
    """Make a database of this run, with the tables that `migrate` creates."""
    async with opened_database(places.postgresql, database_of(prefix)) as engine:
        found = ShopTables(engine)
        await migrate(environment_of(found.url, places.broker, prefix))
        yield found


def environment_of(store: str, broker: str, prefix: str) -> dict[str, str]:
    """Return the environment of all programs of a run."""
    return {**os.environ, "HOSTS_STORE": store, "HOSTS_BROKER": broker, "HOSTS_PREFIX": prefix}


async def migrate(environment: Mapping[str, str]) -> None:
    """Create the tables, as a deployment does."""
    command = (sys.executable, "-m", f"{PACKAGE}.manage", "migrate", "--verbosity=0")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {output.decode()}")


class ShopWire(HttpWire):
    """Clients that post to either view, and the other service, which books what it receives."""

    def __init__(self, postgresql: str, broker: str, prefix: str) -> None:
        super().__init__(broker, prefix)
        self._prefix, self._broker = prefix, broker
        self._store = make_url(postgresql).set(drivername="postgresql+asyncpg", database=database_of(prefix))
        self._engine: AsyncEngine = create_async_engine(self._store)
        self._service: Process | None = None

    def path_of(self, order_id: str) -> str:
        """Post each second order to Django REST framework."""
        return "/api/orders" if number_of(order_id) % 2 else "/orders"

    async def prepare(self) -> None:
        """Start the other service."""
        await super().prepare()
        environment = environment_of(self._store.render_as_string(hide_password=False), self._broker, self._prefix)
        self._service = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{PACKAGE}.bookkeeping"), cwd=ROOT, env=environment, stdout=PIPE, stderr=DEVNULL
        )
        output = self._service.stdout
        if output is None or (await output.readline()).strip() != b"ready":
            raise RuntimeError("the other service does not start")

    async def events(self) -> Sequence[WireEvent]:
        """Return what the other service has booked, once it has booked all that was in its queue before this call."""
        mark = uuid4().hex
        body = json.dumps({"order_id": "", "number": 0}).encode()
        await self._channel.default_exchange.publish(aio_pika.Message(body, message_id=mark), self._placed)
        async with asyncio.timeout(STARTING_SECONDS), self._engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            while not (await connection.execute(_MARK, {"mark": mark})).all():  # noqa: ASYNC110 - nothing reports a row
                await asyncio.sleep(GLANCE_SECONDS)
            found = (await connection.execute(_BOOKINGS)).all()
        return [WireEvent(event_id, order_id) for event_id, order_id, deliveries in found for _ in range(deliveries)]

    async def clean(self) -> None:
        """End the other service, and remove what was declared."""
        if self._service is not None and self._service.returncode is None:
            self._service.terminate()
            await self._service.wait()
        await self._engine.dispose()
        for name in _OF_SHOP:  # what is not there counts as deleted
            await self._channel.queue_delete(f"{self._prefix}{name}")
            await self._channel.exchange_delete(f"{self._prefix}{name}")
        with suppress(FileNotFoundError):
            os.unlink(socket_of(self._prefix))  # noqa: PTH108 - a moment
        await super().clean()
