"""Queues, topics and subscriptions.

    onceonly-event-shop_2eorder (topic) --subscription, raw--> onceonly-queue-shop (queue)

The policy of a queue allows the topics behind the prefix to send to it. Queues and topics that exist are used as they are. An
operator may create them with other settings, such as encryption.
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from onceonly.adapters.aws.client import ServiceError
from onceonly.adapters.aws.sqs.client import MISSING_QUEUE, MISSING_TOPIC, SqsLink, reason_of
from onceonly.model.errors import SetupError
from onceonly.ports.transport import BrokerReport, Topology
from onceonly.queues.messages import queue_missing

RETENTION_SECONDS = 14 * 24 * 3600
"""For which a new queue keeps messages: the longest that SQS offers."""
POLICY_ID = "onceonly-events"
"""The statement in the policy of a queue that allows topics to send to it."""
_DAY_SECONDS = 24 * 3600
_NOTED = ("MaximumMessageSize", "MessageRetentionPeriod", "DelaySeconds", "RedrivePolicy")


class QueueArn(Struct, frozen=True):
    """The parts of a queue's ARN."""

    partition: str
    region: str
    account: str
    name: str


def read_arn(text: str) -> QueueArn | None:
    """Take the ARN of a queue apart. None if it is none."""
    parts = text.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs":  # noqa: PLR2004 - arn:aws:sqs:region:account:name
        return None
    return QueueArn(parts[1], parts[3], parts[4], parts[5])


async def declare(link: SqsLink, topologies: Sequence[Topology]) -> None:
    """Create what is missing, and delete the subscriptions that are gone. Harmless when several processes do it at once.

    Raises SetupError, RetryableError.
    """
    await asyncio.gather(*(_declare(link, topology) for topology in topologies))


async def subscribers(link: SqsLink, kind: str) -> tuple[dict[str, str], ...]:
    """List the subscriptions to an event type, as SNS describes them. Raises RetryableError, SetupError."""
    found: list[dict[str, str]] = []
    more: dict[str, str] = {}
    arn = await link.topic(kind)
    while True:
        with link.translated(f"list the subscriptions to {kind!r}"):
            try:
                answer = await link.sns.list_subscriptions_by_topic(TopicArn=arn, **more)
            except ServiceError as error:
                if reason_of(error) in MISSING_TOPIC:
                    return ()
                raise
            found += answer.get("Subscriptions") or ()
            token = answer.get("NextToken")
        if not token:
            return tuple(found)
        more = {"NextToken": token}


async def subscriptions(link: SqsLink, endpoint: str) -> frozenset[str]:
    """List the event types that an endpoint subscribes to, but for those whose name is too long to be written."""
    url = await link.url(link.names.queue(endpoint))
    if url is None:
        return frozenset()
    arn = (await link.attributes(url, "QueueArn"))["QueueArn"]
    kinds: set[str | None] = set()
    more: dict[str, str] = {}
    while True:
        with link.translated("list subscriptions"):
            answer = await link.sns.list_subscriptions(**more)
            mine = [each for each in answer.get("Subscriptions") or () if each["Endpoint"] == arn]
            kinds |= {link.names.kind_of(each["TopicArn"].rpartition(":")[2]) for each in mine}
            token = answer.get("NextToken")
        if not token:
            return frozenset(kind for kind in kinds if kind is not None)
        more = {"NextToken": token}


async def report(link: SqsLink, endpoint: str) -> BrokerReport:
    """Report how the messages of an endpoint are stored. Raises SetupError for a queue that is too small, RetryableError."""
    warnings: list[str] = []
    settings: dict[str, str] = {}
    for name in dict.fromkeys((link.names.queue(endpoint), link.names.delayed(endpoint))):
        found = await link.attributes(await link.need(name), *_NOTED)
        _require_size(link, name, found)
        warnings += _warnings(name, found)
        settings = settings or {each: found[each] for each in _NOTED if each in found and each != "RedrivePolicy"}
    kind = "FIFO" if link.address.fifo else "standard"
    return BrokerReport(settings=(("queue", kind), *settings.items()), warnings=tuple(warnings))


async def remove(link: SqsLink, topologies: Sequence[Topology]) -> None:
    """Delete these queues with their messages, and the topics of their events: for demos and tests."""
    names = link.names
    queues = {name for each in topologies for name in (names.queue(each.endpoint), names.delayed(each.endpoint))}
    for name in queues:
        await delete_queue(link, name)
    for kind in {kind for topology in topologies for kind in (*topology.events, *topology.gone)}:
        with link.translated(f"delete the topic of {kind!r}"):
            for each in await subscribers(link, kind):
                await link.sns.unsubscribe(SubscriptionArn=each["SubscriptionArn"])
            with suppress(ServiceError):
                await link.sns.delete_topic(TopicArn=await link.topic(kind))
    link.counts.clear()


async def delete_queue(link: SqsLink, name: str) -> None:
    """Delete a queue with its messages, if there is one."""
    url = await link.url(name)
    if url is None:
        return
    link.forget(url)
    with link.translated(f"delete the queue {name!r}"):
        try:
            await link.sqs.delete_queue(QueueUrl=url)
        except ServiceError as error:
            if reason_of(error) not in MISSING_QUEUE:
                raise


