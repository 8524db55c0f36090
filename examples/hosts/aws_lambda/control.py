"""Orders in a function, as AWS documents it: each order is a row, and an event. What failed is in the answer."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.session import get_session  # type: ignore[import-untyped]
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from examples.hosts.aws_lambda.batches import place_orders
from examples.hosts.program import BROKER, PLACED, SYNC_STORE, Order, report
from examples.hosts.sqs import KEY, REGION, SECRET

sessions = sessionmaker(create_engine(SYNC_STORE))
keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
sqs = get_session().create_client("sqs", region_name=REGION, endpoint_url=BROKER, **keys)


def place_order(order_id: str, *, fails: bool) -> None:
    """Write the row and announce it."""
    if fails:
        raise ValueError("not today")
    with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    placed = sqs.get_queue_url(QueueName=PLACED)["QueueUrl"]
    sqs.send_message(QueueUrl=placed, MessageBody=json.dumps({"order_id": order_id}))


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Place the orders of a batch."""
    return place_orders(event, place_order)
