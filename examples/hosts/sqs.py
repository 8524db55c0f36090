"""SQS as the world around an application sees it: a queue of orders, and a queue of what was placed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from aiobotocore.session import get_session  # type: ignore[import-untyped]

from examples.hosts.harness import WireEvent
from examples.hosts.program import account_of, number_of
from examples.shop_demo.rabbitmq import free_port

REGION, KEY, SECRET = "eu-central-1", "test", "test"
SECONDS_TO_START, SECONDS_BETWEEN = 60.0, 0.05
LEASE_SECONDS = 5
"""How long SQS hides a message that it has delivered, unless the application extends it."""
_MOST = 10
FAILING = 4
"""The last digit of the orders that fail at first, if the queue is a FIFO queue."""
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class SqsWire:
    """Two queues of one run, behind an endpoint such as http://127.0.0.1:4566. An event's id is its `ce-id`."""

    suffix = ""
    """The end of the name of the queue of orders."""

    _client: Any
    _orders: str
    _placed: str

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = url, prefix
        self._open = AsyncExitStack()
        self._events: list[WireEvent] = []

    async def prepare(self) -> None:
        """Create both queues."""
        connecting = get_session().create_client(
            "sqs", region_name=REGION, endpoint_url=self._url, aws_access_key_id=KEY, aws_secret_access_key=SECRET
        )
        self._client = await self._open.enter_async_context(connecting)
        lease = {"VisibilityTimeout": str(LEASE_SECONDS)}
        fifo = {"FifoQueue": "true"} if self.suffix else {}
        self._orders, self._placed = [
            (await self._client.create_queue(QueueName=f"{self._prefix}{name}", Attributes=attributes))["QueueUrl"]
            for name, attributes in ((f"orders{self.suffix}", lease | fifo), ("order-placed", lease))
        ]

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send one message for each id, as a client without ids of its own does."""
        for each in order_ids:
            await self._client.send_message(QueueUrl=self._orders, **self.message(each))

    def message(self, order_id: str) -> dict[str, str]:
        """Return what is sent for an order."""
        return {"MessageBody": json.dumps({"order_id": order_id})}

    async def waiting(self) -> int:
        """Count the messages that the application has not deleted."""
        found = await self._client.get_queue_attributes(QueueUrl=self._orders, AttributeNames=list(_COUNTS))
        return sum(int(found["Attributes"].get(name, 0)) for name in _COUNTS)

    async def events(self) -> Sequence[WireEvent]:
        """Take what was published since the last call."""
        while found := await self._take():
            for each in found:
                self._events.append(WireEvent(_id_of(each), json.loads(each["Body"])["order_id"]))
                await self._client.delete_message(QueueUrl=self._placed, ReceiptHandle=each["ReceiptHandle"])
        return self._events

    async def _take(self) -> list[dict[str, Any]]:
        answer = await self._client.receive_message(
            QueueUrl=self._placed, MaxNumberOfMessages=_MOST, MessageAttributeNames=["All"], VisibilityTimeout=600
        )
        found: list[dict[str, Any]] = answer.get("Messages", [])
        return found

    async def clean(self) -> None:
        """Delete both queues."""
        for url in (self._orders, self._placed):
            await self._client.delete_queue(QueueUrl=url)
        await self._open.aclose()


class FifoWire(SqsWire):
    """The same with a FIFO queue of orders, whose groups are the accounts. A tenth of the orders fails at first."""

    suffix = ".fifo"

    def message(self, order_id: str) -> dict[str, str]:
        """Return an order of a group. A client that sends it again has no id by which SQS knows it."""
        body = {"order_id": order_id, "fails": number_of(order_id) % 10 == FAILING}
        return {
            "MessageBody": json.dumps(body),
            "MessageGroupId": account_of(order_id),
            "MessageDeduplicationId": uuid4().hex,
        }


def _id_of(message: dict[str, Any]) -> str:
    """Return the CloudEvents id. onceonly writes all headers into one attribute, as JSON pairs."""
    packed = message.get("MessageAttributes", {}).get("onceonly-headers", {}).get("StringValue", "[]")
    return dict(json.loads(packed)).get("ce-id", "")


@contextmanager
def emulator() -> Iterator[str]:
    """Run ministack, which `make .venv/emulators` installs. Gives its URL. Raises RuntimeError if it is missing."""
    named = os.environ.get("ONCEONLY_EMULATORS")
    folder = Path(named) if named else Path(sys.prefix)
    program = shutil.which(str(folder / "emulators-python" / "bin" / "ministack"))
    if program is None:
        raise RuntimeError("ministack is not installed: run `make .venv/emulators`, or set ONCEONLY_SQS to the URL of SQS")
    port = free_port()
    with TemporaryDirectory(prefix="onceonly-sqs-", ignore_cleanup_errors=True) as home:
        settings = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "LOG_LEVEL": "WARNING", "HOME": home, "TMPDIR": home}
        environment, output = {**os.environ, **settings}, subprocess.DEVNULL
        process = subprocess.Popen([program], env=environment, cwd=home, stdout=output, stderr=output)  # noqa: S603 - of this machine
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("ministack does not start") from None
            time.sleep(SECONDS_BETWEEN)
        else:
            return
