"""For AWS Lambda: handlers of functions whose messages are handled once, and functions for a schedule.

    handler = sqs_handler(shop)

Nothing is opened at import. The first invocation opens the endpoint, and later ones of the process use what is open. An
invocation returns when its messages are settled or must come again: a process that is frozen or ended has nothing left to do.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple, TypeAlias

from onceonly.endpoint import Endpoint
from onceonly.hosted.calls import CUT_OFF
from onceonly.integrations import lambda_schedule
from onceonly.integrations.lambda_events import (
    LambdaRecord,
    Reader,
    check_kind,
    read_dynamodb,
    read_eventbridge,
    read_kinesis,
    read_sns,
    read_sqs,
)
from onceonly.integrations.lambda_process import PROCESS, Deadline, LambdaContext
from onceonly.integrations.lambda_schedule import MaintenanceAnswer, MaintenanceHandler, RelayAnswer, RelayHandler
from onceonly.integrations.lambda_visibility import Visibility, Waiting
from onceonly.model.errors import RetryableError
from onceonly.model.hosted import HostedOutcome

__all__ = [
    "BatchHandler",
    "EventHandler",
    "LambdaContext",
    "MaintenanceAnswer",
    "MaintenanceHandler",
    "RelayAnswer",
    "RelayHandler",
    "dynamodb_stream_handler",
    "eventbridge_handler",
    "kinesis_handler",
    "maintenance_handler",
    "relay_handler",
    "sns_handler",
    "sqs_handler",
]

BatchHandler: TypeAlias = Callable[[Mapping[str, Any], Any], dict[str, list[dict[str, str]]]]
"""A handler of Lambda that answers which messages of its batch must be delivered again."""
EventHandler: TypeAlias = Callable[[Mapping[str, Any], Any], None]
"""A handler of Lambda for an asynchronous invocation. It raises if the event must be delivered again."""
MARGIN_SECONDS = 1.0
"""Seconds of an invocation that are left for its answer."""
MOST_REPEATED = 20
"""How often an invocation repeats a message that is due at once."""
_Failed: TypeAlias = dict[str, list[dict[str, str]]]


def sqs_handler(
    endpoint: Endpoint,
    *,
    type: str | None = None,  # noqa: A002 - the CloudEvents name
    margin: float = MARGIN_SECONDS,
    client: object = None,
    partial_response: bool = True,
) -> BatchHandler:
    """Return a handler for batches of a queue in SQS, whose event source mapping has `ReportBatchItemFailures`.

    It answers `batchItemFailures` with the messages that must be delivered again. Of a FIFO queue, it handles the messages of a
    group in their order. After one that must be delivered again, it returns the others of the group, and does not handle them.
    A message that cannot be read is stored as a dead letter, and counts as done. The number of failed attempts comes from
    `ApproximateReceiveCount`.

    * `type`: the type of messages that have none. It is needed if the endpoint has more than one handler.
    * `margin`: seconds of the invocation that are left for the answer. Before, what is still in work is undone.
    * `client`: a client of boto3 for SQS. It sets when a message is delivered again. If the endpoint's transport is SQS, none
      is needed. Without either, a message is delivered again after the visibility time-out of the queue.
    * `partial_response`: False for a mapping without `ReportBatchItemFailures`. Then the handler raises RetryableError if any
      message must be delivered again, and all of the batch is.

    An invocation raises SetupError for an event of another kind, and RetryableError if store or transport does not answer when
    they are opened. Then the whole batch is delivered again.
    """
    visibility = Visibility(endpoint.name, endpoint.settings.transport, client)

    async def work(event: Mapping[str, Any], deadline: Deadline) -> _Failed:
        records = read_sqs(event, type)
        outcomes = await _handle_groups(endpoint, records, deadline)
        again = [
            (record, outcome) for record, outcome in zip(records, outcomes, strict=True) if not (outcome and outcome.is_settled)
        ]
        await visibility.put_off(_waiting(again), deadline)
        for queue in dict.fromkeys(record.queue for record in records if record.message.deliveries > 1):
            await visibility.check(queue, deadline)
        if again and not partial_response:
            raise _must_come_again(endpoint, again)
        return _failures([record.name for record, _ in again])

    handler: BatchHandler = _handler("aws:sqs", work, margin)
    return handler


def sns_handler(
    endpoint: Endpoint,
    *,
    type: str | None = None,  # noqa: A002 - the CloudEvents name
    margin: float = MARGIN_SECONDS,
) -> EventHandler:
    """Return a handler for notifications of a topic in SNS. `type` and `margin` are as of `sqs_handler`.

    The id of a message is its `MessageId`, its source the `TopicArn`, and its body `Message`. Message attributes are headers.

    Lambda is invoked asynchronously: an invocation that raises is repeated, twice unless the function has another limit. What
    is due again at once is repeated in the invocation. Then the handler raises RetryableError for what must be delivered again,
    and SetupError for an event of another kind.
    """
    return _event_handler(endpoint, _Source("aws:sns", read_sns, type), margin)


def eventbridge_handler(
    endpoint: Endpoint,
    *,
    type: str | None = None,  # noqa: A002 - the CloudEvents name
    margin: float = MARGIN_SECONDS,
) -> EventHandler:
    """Return a handler for events of a bus in EventBridge, or of its schedule.

    The id of a message is the event's `id`, its source `source`, its type `detail-type`, and its body `detail`. `type` replaces
    `detail-type`. Account and region are the headers `aws-account` and `aws-region`. Otherwise as `sns_handler`. The target
    must have no input transformer, so that the whole event arrives.
    """
    return _event_handler(endpoint, _Source("EventBridge", read_eventbridge, type), margin)


def kinesis_handler(
    endpoint: Endpoint,
    *,
    type: str | None = None,  # noqa: A002 - the CloudEvents name
    margin: float = MARGIN_SECONDS,
    ordered: bool = True,
) -> BatchHandler:
    """Return a handler for records of a stream in Kinesis, whose event source mapping has `ReportBatchItemFailures`.

    The id of a message is the record's `eventID`, its source the ARN of the stream, and its body the data.

    It stops at the first record that must be delivered again, and answers with its sequence number: Lambda begins there again.
    With `ordered=False`, all records are handled together, as a worker handles a batch. That is faster. Records behind a failed
    one may then be handled before it. They are known when they come again. `type` and `margin` are as of `sqs_handler`.
    """
    return _stream_handler(endpoint, _Source("aws:kinesis", read_kinesis, type), margin, ordered=ordered)


def dynamodb_stream_handler(
    endpoint: Endpoint,
    *,
    type: str | None = None,  # noqa: A002 - the CloudEvents name
    margin: float = MARGIN_SECONDS,
    ordered: bool = True,
) -> BatchHandler:
    """Return a handler for changes of a table in DynamoDB, whose event source mapping has `ReportBatchItemFailures`.

    The id of a message is the record's `eventID`, its source the ARN of the stream. The body is an object with "eventName",
    "Keys", "NewImage" and "OldImage", as far as the stream has them. Their values are plain JSON: numbers keep all digits, sets
    are lists, and binary values are base64. Otherwise as `kinesis_handler`.
    """
    return _stream_handler(endpoint, _Source("aws:dynamodb", read_dynamodb, type), margin, ordered=ordered)


def relay_handler(endpoint: Endpoint, *, margin: float = MARGIN_SECONDS) -> RelayHandler:
    """Return a handler for a schedule that sends what other processes have committed and not sent, and maintains the store.

    It sends messages that are older than the endpoint's `relay_after`, as `onceonly relay` does, for half of the invocation's
    time. In the rest it does the maintenance that is due, unless the endpoint has `janitor=False`. Its answer reports what is
    left. Store and transport are opened and closed in each invocation. Handlers, providers and lifespan are not used.

    A store that has no list of unsent documents, such as S3, is not searched, and `not_searched` of the answer is the reason.
    There, a message that is delivered again sends what its first delivery has left.

    An invocation raises RetryableError if store or transport does not answer, and SetupError for settings that are wrong.
    """
    return lambda_schedule.relay_handler(endpoint, margin=_checked(margin))


def maintenance_handler(endpoint: Endpoint, *, margin: float = MARGIN_SECONDS) -> MaintenanceHandler:
    """Return a handler for a schedule that does the maintenance that is due, as `Endpoint.maintain` does.

    Invoke it at least as often as the endpoint's `janitor_interval`. Its answer reports what was done, and what is left.
    Raises SetupError; RetryableError if a server does not answer.
    """
    return lambda_schedule.maintenance_handler(endpoint, margin=_checked(margin))


def _checked(margin: Any) -> float:
    if isinstance(margin, bool) or not isinstance(margin, int | float) or isnan(margin) or margin < 0:
        raise ValueError(f"margin must be a number of seconds, 0 or more, not {margin!r}")
    return margin


class _Source(NamedTuple):
    """A kind of event, how it is read, and the type of messages that have none."""

    kind: str
    read: Reader
    type: str | None


_Work = Callable[[Mapping[str, Any], Deadline], Awaitable[Any]]


def _handler(kind: str, work: _Work, margin: float) -> Any:
    _checked(margin)

    def handler(event: Mapping[str, Any], context: Any) -> Any:
        check_kind(event, kind)
        deadline = Deadline(context, margin)
        return PROCESS.run(lambda: work(event, deadline), deadline)

    return handler


def _event_handler(endpoint: Endpoint, source: "_Source", margin: float) -> EventHandler:
    async def work(event: Mapping[str, Any], deadline: Deadline) -> None:
        records = source.read(event, source.type)
        outcomes = await _handle_patiently(endpoint, records, deadline)
        again = [(record, outcome) for record, outcome in zip(records, outcomes, strict=True) if not outcome.is_settled]
        if again:
            raise _must_come_again(endpoint, again)

    handler: EventHandler = _handler(source.kind, work, margin)
    return handler


def _stream_handler(endpoint: Endpoint, source: "_Source", margin: float, *, ordered: bool) -> BatchHandler:
    async def work(event: Mapping[str, Any], deadline: Deadline) -> _Failed:
        records = source.read(event, source.type)
        for some in [[record] for record in records] if ordered else [records]:
            outcomes = await _handle_patiently(endpoint, some, deadline)
            for record, outcome in zip(some, outcomes, strict=True):
                if not outcome.is_settled:
                    return _failures([record.name])
        return _failures([])

    handler: BatchHandler = _handler(source.kind, work, margin)
    return handler


async def _handle(endpoint: Endpoint, records: Sequence[LambdaRecord], deadline: Deadline) -> tuple[HostedOutcome, ...]:
    hosted = await PROCESS.hosted(endpoint, deadline)
    return await hosted.handle([record.message for record in records], remaining=deadline.remaining)


async def _handle_groups(endpoint: Endpoint, records: Sequence[LambdaRecord], deadline: Deadline) -> list[HostedOutcome | None]:
    """Handle messages, those of a group one after the other. None for those behind one that must come again."""
    found: list[HostedOutcome | None] = [None] * len(records)
    waiting, stopped = list(range(len(records))), set[str]()
    while waiting:
        groups, now = set[str](), []
        for position in waiting:
            group = records[position].group
            if not group or group not in groups:
                now.append(position)
            groups.add(group)
        outcomes = await _handle(endpoint, [records[position] for position in now], deadline)
        for position, outcome in zip(now, outcomes, strict=True):
            found[position] = outcome
            if not outcome.is_settled:
                stopped.add(records[position].group)
        waiting = [each for each in waiting if found[each] is None and records[each].group not in stopped]
    return found


async def _handle_patiently(endpoint: Endpoint, records: Sequence[LambdaRecord], deadline: Deadline) -> list[HostedOutcome]:
    """Handle messages. What is due again at once is repeated here: its host would wait, or repeat the others as well."""
    outcomes = list(await _handle(endpoint, records, deadline))
    for _ in range(MOST_REPEATED):
        again = [
            position
            for position, each in enumerate(outcomes)
            if not each.is_settled and not each.retry_after and each.reason != CUT_OFF
        ]
        if not again:
            break
        for position, outcome in zip(again, await _handle(endpoint, [records[each] for each in again], deadline), strict=True):
            outcomes[position] = outcome
    return outcomes


def _waiting(again: Sequence[tuple[LambdaRecord, HostedOutcome | None]]) -> list[Waiting]:
    """Return when messages are due again. Those of a group are due together, so that none waits for another one's time-out."""
    due = {record.group: outcome.retry_after or 0.0 for record, outcome in again if outcome is not None and record.group}
    return [
        Waiting(record.queue, record.receipt, due[record.group] if outcome is None else outcome.retry_after or 0.0)
        for record, outcome in again
        if record.queue and record.receipt
    ]


def _failures(names: Sequence[str]) -> _Failed:
    return {"batchItemFailures": [{"itemIdentifier": name} for name in dict.fromkeys(names)]}


def _must_come_again(endpoint: Endpoint, again: Sequence[tuple[LambdaRecord, HostedOutcome | None]]) -> RetryableError:
    reasons = ", ".join(f"{record.name} ({outcome.reason})" for record, outcome in again[:3] if outcome is not None)
    return RetryableError(f"endpoint {endpoint.name!r}: {len(again)} messages must be delivered again: {reasons}")
