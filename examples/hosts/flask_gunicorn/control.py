"""Orders with Flask: each order is a row, and an event. The row is committed, then the event is sent."""

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from examples.hosts.http_clients import publish
from examples.hosts.program import PLACED, SYNC_STORE, Order, report

Session = sessionmaker(create_engine(SYNC_STORE))
app = Flask(__name__)


@app.post("/orders")
def place_order() -> tuple[dict[str, str], int]:
    """Write the row and announce it."""
    order = request.get_json()
    with Session.begin() as session:
        session.add(Order(order_id=order["order_id"]))
    report(order["order_id"])
    publish({"order_id": order["order_id"]}, PLACED)
    return {"placed": order["order_id"]}, 201
