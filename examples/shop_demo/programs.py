"""The shop's two processes: started, killed at random moments, and started again at once."""

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

import uvicorn

MOST_STEPS, MOST_SECONDS = 6, 0.5
"""A process lives until it has got on by so many steps, and for so many seconds, at most: both are left to chance."""
STUCK = 3.0  # seconds after which it is killed even if it does not get on, such as for want of a broker
GLANCE = 0.05
STARTING = 20.0  # seconds after which a process is killed even if it never came up
GRACE = 10.0

Progress = Callable[[], Awaitable[int]]
"""Counts what is done so far, by whichever process."""

_context = get_context("forkserver")  # what is imported once is not imported again for each of fifty restarts
_context.set_forkserver_preload(["__main__", "examples.shop.app", "examples.shop_demo.programs"])


class WebServer(uvicorn.Server):
    """Tells when it takes requests."""

    def __init__(self, config: uvicorn.Config, is_up: Event) -> None:
        super().__init__(config)
        self._is_up = is_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell it."""
        await super().startup(sockets)
        self._is_up.set()


def serve_web(is_up: Event, port: int) -> None:
    """Be the web process: take orders, send what they commit, handle nothing."""
    logging.disable()  # what happens here is no surprise
    WebServer(
        uvicorn.Config("examples.shop.app:app", port=port, log_level="critical", timeout_graceful_shutdown=1), is_up
    ).run()


def handle_messages(is_up: Event) -> None:
    """Be the worker."""
    logging.disable()
    from examples.shop.orders import shop  # noqa: PLC0415 - reads its settings from the environment when it is imported

    async def work() -> None:
        ready, stop = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        telling = asyncio.create_task(ready.wait())
        telling.add_done_callback(lambda _: is_up.set())
        await shop.run(stop, ready=ready)

    asyncio.run(work())


class Program:
    """One of the two, whoever it is just now."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        self.name = name
        self.kills = 0
        self._target = target
        self._arguments = arguments
        self._process: BaseProcess | None = None
        self._is_up = _context.Event()

    def start(self) -> None:
        """Start it."""
        self._is_up = _context.Event()
        arguments = (self._is_up, *self._arguments)
        self._process = _context.Process(target=self._target, args=arguments, name=self.name, daemon=True)
        self._process.start()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and wait for its end; one that outstays the grace time is killed."""
        process, self._process = self._process, None
        if process is None or process.pid is None:
            return
        os.kill(process.pid, number)
        await asyncio.to_thread(process.join, GRACE)
        if process.is_alive():
            process.kill()
            await asyncio.to_thread(process.join)
        process.close()

    async def be_killed(self, times: int, rng: random.Random, progress: Progress) -> None:
        """Die so often, each time at another moment and with something done, and be there again at once."""
        for _ in range(times):
            await asyncio.to_thread(self._is_up.wait, STARTING)
            wanted = await progress() + rng.randint(1, MOST_STEPS)
            for _ in range(round(STUCK / GLANCE)):
                if await progress() >= wanted:
                    break
                await asyncio.sleep(GLANCE)
            await asyncio.sleep(rng.uniform(0, MOST_SECONDS))
            await self.stop(signal.SIGKILL)
            self.kills += 1
            self.start()
