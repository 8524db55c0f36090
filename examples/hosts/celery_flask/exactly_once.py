"""Orders with Flask and Celery, exactly once: the row of a step, the next task and the key are one commit."""

from dataclasses import dataclass

from celery import Celery, chain
from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from examples.hosts.celery_flask.lines import EVENTS, RESULTS, Line, report, settings, work
from examples.hosts.program import BROKER, STORE, SYNC_STORE
from onceonly import Endpoint
from onceonly.integrations.celery import ExactlyOnceTask, TaskTransaction, delay

sessions = sessionmaker(create_engine(SYNC_STORE))
shop = Endpoint("shop", store=STORE, transport=EVENTS, relay_after=1)
celery = Celery("shop", broker=BROKER, backend=RESULTS, task_cls=ExactlyOnceTask.of(shop, sessions))
celery.conf.update(settings())
app = Flask(__name__)


@dataclass
class OrderCharged:
    """What the other service receives."""

    order_id: str


@app.post("/orders")
def place_order() -> tuple[dict[str, str], int]:
    """Write the row and the first task. A client that repeats its request has the same key."""
    order_id = request.get_json()["order_id"]
    with sessions.begin() as session:
        entry = shop.enlist(session, key=request.headers["Idempotency-Key"])
        if entry.is_known:
            return {"placed": order_id}, 200
        session.add(Line(step="ordered", order_id=order_id))
        delay(entry, charge, order_id)
        report("web", order_id)
    return {"placed": order_id}, 201


@celery.task
def charge(order_id: str, session: Session, tx: TaskTransaction) -> None:
    """Write the row, have the order packed and then shipped, and tell the other service."""
    add(session, "charged", order_id)
    chain(pack.s(order_id), ship.s()).delay()
    tx.publish(OrderCharged(order_id))
    report("charge", order_id)


@celery.task
def pack(order_id: str, session: Session) -> str:
    """Write the row. The chain goes on."""
    add(session, "packed", order_id)
    report("pack", order_id)
    return order_id


@celery.task
def ship(order_id: str, session: Session) -> None:
    """Write the row."""
    add(session, "shipped", order_id)
    report("ship", order_id)


def add(session: Session, step: str, order_id: str) -> None:
    """Write a row, after some work."""
    work()
    session.add(Line(step=step, order_id=order_id))
    session.flush()
