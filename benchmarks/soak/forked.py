"""A host that forks, as servers with a prefork model do: `python -m benchmarks.soak.forked`.

The parent imports the application and forks children. Each child opens the endpoint in an event loop of its own and receives
with aio-pika. Child 0 lives for the whole run. The others end after a number of messages, or are killed, and are replaced.
"""

import asyncio
import os
import random
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import aio_pika
import msgspec
from aio_pika.abc import AbstractIncomingMessage
from sqlalchemy.exc import OperationalError

import onceonly.adapters.postgresql.maintenance
import onceonly.adapters.rabbitmq.transport
import onceonly.assembly.sql
import onceonly.endpoint.host
import onceonly.runtime.observe.logs
import onceonly.runtime.relay.relay  # noqa: F401 - what is imported before the fork is shared
from benchmarks.soak.shop import PlaceOrder, engine, log_to_errors, place_in_session, plan, report, shop
from onceonly import ConflictError, RetryableError

LONGEST_STOP_SECONDS = 20.0
MOST_WAIT_SECONDS = 1.0


class Child:
    """What one child does with messages, and when it has enough."""

    def __init__(self, most: int | None) -> None:
        self.stop = asyncio.Event()
        self._left = most
        self._at_work = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Enclose the work on one message."""
        self._at_work += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._idle.set()
            if self._left is not None:
                self._left -= 1
                if self._left <= 0:
                    self.stop.set()

    async def finish(self) -> None:
        """Wait for the messages in work."""
        async with asyncio.timeout(LONGEST_STOP_SECONDS):
            await self._idle.wait()

    async def run(self) -> None:
        """Receive from both queues until the stop."""
        async with shop.hosted() as hosted:
            connection = await aio_pika.connect(plan.broker)
            async with connection:

                async def place(message: AbstractIncomingMessage) -> bool:
                    count = message.headers.get("x-delivery-count", 0)
                    outcome = await hosted.handle_one(
                        message.body,
                        headers={**message.headers, "ce-type": PlaceOrder.__name__},
                        deliveries=(count if isinstance(count, int) else 0) + 1,
                    )
                    if not outcome.is_settled:
                        await asyncio.sleep(min(outcome.retry_after or 0.0, MOST_WAIT_SECONDS))
                    return outcome.is_settled

                async def serve(message: AbstractIncomingMessage) -> bool:
                    try:
                        entry = await asyncio.to_thread(place_in_session, msgspec.json.decode(message.body)["order_id"])
                        return entry.is_dispatched or await entry.dispatch()
                    except (ConflictError, RetryableError, OperationalError):
                        await asyncio.sleep(MOST_WAIT_SECONDS)
                        return False

                consuming = []
                for name, work in ((plan.orders, place), (plan.requests, serve)):
                    channel = await connection.channel()
                    await channel.set_qos(prefetch_count=plan.prefetch)
                    queue = await channel.get_queue(name)
                    consuming.append((queue, await queue.consume(partial(self._take, work))))
                await self.stop.wait()
                for queue, tag in consuming:
                    await queue.cancel(tag)
                await self.finish()

    async def _take(self, work: Callable[[AbstractIncomingMessage], Awaitable[bool]], message: AbstractIncomingMessage) -> None:
        with self.working():
            if await work(message):
                await message.ack()
            else:
                await message.nack(requeue=True)


def run_child(slot: int, alive: int) -> None:
    """Be a child until the parent stops or ends, or until it has had enough messages."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(plan.pool))
        child = Child(plan.recycle_after + 7 * slot if slot else None)
        loop.add_reader(alive, child.stop.set)  # the other end is closed
        await child.run()
        loop.remove_reader(alive)

    asyncio.run(main())
    engine.dispose()


class Parent:
    """Forks children, replaces those that end, and kills one now and then."""

    def __init__(self) -> None:
        self._alive, self._alive_here = os.pipe()
        self._pids: dict[int, int] = {}
        self._random = random.Random(plan.seed)  # noqa: S311 - when a process dies is no secret
        self._is_stopping = False

    def run(self) -> None:
        """Work until SIGTERM. Raises RuntimeError if a child failed."""
        signal.signal(signal.SIGTERM, self._stop)
        for slot in range(plan.children):
            self._fork(slot)
        next_kill = time.monotonic() + plan.kill_every
        while self._pids:
            self._reap()
            if not self._is_stopping and time.monotonic() >= next_kill:
                next_kill += plan.kill_every
                self._kill()
            time.sleep(0.1)

    def _stop(self, *_: object) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            os.close(self._alive_here)  # the children read its end, and stop

    def _fork(self, slot: int) -> None:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if not self._is_stopping:
                    os.close(self._alive_here)
                run_child(slot, self._alive)
                status = 0
            except BaseException:  # noqa: BLE001 - a process ends here, whatever ended it
                traceback.print_exc()
            os._exit(status)
        self._pids[pid] = slot
        report(f"child {slot} {pid}")

    def _reap(self) -> None:
        for pid, slot in tuple(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._pids[pid]
                report(f"ended {slot} {pid} {os.waitstatus_to_exitcode(status)}")
                if not self._is_stopping:
                    self._fork(slot)

    def _kill(self) -> None:
        victims = [pid for pid, slot in self._pids.items() if slot]
        if victims:
            os.kill(self._random.choice(victims), signal.SIGKILL)


if __name__ == "__main__":
    log_to_errors()
    Parent().run()
