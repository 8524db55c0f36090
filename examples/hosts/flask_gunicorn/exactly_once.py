"""Orders with Flask, exactly once: the row, the event and the response are in one commit, with the client's key."""

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from examples.hosts.program import BROKER, PLACED, STORE, SYNC_STORE, Order, report
from onceonly import Endpoint, Queue
from onceonly.integrations.flask import RequestTransaction, idempotent

Session = sessionmaker(create_engine(SYNC_STORE))
shop = Endpoint("shop", store=STORE, transport=BROKER, relay_after=1)
app = Flask(__name__)


@app.post("/orders")
@idempotent(shop, Session)
def place_order(tx: RequestTransaction) -> tuple[dict[str, str], int]:
    """Write the row and announce it."""
    order = request.get_json()
    tx.sql.add(Order(order_id=order["order_id"]))
    report(order["order_id"])
    tx.send({"order_id": order["order_id"]}, to=Queue(PLACED), type="order-placed")
    return {"placed": order["order_id"]}, 201
