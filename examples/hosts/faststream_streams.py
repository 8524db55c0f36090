"""Redis as the world around an application of FastStream sees it: a stream of orders, and a stream of what was placed."""

import json
from collections.abc import Sequence
from typing import Any

from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis

from examples.hosts.harness import WireEvent

URL = "redis://127.0.0.1:6379"
GROUP = "shop"
BODY = "__data__"
"""The field of an entry that FastStream reads: headers and body in its own envelope."""


class FastStreamStreams:
    """Two streams of one run, read and written in FastStream's envelope. An event's id is its header `message_id`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._client: Any = Redis.from_url(url)
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._events: list[WireEvent] = []
        self._last = "-"

    async def prepare(self) -> None:
        """Make both streams, and the application's group from the first order on."""
        for name in (self._orders, self._placed):
            await self._client.xgroup_create(name, GROUP, id="0", mkstream=True)

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Add one entry for each id, as a client without ids of its own does."""
        for each in order_ids:
            body = await BinaryMessageFormatV1.encode(
                message={"order_id": each}, reply_to=None, headers=None, correlation_id=each
            )
            await self._client.xadd(self._orders, {BODY: body})

    async def waiting(self) -> int:
        """Count the entries that the group has not read or not acknowledged."""
        (group,) = await self._client.xinfo_groups(self._orders)
        return int(group["pending"]) + int(group["lag"] or 0)

    async def events(self) -> Sequence[WireEvent]:
        """Read what was published since the last call."""
        for entry, fields in await self._client.xrange(self._placed, min=self._last):
            body, headers = BinaryMessageFormatV1.parse(fields[BODY.encode()])
            self._events.append(WireEvent(headers.get("message_id", ""), json.loads(body)["order_id"]))
            self._last = f"({entry.decode()}"
        return self._events

    async def clean(self) -> None:
        """Delete both streams."""
        await self._client.delete(self._orders, self._placed)
        await self._client.aclose()
