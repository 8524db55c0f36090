"""Orders in a function, as AWS documents it: each is paid into an item in DynamoDB. What failed is in the answer."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.session import get_session  # type: ignore[import-untyped]

from examples.hosts.aws_lambda.batches import place_orders
from examples.hosts.dynamodb import ACCOUNTS
from examples.hosts.program import BROKER, PLACED, PREFIX, account_of, report
from examples.hosts.sqs import KEY, REGION, SECRET

places = {"region_name": REGION, "endpoint_url": BROKER, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
sqs, dynamodb = (get_session().create_client(service, **places) for service in ("sqs", "dynamodb"))
CHANGE = "ADD balance :one SET orders = list_append(if_not_exists(orders, :none), :order)"


def place_order(order_id: str, *, fails: bool) -> None:
    """Pay one into the account, in one write, and announce it."""
    if fails:
        raise ValueError("not today")
    dynamodb.update_item(
        TableName=f"{PREFIX}{ACCOUNTS}",
        Key={"account": {"S": account_of(order_id)}},
        UpdateExpression=CHANGE,
        ExpressionAttributeValues={":one": {"N": "1"}, ":none": {"L": []}, ":order": {"L": [{"S": order_id}]}},
    )
    report(order_id)
    placed = sqs.get_queue_url(QueueName=PLACED)["QueueUrl"]
    sqs.send_message(QueueUrl=placed, MessageBody=json.dumps({"order_id": order_id}))


def handler(event: Mapping[str, Any], _context: object) -> dict[str, Any]:
    """Place the orders of a batch."""
    return place_orders(event, place_order)
