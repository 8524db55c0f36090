"""What the competing processes of RabbitMQ's tests run: they are spawned, so it must be importable."""

import asyncio
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path

from onceonly.assembly import open_transport
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Transport

SENDS = 100


def work(url: str, name: str, barrier: Barrier, seen: Path) -> None:
    """Send some messages and take others, as fast as it goes; writes the ids that were acked into a file."""
    seen.write_text("\n".join(asyncio.run(_work(url, name, barrier))))


async def _work(url: str, name: str, barrier: Barrier) -> list[str]:
    acked: list[str] = []
    await asyncio.to_thread(barrier.wait)
    async with open_transport(url, "shop") as transport:
        for start in range(0, SENDS, 10):
            batch = [Send(message=_message(f"{name}-{start + n}"), to="shop") for n in range(10)]
            assert set(await transport.send(batch)) == {Answer.TAKEN}
            acked += await _take(transport, 7, 0)
        while more := await _take(transport, 7, 0.5):
            acked += more
    return acked


async def _take(transport: Transport, limit: int, wait: float) -> list[str]:
    got = await transport.receive(limit, wait)
    await transport.ack(got)
    return [dict(delivery.headers)["ce-id"] for delivery in got]


def take_and_die(url: str) -> None:
    """Take what waits, and be killed with it in hand."""
    asyncio.run(_take_and_die(url))


async def _take_and_die(url: str) -> None:
    async with open_transport(url, "shop") as transport:
        await transport.receive(10, 10.0)
        os.kill(os.getpid(), signal.SIGKILL)


def _message(name: str) -> Message:
    return Message(id=name, source="test", type="order", body=b"{}")
