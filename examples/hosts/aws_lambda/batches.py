"""What a function without onceonly does with a batch of SQS, as the programs of comparison do it."""

import json
from collections.abc import Mapping
from typing import Any, Protocol


class PlaceOrder(Protocol):
    """Places an order."""

    def __call__(self, order_id: str, *, fails: bool) -> None:
        """Write and announce an order. Raises ValueError if it `fails`."""


def place_orders(event: Mapping[str, Any], place_order: PlaceOrder) -> dict[str, Any]:
    """Place the orders of a batch. In a FIFO queue it stops a group at its first failure."""
    failed, stopped = [], set()
    for record in event["Records"]:
        attributes, order = record["attributes"], json.loads(record["body"])
        group = attributes.get("MessageGroupId", record["messageId"])
        try:
            if group not in stopped:
                place_order(order["order_id"], fails=bool(order.get("fails")) and attributes["ApproximateReceiveCount"] == "1")
                continue
        except Exception:  # noqa: BLE001 - it is delivered again
            stopped.add(group)
        failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}
