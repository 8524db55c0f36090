"""When a message of SQS comes again after a Lambda function has reported it as failed: its visibility time-out."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, NamedTuple

from onceonly.formats.log_events import EventLogger, FailureLog
from onceonly.integrations.lambda_process import PROCESS, Deadline

MOST_SECONDS = 6 * 3600
"""SQS hides a message for 12 hours in all, the time before this one included."""
MOST_ENTRIES = 10
_log = EventLogger(logging.getLogger("onceonly.lambda"))


class Waiting(NamedTuple):
    """A message that is not settled, and when its next delivery is due."""

    queue: str
    receipt: str
    seconds: float


class Visibility:
    """Changes visibility time-outs with a client of boto3, or with one for the endpoint's transport if that is SQS.

    Without either it does nothing: the message comes again after the visibility time-out of its queue.
    """

    def __init__(self, endpoint: str, transport: str | None, client: Any) -> None:
        self._endpoint = endpoint
        self._url = transport if transport is not None and transport.startswith("sqs:") else ""
        self._given = client
        self._client: _SqsCaller | None = None
        self._checked: set[str] = set()
        self._failures = FailureLog(_log, "visibility time-out not changed", endpoint=endpoint)

    @property
    def is_possible(self) -> bool:
        return self._given is not None or bool(self._url)

    async def put_off(self, messages: Sequence[Waiting], deadline: Deadline) -> None:
        """Let messages come again when they are due. What fails is logged: they come after the time-out of their queue."""
        if not messages or not self.is_possible:
            return
        try:
            async with asyncio.timeout(max(0.0, deadline.rest / 2)):
                client = await self._opened()
                for queue in dict.fromkeys(each.queue for each in messages):
                    await self._change(client, queue, [each for each in messages if each.queue == queue])
        except Exception as error:  # noqa: BLE001 - a courtesy, which must not turn outcomes into an error
            self._failures.failed(error)
        else:
            self._failures.succeeded()

    async def check(self, queue: str, deadline: Deadline) -> None:
        """Warn once if a queue delivers a message again while an invocation may still have it in work."""
        if deadline.whole is None or not self.is_possible or queue in self._checked:
            return
        self._checked.add(queue)
        try:
            async with asyncio.timeout(max(0.0, deadline.rest / 4)):
                client = await self._opened()
                found = await client.call(
                    "get_queue_attributes", QueueUrl=client.url(queue), AttributeNames=["VisibilityTimeout"]
                )
            seconds = int(found["Attributes"]["VisibilityTimeout"])
        except Exception as error:  # noqa: BLE001 - the same
            _log.debug("visibility time-out not read", extra={"endpoint": self._endpoint, "queue": queue, "reason": str(error)})
            return
        if seconds < int(deadline.whole):
            _log.warning(
                "visibility time-out shorter than the function's time-out",
                extra={"endpoint": self._endpoint, "queue": queue, "visibility": seconds, "function": int(deadline.whole)},
            )

    async def _opened(self) -> "_SqsCaller":
        if self._given is not None:
            return _SqsCaller(self._given, is_async=False)
        if self._client is None:
            self._client = _SqsCaller(await PROCESS.keep(_connected(self._url, self)), is_async=True)
        return self._client

    async def _change(self, client: "_SqsCaller", queue: str, messages: Sequence[Waiting]) -> None:
        for start in range(0, len(messages), MOST_ENTRIES):
            some = messages[start : start + MOST_ENTRIES]
            entries = [
                {"Id": str(number), "ReceiptHandle": each.receipt, "VisibilityTimeout": min(MOST_SECONDS, ceil(each.seconds))}
                for number, each in enumerate(some)
            ]
            answer = await client.call("change_message_visibility_batch", QueueUrl=client.url(queue), Entries=entries)
            if failed := answer.get("Failed"):
                raise RuntimeError(str(failed[0].get("Message") or failed[0].get("Code")))

    def forget(self) -> None:
        self._client = None


class _SqsCaller(NamedTuple):
    """A client of SQS, of boto3 or of aiobotocore."""

    client: Any
    is_async: bool

    async def call(self, name: str, **values: object) -> Mapping[str, Any]:
        call = getattr(self.client, name)
        answer: Mapping[str, Any] = await (call(**values) if self.is_async else asyncio.to_thread(call, **values))
        return answer

    def url(self, arn: str) -> str:
        """Return the URL of a queue, as this client can address it."""
        account, name = arn.split(":")[-2:]
        return f"{self.client.meta.endpoint_url.rstrip('/')}/{account}/{name}"


@asynccontextmanager
async def _connected(url: str, visibility: Visibility) -> Any:
    from onceonly.adapters.aws.client import connected  # noqa: PLC0415 - imports the driver
    from onceonly.adapters.aws.sqs.address import read_sqs  # noqa: PLC0415 - the same

    async with connected("sqs", read_sqs(url).access) as client:
        try:
            yield client
        finally:
            visibility.forget()
