"""Events of AWS Lambda as messages: the id, the source and the body of each, for every kind of event."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from onceonly.adapters.aws.sqs.wire import MESSAGE_ID, read
from onceonly.formats.cloudevents import DUE, PREFIX, UNREADABLE, attribute_of
from onceonly.model.errors import SetupError
from onceonly.model.hosted import HostedMessage
from onceonly.model.message import PARTITION_KEY

HANDLERS = {
    "aws:sqs": "sqs_handler",
    "aws:sns": "sns_handler",
    "aws:kinesis": "kinesis_handler",
    "aws:dynamodb": "dynamodb_stream_handler",
    "EventBridge": "eventbridge_handler",
}
"""The handler for each kind of event."""
FIFO = ".fifo"
_JSON = ("content-type", "application/json")


class LambdaRecord(NamedTuple):
    """A message of an event. `name` is what the answer of the function calls it.

    `receipt` and `queue` are of SQS: the receipt handle, and the ARN of the queue. `group` is that of a FIFO queue.
    """

    message: HostedMessage
    name: str
    receipt: str = ""
    queue: str = ""
    group: str = ""


def kind_of(event: object) -> str:
    """Return the kind of an event: a key of `HANDLERS`, another event source, or empty if it cannot be recognized."""
    if not isinstance(event, Mapping):
        return ""
    records = event.get("Records")
    if isinstance(records, list) and records:
        first = records[0]
        source = (first.get("eventSource") or first.get("EventSource")) if isinstance(first, Mapping) else ""
        return source if isinstance(source, str) else ""
    return "EventBridge" if {"detail-type", "source", "detail"} <= event.keys() else ""


def check_kind(event: object, kind: str) -> None:
    """Raise SetupError for an event of another kind, with the handler for it."""
    found = kind_of(event)
    if found == kind:
        return
    if found in HANDLERS:
        raise SetupError(f"{HANDLERS[kind]} received an event of {found}: use {HANDLERS[found]}")
    shown = ", ".join(map(str, event)) if isinstance(event, Mapping) else type(event).__name__
    what = f"an event of {found}" if found else f"something that is not an event of {kind} ({shown or 'empty'})"
    raise SetupError(f"{HANDLERS[kind]} received {what:.300}: check the trigger of the function")


def read_sqs(event: Mapping[str, Any], type_: str | None) -> list[LambdaRecord]:
    """Return the messages of a queue. A record that cannot be read is unreadable, so it becomes a dead letter."""
    return [_sqs(record, type_) for record in _records(event, "aws:sqs")]


def read_sns(event: Mapping[str, Any], type_: str | None) -> list[LambdaRecord]:
    """Return the notifications of a topic: the id is `MessageId`, the source `TopicArn`."""
    return [_sns(record, type_) for record in _records(event, "aws:sns")]


def read_eventbridge(event: Mapping[str, Any], type_: str | None) -> list[LambdaRecord]:
    """Return an event of a bus: its `id`, its `source`, `detail-type` as the type, and `detail` as the body.

    In an event of EventBridge Scheduler without an input of its own, `detail` is JSON in a text: then this text is the body.
    """
    id_ = _text(event, "id", "EventBridge")
    headers = [
        _JSON,
        (PREFIX + "id", id_),
        (PREFIX + "source", _text(event, "source", "EventBridge")),
        (PREFIX + "type", type_ or _text(event, "detail-type", "EventBridge")),
        *((f"aws-{name}", event[name]) for name in ("account", "region") if isinstance(event.get(name), str)),
    ]
    detail = event["detail"]
    body = detail.encode(errors="surrogatepass") if isinstance(detail, str) else _json(detail)
    return [LambdaRecord(HostedMessage(body, headers), id_)]


def read_kinesis(event: Mapping[str, Any], type_: str | None) -> list[LambdaRecord]:
    """Return the records of a shard, in order: the id is `eventID`, the source the ARN of the stream."""
    return [_kinesis(record, type_) for record in _records(event, "aws:kinesis")]


def read_dynamodb(event: Mapping[str, Any], type_: str | None) -> list[LambdaRecord]:
    """Return the changes of a table, in order: the id is `eventID`, the source the ARN of the stream."""
    return [_dynamodb(record, type_) for record in _records(event, "aws:dynamodb")]


Reader = Callable[[Mapping[str, Any], str | None], Sequence[LambdaRecord]]


def _records(event: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    for record in event["Records"]:
        if not isinstance(record, Mapping):
            raise SetupError(f"{HANDLERS[kind]} received a record that is not an object: check the trigger of the function")
        yield record


def _sqs(record: Mapping[str, Any], type_: str | None) -> LambdaRecord:
    id_ = _text(record, "messageId", "aws:sqs")
    system = _mapping(record.get("attributes"))
    count = str(system.get("ApproximateReceiveCount", "1"))
    deliveries = max(1, int(count)) if count.isascii() and count.isdigit() else 1
    group, queue = str(system.get("MessageGroupId", "")), str(record.get("eventSourceARN", ""))
    body = record.get("body")
    if isinstance(body, str):
        arrived = read(
            {
                "MessageId": id_,
                "Body": body,
                "Attributes": {name: str(value) for name, value in system.items()} | {"ApproximateReceiveCount": "1"},
                "MessageAttributes": _attributes(record.get("messageAttributes"), "stringValue", "binaryValue"),
            }
        )
        headers, content = [*arrived.headers, *_of_type(type_, arrived.headers)], arrived.body
        if arrived.due and DUE not in [attribute_of(name) for name, _ in headers]:
            headers.append((PREFIX + DUE, str(arrived.due)))
    else:
        headers, content = [(UNREADABLE, f"the body is not text but {type(body).__name__}"), (MESSAGE_ID, id_)], _json(record)
    message = HostedMessage(content, headers, id_, deliveries)
    receipt = str(record.get("receiptHandle", ""))
    return LambdaRecord(message, id_, receipt, queue, group if queue.endswith(FIFO) else "")


def _sns(record: Mapping[str, Any], type_: str | None) -> LambdaRecord:
    sns = record.get("Sns")
    if not isinstance(sns, Mapping):
        raise SetupError("sns_handler received a record without `Sns`: check the trigger of the function")
    id_, topic = _text(sns, "MessageId", "aws:sns"), _text(sns, "TopicArn", "aws:sns")
    body = sns.get("Message")
    attributes = {
        name: {"BinaryValue" if _mapping(value).get("Type") == "Binary" else "StringValue": _mapping(value).get("Value")}
        for name, value in _mapping(sns.get("MessageAttributes")).items()
    }
    arrived = read(
        {
            "MessageId": id_,
            "Body": body if isinstance(body, str) else "",
            "MessageAttributes": _attributes(attributes, "StringValue", "BinaryValue"),
        }
    )
    headers = [(name, value) for name, value in arrived.headers if name != MESSAGE_ID]
    return LambdaRecord(HostedMessage(arrived.body, [*headers, *_of_type(type_, headers)], id_, queue=topic), id_)


def _kinesis(record: Mapping[str, Any], type_: str | None) -> LambdaRecord:
    kinesis = _mapping(record.get("kinesis"))
    sequence = _text(kinesis, "sequenceNumber", "aws:kinesis")
    id_, stream = _text(record, "eventID", "aws:kinesis"), _text(record, "eventSourceARN", "aws:kinesis")
    key = str(kinesis.get("partitionKey", ""))
    headers = [*_of_type(type_), *([(PREFIX + PARTITION_KEY, key)] if key else [])]
    try:
        body = b64decode(str(kinesis.get("data", "")), validate=True)
    except ValueError as error:
        headers, body = [(UNREADABLE, f"the data is not base64: {error}")], _json(record)
    return LambdaRecord(HostedMessage(body, headers, id_, queue=stream), sequence)


def _dynamodb(record: Mapping[str, Any], type_: str | None) -> LambdaRecord:
    change = _mapping(record.get("dynamodb"))
    sequence = _text(change, "SequenceNumber", "aws:dynamodb")
    id_, stream = _text(record, "eventID", "aws:dynamodb"), _text(record, "eventSourceARN", "aws:dynamodb")
    headers = [_JSON, *_of_type(type_)]
    images = {name: change[name] for name in ("Keys", "NewImage", "OldImage") if name in change}
    try:
        plain = {name: {key: _plain(value) for key, value in image.items()} for name, image in images.items()}
        body = _json({"eventName": record.get("eventName"), **plain})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        headers, body = [(UNREADABLE, f"an image is not in DynamoDB's JSON: {error}")], _json(record)
    return LambdaRecord(HostedMessage(body, headers, id_, queue=stream), sequence)


def _plain(value: Mapping[str, Any]) -> Any:
    """Return a value of DynamoDB's JSON as plain JSON: sets are lists, binary values stay base64."""
    ((kind, content),) = value.items()
    match kind:
        case "S" | "B" | "BOOL" | "SS" | "BS":
            return content
        case "N":
            return _number(content)
        case "NULL":
            return None
        case "NS":
            return [_number(each) for each in content]
        case "L":
            return [_plain(each) for each in content]
        case "M":
            return {key: _plain(each) for key, each in content.items()}
    raise ValueError(f"a value has the unknown type {kind!r:.40}")


