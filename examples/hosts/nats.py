"""NATS as the world around an application sees it: a stream of orders, and a stream of what was placed."""

import json
from collections.abc import Sequence

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from examples.hosts.harness import WireEvent

URL = "nats://127.0.0.1:4222"


class NatsWire:
    """Two streams of one run, whose subjects have the same names. An event's id is its `Nats-Msg-Id`, or its `ce-id`."""

    _client: Client
    _jetstream: JetStreamContext

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._events: list[WireEvent] = []
        self._next = 1

    async def prepare(self) -> None:
        """Make both streams."""
        self._client = await nats.connect(self._url)
        self._jetstream = self._client.jetstream()
        for name in (self._orders, self._placed):
            await self._jetstream.add_stream(name=name, subjects=[name])

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send one message for each id, as a client without ids of its own does."""
        for each in order_ids:
            await self._jetstream.publish(
                self._orders, json.dumps({"order_id": each}).encode(), headers={"content-type": "application/json"}
            )

    async def waiting(self) -> int:
        """Count the messages that the application's consumer has not acknowledged."""
        try:
            found = await self._jetstream.consumer_info(self._orders, self._orders)
        except NotFoundError:  # no process has made it yet
            return 1
        return (found.num_pending or 0) + (found.num_ack_pending or 0)

    async def events(self) -> Sequence[WireEvent]:
        """Read what was published since the last call."""
        last = (await self._jetstream.stream_info(self._placed)).state.last_seq
        for sequence in range(self._next, last + 1):
            message = await self._jetstream.get_msg(self._placed, sequence)
            headers = message.headers or {}
            id_ = headers.get("ce-id") or headers.get("Nats-Msg-Id") or ""
            self._events.append(WireEvent(id_, json.loads(message.data or b"{}")["order_id"]))
        self._next = last + 1
        return self._events

    async def clean(self) -> None:
        """Delete both streams."""
        for name in (self._orders, self._placed):
            await self._jetstream.delete_stream(name)
        await self._client.close()
