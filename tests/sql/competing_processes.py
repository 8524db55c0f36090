"""What the competing processes of the queue's tests run: they are spawned, so it must be importable."""

import asyncio
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path

from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.runtime.environment import SystemClock
from onceonly.sql.database import open_database
from onceonly.sql.queue import SqlTransport

SENDS = 100


def work(url: str, name: str, barrier: Barrier, seen: Path) -> None:
    """Send some messages and take others, as fast as it goes; writes the ids that were acked into a file."""
    asyncio.run(_work(url, name, barrier, seen))


async def _work(url: str, name: str, barrier: Barrier, seen: Path) -> None:
    database = await open_database(url, clock=SystemClock())
    transport = SqlTransport(database, "shop")
    acked: list[str] = []
    await asyncio.to_thread(barrier.wait)
    try:
        for start in range(0, SENDS, 10):
            batch = [Send(message=message(f"{name}-{start + n}"), to="shop") for n in range(10)]
            assert set(await transport.send(batch)) == {Answer.TAKEN}
            acked += await _take(transport, 7, 0)
        while more := await _take(transport, 7, 0.5):
            acked += more
    finally:
        await database.close()
    seen.write_text("\n".join(acked))  # noqa: ASYNC240 - nothing else runs any more


async def _take(transport: SqlTransport, limit: int, wait: float) -> list[str]:
    got = await transport.receive(limit, wait)
    assert not any(delivery.suspect for delivery in got)
    await transport.ack(got)
    return [dict(delivery.headers)["ce-id"] for delivery in got]


def take_and_die(url: str) -> None:
    """Take what waits, and be killed with it in hand."""
    asyncio.run(_take_and_die(url))


async def _take_and_die(url: str) -> None:
    transport = SqlTransport(await open_database(url, clock=SystemClock()), "shop")
    await transport.receive(10, 10.0)
    os.kill(os.getpid(), signal.SIGKILL)


def message(name: str) -> Message:
    """Make a message."""
    return Message(id=name, source="test", type="order", body=b"{}")
