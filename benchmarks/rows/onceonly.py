"""onceonly: the rows that are measured against all others. Their worker settings stand here, openly."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import msgspec
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from benchmarks.job import JobControl, WorkerJob
from benchmarks.scenario import INSERT, INSERT_ALL, Base, Order, OrderPlaced, OrderState, PlaceOrder, encode
from onceonly import BatchContext, Context, Endpoint, History, IdentityHeader, Off, WorkerSettings
from onceonly.assembly import open_transport
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.runtime.processes.child import frozen_start

BATCH = 100
SHOP, OUT, EVENT = "shop", "out", "OrderPlaced"
ARRIVED = f"select count(*) from onceonly_messages where queue = '{OUT}'"  # noqa: S608 - a constant
ARRIVED_IDS = f"select convert_from(body, 'UTF8')::json->>'order_id' from onceonly_messages where queue = '{OUT}'"  # noqa: S608 - a constant
CHUNK = 500
_INSERT = insert(Order)

Handler = Callable[..., Awaitable[None]]


def worker_settings(concurrency: int) -> WorkerSettings:
    """One process, batches of a hundred as by hand, and as many batches at once as the tuning found best (one or two)."""
    return WorkerSettings(batch_size=BATCH, concurrency=concurrency)


async def with_session(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Add one object, as users of the ORM do."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order.order_id))


async def with_connection(order: PlaceOrder, connection: AsyncConnection, context: Context) -> None:
    """Execute one INSERT through SQLAlchemy."""
    await connection.execute(_INSERT, {"order_id": order.order_id})
    context.publish(OrderPlaced(order.order_id))


async def with_driver(order: PlaceOrder, connection: asyncpg.Connection, context: Context) -> None:
    """Execute one INSERT on asyncpg's own connection."""
    await connection.execute(INSERT, order.order_id)
    context.publish(OrderPlaced(order.order_id))


async def batch_with_driver(orders: list[PlaceOrder], connection: asyncpg.Connection, batch: BatchContext) -> None:
    """Execute one INSERT of all rows on asyncpg's own connection."""
    await connection.execute(INSERT_ALL, [order.order_id for order in orders])
    for order, context in zip(orders, batch, strict=True):
        context.publish(OrderPlaced(order.order_id))


async def batch_with_connection(orders: list[PlaceOrder], connection: AsyncConnection, batch: BatchContext) -> None:
    """Execute an INSERT with a list of parameters through SQLAlchemy."""
    await connection.execute(_INSERT, [{"order_id": order.order_id} for order in orders])
    for order, context in zip(orders, batch, strict=True):
        context.publish(OrderPlaced(order.order_id))


async def with_entity(order: PlaceOrder, state: OrderState, context: Context) -> None:
    """Write an entity of the order's own."""
    state.placed += 1
    context.publish(OrderPlaced(order.order_id))


async def orm(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, a session for each unit."""
    await _run(_on_rabbitmq(job), with_session, turn)


async def orm_psycopg(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL by psycopg, a session for each unit."""
    store = job.database.replace("postgresql://", "postgresql+psycopg://", 1)
    await _run(_on_rabbitmq(msgspec.structs.replace(job, database=store)), with_session, turn)


async def orm_on_mariadb(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and MariaDB, a session for each unit."""
    await orm(job, turn)


async def core(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, SQLAlchemy without the ORM."""
    await _run(_on_rabbitmq(job), with_connection, turn)


async def raw(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, asyncpg."""
    await _run(_on_rabbitmq(job), with_driver, turn)


async def batch(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, asyncpg, one run of the handler for a batch."""
    await _run_batches(_on_rabbitmq(job), batch_with_driver, turn)


async def core_batch(job: WorkerJob, turn: JobControl) -> None:
    """The same by SQLAlchemy without the ORM."""
    await _run_batches(_on_rabbitmq(job), batch_with_connection, turn)


async def raw_elsewhere(job: WorkerJob, turn: JobControl) -> None:
    """Another broker and PostgreSQL, asyncpg."""
    transport = f"{job.broker}?prefix={job.prefix}"
    await _run(
        Endpoint(SHOP, store=job.database, transport=transport, worker=worker_settings(job.concurrency)), with_driver, turn
    )


async def entities(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, an entity for each message."""
    endpoint = _on_rabbitmq(job)
    endpoint.handler(entity=OrderState, key="order_id")(with_entity)
    await _work(endpoint, turn)


async def off(job: WorkerJob, turn: JobControl) -> None:
    """RabbitMQ and PostgreSQL, without deduplication: at least once."""
    await _run(_on_rabbitmq(job, Off()), with_session, turn)


async def on_its_queue(job: WorkerJob, turn: JobControl) -> None:
    """The queue inside the same PostgreSQL."""
    settings = worker_settings(job.concurrency)
    await _run(Endpoint(SHOP, store=job.database, transport=job.database, worker=settings), with_session, turn)


async def on_sqlite(job: WorkerJob, turn: JobControl) -> None:
    """Two SQLite files, as in the README: the store and the queue."""
    store, queue = sqlite_urls(job.folder)
    settings = worker_settings(job.concurrency)
    await _run(Endpoint(SHOP, store=store, transport=queue, metadata=Base.metadata, worker=settings), with_session, turn)


def sqlite_urls(folder: str) -> tuple[str, str]:
    """Name the store and the queue."""
    return f"sqlite:///{folder}/shop.db", f"sqlite:///{folder}/queue.db"


def topologies() -> list[Topology]:
    """Name the input queue, and the queue of a subscriber that takes what is published."""
    return [Topology(endpoint=SHOP, events=("PlaceOrder",)), Topology(endpoint=OUT, events=(EVENT,))]


async def fill(url: str, order_ids: list[str]) -> None:
    """Declare the queues, and send a message for each order through the library's own queue."""
    async with open_transport(url, SHOP) as transport:
        await transport.declare(topologies())
        for start in range(0, len(order_ids), CHUNK):
            await transport.send([_placing(order_id) for order_id in order_ids[start : start + CHUNK]])


def _placing(order_id: str) -> Send:
    body = encode(PlaceOrder(order_id))
    return Send(message=Message(id=order_id, source="benchmarks", type="PlaceOrder", body=body), to=SHOP)


def _on_rabbitmq(job: WorkerJob, deduplication: History | Off = History()) -> Endpoint:  # noqa: B008 - immutable
    """The message ids of the other rows are the identities here: the very same messages go in."""
    return Endpoint(
        SHOP,
        store=job.database,
        transport=f"{job.broker}?prefix={job.prefix}",
        deduplication=deduplication,
        identity=IdentityHeader("message-id"),
        worker=worker_settings(job.concurrency),
    )


async def _run(endpoint: Endpoint, handler: Handler, turn: JobControl) -> None:
    endpoint.handler(handler)
    await _work(endpoint, turn)


async def _run_batches(endpoint: Endpoint, handler: Handler, turn: JobControl) -> None:
    endpoint.handler(batch=True)(handler)
    await _work(endpoint, turn)


async def _work(endpoint: Endpoint, turn: JobControl) -> None:
    receiving = asyncio.Event()  # the clock starts with connections open, as in every other row
    await turn.begin(receiving)
    async with frozen_start():  # as in each process of `onceonly run`
        await endpoint.run(turn.stop, ready=receiving)
