"""The application of the soak: orders that a host hands over, and requests in synchronous sessions of its own."""

import logging
import os
import sys
from datetime import timedelta

from msgspec import Struct
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import sessionmaker

from benchmarks.soak.plan import RELAY_AFTER_SECONDS, plan_of_environment
from benchmarks.soak.tables import Order
from onceonly import Context, Endpoint, History, IdentityField, Queue, Retry, WorkerSettings
from onceonly.endpoint.enlisted_key import EnlistedKey
from onceonly.runtime.maintenance import tasks

__all__ = ["ConfirmOrder", "OrderPlaced", "PlaceOrder", "log_to_errors", "place_in_session", "plan", "report", "shop"]

plan = plan_of_environment()
placed = Queue(plan.placed)
tasks.ROW_KEPT_SECONDS = plan.row_kept  # an hour in the library, within which a run would not see that rows are deleted

engine = create_engine(plan.sync_store, pool_size=plan.pool, max_overflow=0, connect_args={"application_name": "soak"})
sessions = sessionmaker(engine)


class PlaceOrder(Struct):
    """A message that the host receives."""

    order_id: str


class ConfirmOrder(Struct):
    """What a request of the threaded host sends to the endpoint itself."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str
    step: str


shop = Endpoint(
    plan.name,
    store=plan.store,
    transport=plan.broker,
    deduplication=History(retention=timedelta(seconds=plan.retention)),
    retry=Retry(immediate=1, delayed=5, first_delay=1.0, factor=2.0, max_delay=4.0),
    timeout=5.0,
    max_commit=timedelta(seconds=20),
    relay_after=RELAY_AFTER_SECONDS,
    worker=WorkerSettings(max_concurrency=plan.units),
    identity=IdentityField("order_id") if plan.host == "forked" else None,
)


@shop.handler
async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id, step="placed"))
    context.send(OrderPlaced(order.order_id, "placed"), to=placed)


@shop.handler
async def confirm(order: ConfirmOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id, step="confirmed"))
    context.send(OrderPlaced(order.order_id, "confirmed"), to=placed)


def place_in_session(order_id: str) -> EnlistedKey:
    """Place an order as a synchronous view does: in a session of the application, with the id as the client's key."""
    with sessions.begin() as session:
        entry = shop.enlist(session, key=order_id, request=order_id)
        if not entry.is_known:
            session.add(Order(order_id=order_id, step="placed"))
            entry.send(OrderPlaced(order_id, "placed"), to=placed)
            if plan.host == "threaded":
                entry.send(ConfirmOrder(order_id), to=plan.name)
            entry.answer = {"placed": order_id}
    if entry.answer != {"placed": order_id}:
        raise RuntimeError(f"order {order_id} has the answer {entry.answer!r}")
    return entry


def report(line: str) -> None:
    """Tell the program that started this host, with one write."""
    os.write(1, f"{line}\n".encode())


def log_to_errors() -> None:
    """Write warnings to standard error."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(process)d %(name)s %(message)s")