def _number(text: str) -> msgspec.Raw:
    """Return a number with all of its digits: DynamoDB has 38 of them, and a float 17."""
    if isinstance(msgspec.json.decode(text), bool | str | list | dict | None):
        raise ValueError(f"{text!r:.40} is no number")  # noqa: TRY004 - of the wrong JSON
    return msgspec.Raw(text.encode())


def _attributes(given: object, string: str, binary: str) -> dict[str, dict[str, Any]]:
    """Return message attributes as a client of SQS has them."""
    found: dict[str, dict[str, Any]] = {}
    for name, attribute in _mapping(given).items():
        content = _mapping(attribute)
        if isinstance(content.get(string), str):
            found[name] = {"StringValue": content[string]}
        elif isinstance(content.get(binary), str):
            try:
                found[name] = {"BinaryValue": b64decode(content[binary], validate=True)}
            except ValueError:
                found[name] = {"StringValue": content[binary]}
    return found


def _of_type(type_: str | None, headers: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """Return the header with the type of a message that has none."""
    has_one = "type" in [attribute_of(name) for name, _ in headers]
    return [(PREFIX + "type", type_)] if type_ and not has_one else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(record: Mapping[str, Any], name: str, kind: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise SetupError(f"{HANDLERS[kind]} received a record without `{name}`: check the trigger of the function")
    return value


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # text that is not Unicode, which only escapes can write
        return json.dumps(value).encode()
