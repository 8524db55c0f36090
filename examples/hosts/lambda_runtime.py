"""AWS Lambda on this machine, for a queue in SQS: `python -m examples.hosts.lambda_runtime MODULE [.fifo]`.

The module has `handler`. With `.fifo` the queue is a FIFO queue, which gives out no message of a group while another one of it
is hidden.

This process is the event source mapping. Each sandbox of the function is a process of its own. The rules are those of AWS
as its users know them. They were not compared with AWS:

receive   up to `BATCH` messages at once. A message stays hidden for the visibility time-out of its queue, which counts its
          deliveries. After `maxReceiveCount` of them the queue itself moves it to its dead-letter queue, if it has one.
invoke    a sandbox handles one event at a time. Each sandbox that is busy needs another one for the next batch.
answer    what is not in `batchItemFailures` is deleted. An empty list or no answer at all is success. An answer that cannot be
          read, an unknown or empty `itemIdentifier`, and an exception fail the whole batch.
fail      nothing is deleted, and nothing else is done: a message comes again after its visibility time-out, or after the one
          that the function has set.
time-out  an invocation that takes longer than `TIMEOUT_SECONDS` ends its sandbox. The batch has failed.
death     the same, when the process ends in any other way. The next event gets a new sandbox.
freeze    between two invocations a sandbox is stopped (SIGSTOP), with all of its tasks, timers and connections, and thawed
          (SIGCONT) by the next one. It may also be ended there. It receives no signal before.

Differences: sandboxes are forked from this process, which has imported the module, so that a start takes no time. The module
may not open anything at import. Lambda polls with several connections, and scales
them; here one process polls for all sandboxes.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from botocore.session import get_session  # type: ignore[import-untyped]

from examples.hosts.launch import LATER
from examples.hosts.program import BROKER, ORDERS
from examples.hosts.sqs import KEY, REGION, SECRET

BATCH, SANDBOXES = 10, 2
TIMEOUT_SECONDS = 5.0
"""The function's. The queue's visibility time-out is not shorter."""
GLANCE_SECONDS = 0.02
LATER_ON_AWS = ("aiobotocore.session", "onceonly.adapters.aws.dynamodb.documents", "onceonly.adapters.aws.sqs.transport")
"""What an endpoint on AWS imports when it is opened."""
Handler = Callable[[Mapping[str, Any], Any], object]


class InvocationContext(NamedTuple):
    """What Lambda passes as the context, as far as functions here use it."""

    until: float

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the sandbox is ended."""
        return max(0, round((self.until - time.monotonic()) * 1000))


class Sandbox:
    """A process that runs the function, and is frozen between two invocations."""

    def __init__(self, handler: Handler) -> None:
        self.batch: list[dict[str, Any]] = []
        """The messages in work. Empty if it is free."""
        self.until = 0.0
        events, self._events = os.pipe()
        self.answers, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(self._events)
            os.close(self.answers)
            with suppress(BaseException):
                _serve(handler, events, answers)
            os._exit(1)
        os.close(events)
        os.close(answers)
        self._freeze()

    def invoke(self, batch: list[dict[str, Any]], arn: str) -> None:
        """Thaw it, and give it an event."""
        self.batch, self.until = batch, time.monotonic() + TIMEOUT_SECONDS
        event = {"Records": [_record(message, arn) for message in batch]}
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it was ended while it was frozen: there will be no answer
            os.write(self._events, json.dumps([self.until, event]).encode() + b"\n")

    def answer(self) -> list[dict[str, Any]] | None:
        """Return the messages to delete, after an answer has come, and freeze it. None if it died or took too long."""
        text = b"" if time.monotonic() > self.until else os.read(self.answers, 1 << 20)
        while text and not text.endswith(b"\n"):
            more = os.read(self.answers, 1 << 20)
            text = text + more if more else b""
        batch, self.batch = self.batch, []
        if not text:
            return None
        self._freeze()
        failed = failures(json.loads(text), {each["MessageId"] for each in batch})
        return [each for each in batch if each["MessageId"] not in failed]

    def end(self) -> None:
        """End it, whatever it is at."""
        self._signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._events)
        os.close(self.answers)

    def _freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WUNTRACED)  # until it is stopped, or has ended

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def failures(answer: object, ids: set[str]) -> set[str]:
    """Return the ids that failed, as Lambda reads an answer: all of them if it cannot be read."""
    if answer is None or answer == {}:
        return set()
    try:
        named = {each["itemIdentifier"] for each in answer["batchItemFailures"] or ()}  # type: ignore[index]
    except (KeyError, TypeError):
        return ids
    return ids if named - ids else named


def _record(message: Mapping[str, Any], arn: str) -> dict[str, Any]:
    """Return a message as an event has it. The names of attributes are those of Lambda, not of SQS."""
    attributes = message.get("MessageAttributes", {})
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": message["Attributes"],
        "messageAttributes": {
            name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
            for name, value in attributes.items()
            if "StringValue" in value
        },
        "md5OfBody": message.get("MD5OfBody", ""),
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": REGION,
    }


def _serve(handler: Handler, events: int, answers: int) -> None:
    """Run the function for each event. An exception is an answer that cannot be read."""
    with os.fdopen(events) as lines:
        for line in lines:
            until, event = json.loads(line)
            try:
                answer = handler(event, InvocationContext(until))
            except Exception:  # noqa: BLE001 - Lambda reports it, and the batch has failed
                traceback.print_exc()
                answer = "it raised"
            os.write(answers, json.dumps(answer).encode() + b"\n")


class EventSource(NamedTuple):
    """The event source mapping: a queue, and the client that polls it."""

    sqs: Any
    url: str
    arn: str

    @classmethod
    def of(cls, queue: str) -> "EventSource":
        """Find the queue."""
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        sqs = get_session().create_client("sqs", region_name=REGION, endpoint_url=BROKER, **keys)
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        return cls(sqs, url, sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])

    def receive(self) -> list[dict[str, Any]]:
        """Take what is visible."""
        answer = self.sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=BATCH, MessageAttributeNames=["All"], AttributeNames=["All"]
        )
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    def delete(self, messages: list[dict[str, Any]]) -> None:
        """Delete what succeeded."""
        entries = [{"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(messages)]
        if entries:
            self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)


def serve(handler: Handler, source: EventSource) -> None:
    """Deliver batches until this process is ended by SIGTERM."""
    sandboxes: list[Sandbox] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        deliver(sandboxes, handler, source)
    finally:
        for each in sandboxes:
            each.end()


def deliver(sandboxes: list[Sandbox], handler: Handler, source: EventSource) -> NoReturn:
    """Deliver batches, and take in the answers."""
    while True:
        free = [each for each in sandboxes if not each.batch]
        if (free or len(sandboxes) < SANDBOXES) and (batch := source.receive()):
            if not free:
                sandboxes.append(Sandbox(handler))
            (free or sandboxes)[-1].invoke(batch, source.arn)
        busy = [each for each in sandboxes if each.batch]
        answered, _, _ = select.select([each.answers for each in busy], [], [], GLANCE_SECONDS)
        for each in busy:
            if each.answers not in answered and time.monotonic() < each.until:
                continue
            done = each.answer()
            if done is None:
                each.end()
                sandboxes.remove(each)
            else:
                source.delete(done)


if __name__ == "__main__":
    module = import_module(sys.argv[1])
    if "onceonly" in sys.modules:
        for later in (*LATER, *LATER_ON_AWS):
            import_module(later)
    serve(module.handler, EventSource.of(ORDERS + "".join(sys.argv[2:3])))
