"""HTTP clients as the world around an application: each repeats its request until it has an answer. Events go to RabbitMQ."""

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pika

from examples.hosts.program import BROKER
from examples.hosts.rabbitmq import RabbitMQWire

CLIENTS = 8
"""Requests at once."""
PAUSE_SECONDS = 0.05
CONFLICT, SERVER_ERROR = 409, 500


def socket_of(prefix: str) -> str:
    """Return the path of the socket on which the application of a run listens."""
    return str(Path(tempfile.gettempdir()) / f"{prefix}http.sock")


class HttpWire(RabbitMQWire):
    """Clients that post orders, each with a key, and the queue of what was placed."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        self._socket = socket_of(prefix)
        self._client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=self._socket), timeout=30)
        self._free = asyncio.Semaphore(CLIENTS)
        self._asking: set[asyncio.Task[None]] = set()

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Begin a request for each id, which goes on until it is answered."""
        for each in order_ids:
            asking = asyncio.create_task(self._ask(each))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def waiting(self) -> int:
        """Count the requests without an answer."""
        return len(self._asking)

    def path_of(self, _order_id: str) -> str:
        """Return where the clients post an order."""
        return "/orders"

    async def clean(self) -> None:
        """End what is left."""
        for each in list(self._asking):
            each.cancel()
        await self._client.aclose()
        await super().clean()

    async def _ask(self, order_id: str) -> None:
        headers = {"Idempotency-Key": f'"{order_id}"'}
        async with self._free:
            while True:
                with suppress(httpx.TransportError):
                    url = f"http://host{self.path_of(order_id)}"
                    answer = await self._client.post(url, json={"order_id": order_id}, headers=headers)
                    if answer.status_code < SERVER_ERROR and answer.status_code != CONFLICT:
                        return
                await asyncio.sleep(PAUSE_SECONDS)


def publish(body: Mapping[str, str], queue: str) -> None:
    """Send a message to a queue at once, as a synchronous application does. With gevent it gives way to other greenlets."""
    connection = pika.BlockingConnection(pika.URLParameters(BROKER))
    with closing(connection):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, json.dumps(body).encode())
