"""What FastStream's middleware captures, on real brokers: receivers read it as they read what FastStream itself publishes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import nats
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitExchange, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from redis.asyncio import Redis

from onceonly import Endpoint
from onceonly.integrations.faststream import ExactlyOnceMiddleware
from tests.servers.available import NATS, RABBITMQ, REDIS, need
from tests.servers.kafka import kafka

BODIES: tuple[Any, ...] = ({"order_id": "a"}, [1, 2], "text", b"\xff\x00", None)


class Place(NamedTuple):
    """A broker twice: with the middleware, and as another program. `go` starts the handler, `to` is where it publishes."""

    url: str
    broker: type[Any]
    other: Any
    go: dict[str, Any]
    start: dict[str, Any]
    to: dict[str, Any]
    receive: Callable[[], Awaitable[Any]]
    transport: str = ""
    """The URL of the endpoint's transport, if it is not that of the broker."""
    topics: tuple[str, ...] = ()
    """What the handler subscribes to, where that has no name among the options."""


@asynccontextmanager
async def on_rabbitmq() -> AsyncIterator[Place]:
    """Publish to an exchange, and receive from a queue that is bound to it."""
    url, name = need(RABBITMQ), f"hosts-{uuid4().hex[:8]}"
    exchange = RabbitExchange(f"{name}-shop", auto_delete=True)
    async with RabbitBroker(url) as other:
        placed = other.subscriber(RabbitQueue(f"{name}-placed", routing_key="placed", auto_delete=True), exchange)
        await other.start()
        queue = RabbitQueue(f"{name}-go", auto_delete=True)
        to = {"queue": "placed", "exchange": exchange}
        yield Place(url, RabbitBroker, other, {"queue": queue}, {"queue": queue}, to, lambda: placed.get_one(timeout=20))


@asynccontextmanager
async def on_nats() -> AsyncIterator[Place]:
    """Publish to a subject of a stream."""
    url, name = need(NATS), f"hosts-{uuid4().hex[:8]}"
    client = await nats.connect(url)
    await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    stream = JStream(name, declare=False)
    try:
        async with NatsBroker(url) as other:
            placed = other.subscriber(f"{name}.placed", stream=stream, durable="placed", pull_sub=True)
            await other.start()
            go = {"subject": f"{name}.go", "stream": stream, "durable": "go", "pull_sub": True}
            start, to = ({"subject": f"{name}.{each}", "stream": name} for each in ("go", "placed"))
            yield Place(url, NatsBroker, other, go, start, to, lambda: placed.get_one(timeout=20))
    finally:
        await client.jetstream().delete_stream(name)
        await client.close()


@asynccontextmanager
async def on_redis() -> AsyncIterator[Place]:
    """Publish to a stream that has a group."""
    url, name = need(REDIS), f"hosts-{uuid4().hex[:8]}"
    go, to = ({"stream": f"{name}-{each}"} for each in ("go", "placed"))
    try:
        async with RedisBroker(url) as other:
            placed = other.subscriber(stream=StreamSub(to["stream"], group="g", consumer="c"))
            await other.start()
            start = {"stream": StreamSub(go["stream"], group="g", consumer="c")}
            yield Place(url, RedisBroker, other, start, go, to, lambda: placed.get_one(timeout=20))
    finally:
        async with Redis.from_url(url) as client:
            await client.delete(go["stream"], to["stream"])


@asynccontextmanager
async def on_kafka() -> AsyncIterator[Place]:
    """Publish to a topic."""
    with kafka() as url:
        servers, name = url.partition("://")[2], f"hosts-{uuid4().hex[:8]}"
        operator = AIOKafkaAdminClient(bootstrap_servers=servers)
        await operator.start()
        await operator.create_topics([NewTopic(f"{name}-{each}", 1, 1) for each in ("go", "placed")])
        try:
            async with KafkaBroker(servers) as other:
                placed = other.subscriber(f"{name}-placed", group_id=f"{name}-placed", auto_offset_reset="earliest")
                await other.start()
                go = {"group_id": name, "auto_offset_reset": "earliest", "session_timeout_ms": 6000}
                start, to = {"topic": f"{name}-go"}, {"topic": f"{name}-placed", "key": b"k-1"}
                yield Place(
                    servers, KafkaBroker, other, go, start, to, lambda: placed.get_one(timeout=20), url, (f"{name}-go",)
                )
        finally:
            await operator.delete_topics([f"{name}-go", f"{name}-placed"])
            await operator.close()


@pytest.mark.parametrize("opened", [on_rabbitmq, on_nats, on_redis, on_kafka])
async def test_receivers_read_what_is_captured_as_what_faststream_publishes(
    opened: Callable[[], AbstractAsyncContextManager[Place]], tmp_path: Path
) -> None:
    """The same values, headers and correlation ids."""

    async def publish(broker: Any, place: Place) -> None:
        for body in BODIES:
            await broker.publish(body, **place.to, headers={"tenant": "t"}, correlation_id="c-1")

    async def received(place: Place) -> list[str]:
        messages = [await place.receive() for _ in BODIES]
        for each in messages:
            await each.ack()
        return sorted([repr((await each.decode(), each.headers["tenant"], each.correlation_id)) for each in messages])

    async with opened() as place:
        shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=place.transport or place.url)
        broker = place.broker(place.url, middlewares=[ExactlyOnceMiddleware(shop, key=lambda _: "go")])

        @broker.subscriber(*place.topics, **place.go, ack_policy=AckPolicy.NACK_ON_ERROR)  # type: ignore[untyped-decorator]
        async def handle(_: dict[str, str]) -> None:
            await publish(broker, place)

        async with shop.sending(), broker:
            await broker.start()
            await place.other.publish({"go": "1"}, **place.start)
            captured = await received(place)
            await publish(place.other, place)
            assert captured == await received(place)
