"""Orders with Flask and Celery: each step is a row, committed first, and the next task, sent then."""

import os

from celery import Celery, Task, chain
from flask import Flask, request
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from examples.hosts.celery_flask.lines import BOOKS, LATE, RESULTS, Line, report, settings, work
from examples.hosts.program import BROKER, SYNC_STORE

KINDS = {
    "defaults": {},
    "acks_late": LATE,
    "deduplicate": {**LATE, "worker_deduplicate_successful_tasks": True},
    "celery_once": LATE,
}
"""Settings of Celery that a team may choose."""
KIND = os.environ.get("HOSTS_CELERY", "defaults")

sessions = sessionmaker(create_engine(SYNC_STORE))
base: type[Task] = Task
if KIND == "celery_once":
    from examples.hosts.celery_flask.queue_once import Once as base  # noqa: N813 - it takes the place of Task
celery = Celery("shop", broker=BROKER, backend=RESULTS, task_cls=base)
celery.conf.update(settings() | KINDS[KIND])
app = Flask(__name__)


@app.post("/orders")
def place_order() -> tuple[dict[str, str], int]:
    """Write the row, and send the first task. A client that repeats its request finds the row."""
    order_id = request.get_json()["order_id"]
    with sessions.begin() as session:
        if session.scalar(select(Line.number).where(Line.step == "ordered", Line.order_id == order_id)):
            return {"placed": order_id}, 200
        session.add(Line(step="ordered", order_id=order_id))
    report("web", order_id)
    charge.delay(order_id)
    return {"placed": order_id}, 201


@celery.task
def charge(order_id: str) -> None:
    """Write the row, have the order packed and then shipped, and tell the other service."""
    with sessions.begin() as session:
        add(session, "charged", order_id)
    report("charge", order_id)
    chain(pack.s(order_id), ship.s()).delay()
    book.apply_async((order_id,), queue=BOOKS)


@celery.task
def pack(order_id: str) -> str:
    """Write the row. The chain goes on."""
    with sessions.begin() as session:
        add(session, "packed", order_id)
    report("pack", order_id)
    return order_id


@celery.task
def ship(order_id: str) -> None:
    """Write the row."""
    with sessions.begin() as session:
        add(session, "shipped", order_id)
    report("ship", order_id)


@celery.task
def book(order_id: str) -> None:
    """Be the other service."""
    with sessions.begin() as session:
        session.add(Line(step="booked", order_id=order_id))


def add(session: Session, step: str, order_id: str) -> None:
    """Write a row, after some work."""
    work()
    session.add(Line(step=step, order_id=order_id))
