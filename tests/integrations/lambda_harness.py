"""What the tests of functions share: events as AWS Lambda gives them, an invocation's context, and a fresh process."""

import json
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from onceonly.integrations.lambda_process import PROCESS

QUEUE = "arn:aws:sqs:eu-central-1:123456789012:orders"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:orders"
STREAM = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
TABLE = "arn:aws:dynamodb:eu-central-1:123456789012:table/orders/stream/2026-11-29T00:00:00.000"


class InvocationContext:
    """The context of an invocation that has this many seconds left."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._until = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds that are left."""
        return round((self._until - time.monotonic()) * 1000)


@pytest.fixture
def function() -> Iterator[None]:
    """Use a process in which nothing is open, and close what was opened."""
    PROCESS.close()
    yield
    PROCESS.close()


def sqs_record(id_: str, body: object, *, count: int = 1, group: str = "", **changes: object) -> dict[str, Any]:
    """Return a record of a queue, with a group that of a FIFO queue."""
    record: dict[str, Any] = {
        "messageId": id_,
        "receiptHandle": f"handle-{id_}",
        "body": body if isinstance(body, str) else json.dumps(body),
        "attributes": {
            "ApproximateReceiveCount": str(count),
            "SentTimestamp": "1545082649183",
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "ApproximateFirstReceiveTimestamp": "1545082649185",
        },
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE,
        "awsRegion": "eu-central-1",
    }
    if group:
        record["eventSourceARN"] = QUEUE + ".fifo"
        record["attributes"] |= {
            "MessageGroupId": group,
            "MessageDeduplicationId": id_,
            "SequenceNumber": "18849496460467696128",
        }
    return record | changes


def sqs_event(*records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event of a batch."""
    return {"Records": list(records)}


def sns_event(id_: str, body: object, **attributes: str) -> dict[str, Any]:
    """Return the event of a notification."""
    sns = {
        "SignatureVersion": "1",
        "Timestamp": "2026-01-02T12:45:07.000Z",
        "Signature": "tcc6faL2yUC6dgZdmrwh1Y4cGa",
        "SigningCertUrl": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService.pem",
        "MessageId": id_,
        "Message": body if isinstance(body, str) else json.dumps(body),
        "MessageAttributes": {name: {"Type": "String", "Value": value} for name, value in attributes.items()},
        "Type": "Notification",
        "UnsubscribeUrl": "https://sns.eu-central-1.amazonaws.com/",
        "TopicArn": TOPIC,
        "Subject": None,
    }
    source = {"EventVersion": "1.0", "EventSubscriptionArn": f"{TOPIC}:21be56ed", "EventSource": "aws:sns"}
    return {"Records": [{**source, "Sns": sns}]}


def bus_event(id_: str, detail: object, type_: str = "PlaceOrder") -> dict[str, Any]:
    """Return an event of EventBridge."""
    return {
        "version": "0",
        "id": id_,
        "detail-type": type_,
        "source": "com.example.web",
        "account": "123456789012",
        "time": "2026-11-12T00:00:00Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": detail,
    }


def kinesis_record(number: int, body: object, key: str = "1", **changes: object) -> dict[str, Any]:
    """Return a record of a shard."""
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": key,
            "sequenceNumber": str(number),
            "data": b64encode(body if isinstance(body, bytes) else json.dumps(body).encode()).decode(),
            "approximateArrivalTimestamp": 1545084650.987,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000006:{number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
        "awsRegion": "eu-central-1",
        "eventSourceARN": STREAM,
        **changes,
    }


def table_record(number: int, image: Mapping[str, Any], **changes: object) -> dict[str, Any]:
    """Return a change of a table. The image is in DynamoDB's JSON."""
    return {
        "eventID": f"event-{number}",
        "eventVersion": "1.1",
        "dynamodb": {
            "Keys": {"order_id": image["order_id"]},
            "NewImage": dict(image),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            "SequenceNumber": str(number),
            "SizeBytes": 26,
        },
        "awsRegion": "eu-central-1",
        "eventName": "INSERT",
        "eventSourceARN": TABLE,
        "eventSource": "aws:dynamodb",
        **changes,
    }
