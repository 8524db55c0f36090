"""Measure what a cold start takes of onceonly: `python -m examples.hosts.aws_lambda.cold_start`.

imports   the time of onceonly's own modules, by `-X importtime`, for a function on PostgreSQL and SQS that has been opened
opening   the endpoint is opened a second time, in memory: no imports, no driver and no network
"""

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceonly import Endpoint

RUNS = 5
PROGRAM = """
import onceonly.adapters.postgresql, onceonly.assembly.sql, onceonly.adapters.aws.sqs.transport
from onceonly import Endpoint
from onceonly.integrations.aws_lambda import sqs_handler
from examples.hosts.aws_lambda.cold_start import event, shop
handler = sqs_handler(shop(), type="Any")
assert handler(event(), None) == {"batchItemFailures": []}
"""


def shop() -> "Endpoint":
    """Return an endpoint in memory."""
    from onceonly import Endpoint  # noqa: PLC0415 - measured in another process

    made = Endpoint("shop", store="memory://cold")

    @made.handler(type="Any")
    def handle(order: dict[str, object]) -> None:
        """Do nothing."""

    return made


def event() -> dict[str, object]:
    """Return an event with one message."""
    record = {"messageId": "1", "body": "{}", "eventSource": "aws:sqs", "attributes": {}, "messageAttributes": {}}
    return {"Records": [record]}


def imports() -> float:
    """Return the milliseconds of onceonly's own modules in a new process."""
    command = [sys.executable, "-X", "importtime", "-c", PROGRAM]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603 - of this program
    lines = [line.removeprefix("import time:").split("|") for line in written.splitlines() if line.startswith("import time:")]
    return sum(int(own) for own, _, name in lines[1:] if name.strip().split(".")[0] == "onceonly") / 1000


async def opening() -> float:
    """Return the milliseconds that an opening takes."""
    made = shop()
    async with made.hosted():
        pass
    since = time.perf_counter()
    async with made.hosted():
        return (time.perf_counter() - since) * 1000


if __name__ == "__main__":
    print(f"imports of onceonly's modules: {min(imports() for _ in range(RUNS)):.0f} ms")
    print(f"opening, without imports, drivers and network: {min(asyncio.run(opening()) for _ in range(RUNS)):.0f} ms")
