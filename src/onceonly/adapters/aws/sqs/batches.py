"""Batches: SQS and SNS take ten messages in one request, each with an answer of its own. Requests go side by side.

In a FIFO queue the messages of one group are sent in their order: in one request, or one after the other. Messages without a
group get one of their own each, and a new deduplication id is given to every message. So the broker never drops one as a copy.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from msgspec import Struct

from onceonly.adapters.aws.client import ServiceError
from onceonly.adapters.aws.sqs.address import MOST_BYTES, MOST_ENTRIES
from onceonly.adapters.aws.sqs.client import DEFINITE, MISSING_QUEUE, MISSING_TOPIC, REFUSED, SqsLink, reason_of
from onceonly.adapters.aws.sqs.wire import SqsContent
from onceonly.model.errors import OnceOnlyError, OutcomeUnknown
from onceonly.queues.destinations import CopyOutcome

MOST_TOPIC_BYTES = 256 * 1024
"""What SNS takes in one message, and in one batch."""
_OF_ONE = REFUSED | {"BatchRequestTooLong"}
"""What is said of a batch because of one of its messages."""
_Item = TypeVar("_Item")


_SETTLED = (CopyOutcome.TAKEN, CopyOutcome.REFUSED, CopyOutcome.MISSING)
Result = CopyOutcome | OnceOnlyError
"""An outcome, or the error of the whole request: after CommitFailed and SetupError nothing was sent."""


class SqsOutgoing(Struct, frozen=True):
    """A message for one queue or topic. `delay` is in seconds. `is_delayed` is whether it was not due when it was written."""

    content: SqsContent
    delay: int = 0
    is_delayed: bool = False


class Target(Struct, frozen=True):
    """A queue by its URL, or a topic by its ARN. `fifo` is whether it wants a group."""

    place: str
    fifo: bool = False

    @property
    def is_topic(self) -> bool:
        return self.place.startswith("arn:")


async def send_all(link: SqsLink, target: Target, messages: Sequence[SqsOutgoing]) -> list[Result]:
    """Send messages to a queue or a topic. Return what became of each, in order. Raises nothing."""
    results: list[Result] = [CopyOutcome.UNKNOWN] * len(messages)

    async def run(lane: list[list[int]]) -> None:
        for batch in lane:
            found = await _send(link, target, [messages[index] for index in batch])
            for index, result in zip(batch, found, strict=True):
                results[index] = result
            if any(result not in _SETTLED for result in found):
                return  # what follows in these groups must not overtake: the sender tries again

    await asyncio.gather(*(run(lane) for lane in _lanes(messages, target)))
    return results


async def on_deliveries(
    handles: Sequence[str], request: Callable[[list[dict[str, str]]], Awaitable[Any]], link: SqsLink, what: str
) -> tuple[list[str], OnceOnlyError | None]:
    """Delete messages or change their visibility: all batches side by side.

    Returns the handles that the broker does not know any more, and an error if some request or some entry of one failed.
    """

    async def run(batch: Sequence[str]) -> tuple[list[str], OnceOnlyError | None]:
        try:
            with link.translated(what):
                answer = await request([{"Id": str(index), "ReceiptHandle": handle} for index, handle in enumerate(batch)])
                failed = [(batch[int(each["Id"])], each) for each in answer.get("Failed") or ()]
                known = len(answer.get("Successful") or ()) + len(failed)
        except OnceOnlyError as error:
            return [], error
        gone = [handle for handle, each in failed if each.get("SenderFault")]
        left = [each for _, each in failed if not each.get("SenderFault")]
        if left or known < len(batch):
            reasons = ", ".join(sorted({str(each.get("Code")) for each in left})) or "entries have no answer"
            return gone, OutcomeUnknown(f"cannot {what} at {link.address.place}: {reasons}")
        return gone, None

    done = await asyncio.gather(*(run(batch) for batch in portions(handles)))
    return [handle for gone, _ in done for handle in gone], next((error for _, error in done if error is not None), None)


def portions(items: Sequence[_Item], most: int = MOST_ENTRIES) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(items), most):
        yield items[first : first + most]


async def _send(link: SqsLink, target: Target, messages: Sequence[SqsOutgoing]) -> list[Result]:
    what = f"send to {target.place.rpartition(':' if target.is_topic else '/')[2]!r}"
    try:
        with link.translated(what):
            try:
                answer = await _request(link, target, messages)
            except ServiceError as error:
                if (known := _common_results(error, target, messages)) is not None:
                    link.forget(target.place)
                    return known
                if len(messages) > 1 and reason_of(error) in _OF_ONE:
                    return [result for each in messages for result in await _send(link, target, [each])]
                raise
            return _results(answer, len(messages))
    except OnceOnlyError as error:
        return [error] * len(messages)


async def _request(link: SqsLink, target: Target, messages: Sequence[SqsOutgoing]) -> Any:
    if target.is_topic:
        entries = [_entry(index, each, target, body="Message") for index, each in enumerate(messages)]
        return await link.sns.publish_batch(TopicArn=target.place, PublishBatchRequestEntries=entries)
    entries = [_entry(index, each, target, body="MessageBody") for index, each in enumerate(messages)]
    return await link.sqs.send_message_batch(QueueUrl=target.place, Entries=entries)


def _entry(index: int, message: SqsOutgoing, target: Target, *, body: str) -> dict[str, object]:
    content = message.content
    entry: dict[str, object] = {"Id": str(index), body: content.body, "MessageAttributes": content.attributes}
    if target.fifo:
        entry |= {"MessageGroupId": content.group or uuid4().hex, "MessageDeduplicationId": uuid4().hex}
    elif not target.is_topic:
        entry["DelaySeconds"] = message.delay  # also 0: a queue may have a delay of its own
    return entry


def _common_results(error: ServiceError, target: Target, messages: Sequence[SqsOutgoing]) -> list[Result] | None:
    """Return what an error of the whole request says about its messages; None if it says nothing."""
    reason = reason_of(error)
    if reason in (MISSING_TOPIC if target.is_topic else MISSING_QUEUE):
        return [CopyOutcome.MISSING] * len(messages)
    if reason in REFUSED and len(messages) == 1:
        return [CopyOutcome.REFUSED]
    return None


def _results(answer: Any, count: int) -> list[Result]:
    results: list[Result] = [CopyOutcome.UNKNOWN] * count
    for each in answer.get("Successful") or ():
        results[int(each["Id"])] = CopyOutcome.TAKEN
    for each in answer.get("Failed") or ():
        code = str(each.get("Code", "")).removeprefix("AWS.SimpleQueueService.")
        is_refused = each.get("SenderFault") and code in REFUSED and code not in DEFINITE.failed
        results[int(each["Id"])] = CopyOutcome.REFUSED if is_refused else CopyOutcome.UNKNOWN
    return results


def _lanes(messages: Sequence[SqsOutgoing], target: Target) -> Iterable[list[list[int]]]:
    """Divide messages among lanes, by their indexes. A lane is a list of batches that are sent one after the other."""
    groups: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        group = message.content.group if target.fifo else ""
        groups.setdefault(group or f" {index}", []).append(index)
    lane: list[int] = []
    size = 0
    most = MOST_TOPIC_BYTES if target.is_topic else MOST_BYTES
    for group_indexes in groups.values():
        added = sum(messages[index].content.size for index in group_indexes)
        if lane and (len(lane) + len(group_indexes) > MOST_ENTRIES or size + added > most):
            yield _batches(messages, lane, most)
            lane, size = [], 0
        lane += group_indexes
        size += added
    if lane:
        yield _batches(messages, lane, most)


def _batches(messages: Sequence[SqsOutgoing], lane: list[int], most: int) -> list[list[int]]:
    batches: list[list[int]] = []
    size = 0
    for index in lane:
        added = messages[index].content.size
        if not batches or len(batches[-1]) == MOST_ENTRIES or size + added > most:
            batches.append([])
            size = 0
        batches[-1].append(index)
        size += added
    return batches
