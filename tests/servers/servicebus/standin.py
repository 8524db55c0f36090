"""Runs the stand-in in an event loop, or as a process of its own: `python -m tests.servers.servicebus.standin 5672 5300`."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from tests.servers.servicebus.administration import Administration
from tests.servers.servicebus.amqp import Broker
from tests.servers.servicebus.entities import Namespace

TICK_SECONDS = 0.05


class StandIn:
    """A running stand-in."""

    def __init__(self, broker: Broker, administration: Administration, port: int, management_port: int) -> None:
        self.broker = broker
        self.administration = administration
        self.port = port
        self.management_port = management_port

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"servicebus://tester:secret@127.0.0.1:{self.port}?emulator=true&management_port={self.management_port}"

    @property
    def connection_string(self) -> str:
        """Return what the plain client connects with."""
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=tester;SharedAccessKey=secret;UseDevelopmentEmulator=true"
        )


@asynccontextmanager
async def standin(now: Callable[[], int] | None = None, *, port: int = 0, management_port: int = 0) -> AsyncIterator[StandIn]:
    """Run it, with the real time unless a clock is given."""
    broker = Broker(Namespace(now or (lambda: time.time_ns() // 1_000_000)))
    administration = Administration(broker)
    server = await asyncio.get_running_loop().create_server(broker.serve, "127.0.0.1", port)
    runner = web.AppRunner(administration.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", management_port)
    await site.start()
    ticking = asyncio.create_task(_tick(broker))
    listening = runner.addresses[0][1]
    try:
        yield StandIn(broker, administration, server.sockets[0].getsockname()[1], listening)
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
        server.close()
        broker.disconnect()
        await runner.cleanup()


async def _tick(broker: Broker) -> None:
    """Deliver what becomes due, and what was locked too long."""
    while True:
        broker.pump()
        await asyncio.sleep(TICK_SECONDS)


async def _serve(port: int, management_port: int) -> None:
    async with standin(port=port, management_port=management_port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
