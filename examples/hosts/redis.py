"""Redis as the world around an application sees it: a stream of orders with a group, and a stream of what was placed."""

import json
from collections.abc import Sequence

from redis.asyncio import Redis

from examples.hosts.harness import WireEvent

URL = "redis://127.0.0.1:6379"


class RedisWire:
    """Two streams of one run. The body of an entry is its field `data`. An event's id is its field `ce-id`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._redis = Redis.from_url(url, decode_responses=True)
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._events: list[WireEvent] = []
        self._last = "-"

    async def prepare(self) -> None:
        """Make both streams, each with a group of the same name."""
        for name in (self._orders, self._placed):
            await self._redis.xgroup_create(name, name, id="0", mkstream=True)

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Add one entry for each id, as a client without ids of its own does."""
        for each in order_ids:
            await self._redis.xadd(self._orders, {"data": json.dumps({"order_id": each})})

    async def waiting(self) -> int:
        """Count the entries that the group has not acknowledged."""
        (group,) = await self._redis.xinfo_groups(self._orders)
        pending, lag = int(group["pending"]), group.get("lag")
        return pending + int(lag or 0)

    async def events(self) -> Sequence[WireEvent]:
        """Read what was added since the last call."""
        for entry, fields in await self._redis.xrange(self._placed, min=self._last):
            self._events.append(WireEvent(fields.get("ce-id", ""), json.loads(fields["data"])["order_id"]))
            self._last = f"({entry}"
        return self._events

    async def clean(self) -> None:
        """Delete both streams."""
        await self._redis.delete(self._orders, self._placed)
        await self._redis.aclose()