async def _declare(link: SqsLink, topology: Topology) -> None:
    name = link.names.queue(topology.endpoint)
    delayed = link.names.delayed(topology.endpoint)
    url = await _create_queue(link, name, fifo=link.address.fifo)
    if delayed != name:
        other = await _create_queue(link, delayed, fifo=False)
        _require_size(link, delayed, await link.attributes(other, *_NOTED))
    found = await link.attributes(url, "QueueArn", "Policy", *_NOTED)
    _require_size(link, name, found)
    queue = read_arn(found["QueueArn"])
    if queue is None:
        raise SetupError(f"the ARN of queue {name!r} is {found['QueueArn']!r:.200}: use an endpoint that is SQS")
    link.note_account(partition=queue.partition, account=queue.account)
    if topology.events:
        await _allow_topics(link, url, found, queue)
    kinds = (*topology.events, *topology.gone)
    await asyncio.gather(*(_subscribe(link, kind, found["QueueArn"]) for kind in topology.events))
    await asyncio.gather(*(_unsubscribe(link, kind, found["QueueArn"]) for kind in topology.gone))
    for kind in kinds:
        link.counts.pop(kind, None)


async def _create_queue(link: SqsLink, name: str, *, fifo: bool) -> str:
    """Create a queue if it is missing. Return its URL."""
    url = await link.url(name, fresh=True)
    if url is not None:
        return url
    settings = {"MessageRetentionPeriod": str(RETENTION_SECONDS), "VisibilityTimeout": str(link.address.lease)}
    if fifo:
        settings |= {
            "FifoQueue": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
        }
    with link.translated(f"create the queue {name!r}"):
        try:
            await link.sqs.create_queue(QueueName=name, Attributes=settings)
        except ServiceError as error:
            if reason_of(error) not in {"QueueNameExists", "QueueAlreadyExists"}:
                raise
    url = await link.url(name)
    if url is None:
        raise queue_missing(f"queue {name!r}")
    return url


async def _allow_topics(link: SqsLink, url: str, found: dict[str, str], queue: QueueArn) -> None:
    """Add a statement to the queue's policy, unless it is there. Other statements stay."""
    topics = f"arn:{queue.partition}:sns:{queue.region}:{queue.account}:{link.names.topics()}"
    statement = {
        "Sid": POLICY_ID,
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": found["QueueArn"],
        "Condition": {"ArnLike": {"aws:SourceArn": topics}},
    }
    policy: dict[str, Any] = json.loads(found.get("Policy") or '{"Version": "2012-10-17", "Statement": []}')
    found_statements: Any = policy.get("Statement") or []
    statements = found_statements if isinstance(found_statements, list) else [found_statements]
    if statement in statements:
        return
    policy["Statement"] = [*(each for each in statements if each.get("Sid") != POLICY_ID), statement]
    with link.translated(f"change the policy of queue {queue.name!r}"):
        await link.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})


async def _subscribe(link: SqsLink, kind: str, queue: str) -> None:
    """Create the topic of an event type if it is missing, and subscribe a queue to it, without SNS's envelope."""
    raw = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    settings = {"FifoTopic": "true"} if link.address.fifo else {}
    with link.translated(f"subscribe to {kind!r}"):
        topic = (await link.sns.create_topic(Name=link.names.topic(kind), Attributes=settings))["TopicArn"]
        try:
            answer = await link.sns.subscribe(
                TopicArn=topic,
                Protocol="sqs",
                Endpoint=queue,
                Attributes={"RawMessageDelivery": "true"},
                ReturnSubscriptionArn=True,
            )
            arn = answer["SubscriptionArn"]
        except ServiceError as error:
            arn = "" if reason_of(error) in {"InvalidParameter", "InvalidParameterException"} else None
            if arn is None:
                raise
    if not arn:  # there is one with other attributes
        arn = next(iter(_of_queue(await subscribers(link, kind), queue)), "")
    with link.translated(f"subscribe to {kind!r}"):
        found = await link.sns.get_subscription_attributes(SubscriptionArn=arn)
        if found["Attributes"].get("RawMessageDelivery") != "true":
            await link.sns.set_subscription_attributes(SubscriptionArn=arn, **raw)


async def _unsubscribe(link: SqsLink, kind: str, queue: str) -> None:
    arns = _of_queue(await subscribers(link, kind), queue)
    with link.translated(f"unsubscribe from {kind!r}"):
        for arn in arns:
            await link.sns.unsubscribe(SubscriptionArn=arn)


def _of_queue(found: Iterable[dict[str, str]], queue: str) -> list[str]:
    return [each["SubscriptionArn"] for each in found if each.get("Endpoint") == queue]


def _require_size(link: SqsLink, name: str, found: dict[str, str]) -> None:
    most = int(found.get("MaximumMessageSize", link.address.largest))
    if most < link.address.largest:
        raise SetupError(
            f"queue {name!r} takes {most} bytes (MaximumMessageSize), and max_body={link.address.max_body} needs"
            f" {link.address.largest}, with headers and base64. Raise MaximumMessageSize, or set a lower max_body in the URL"
        )


def _warnings(name: str, found: dict[str, str]) -> list[str]:
    warnings = []
    if policy := found.get("RedrivePolicy"):
        warnings.append(
            f"queue {name!r} has a redrive policy, so SQS moves messages to another queue after some deliveries, without a"
            f" dead letter of this endpoint: {policy}. Remove it"
        )
    retention = int(found.get("MessageRetentionPeriod", RETENTION_SECONDS))
    if retention < RETENTION_SECONDS:
        warnings.append(
            f"queue {name!r} deletes messages that are older than {retention / _DAY_SECONDS:g} days"
            f" (MessageRetentionPeriod). Set it to {RETENTION_SECONDS}"
        )
    if found.get("DelaySeconds", "0") != "0":
        warnings.append(f"queue {name!r} delays events by {found['DelaySeconds']} s (DelaySeconds). Set it to 0")
    return warnings
