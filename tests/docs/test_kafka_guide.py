"""The loop of the page about Kafka runs."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from onceonly import Context, Endpoint, IdentityField, Retry, Topic
from tests import ROOT
from tests.docs.test_documentation import snippet

PAGE = ROOT / "docs" / "how-to" / "kafka.md"
QUICK = Retry(immediate=0, delayed=2, first_delay=0.1, jitter=0)


async def test_the_loop_commits_up_to_what_must_be_delivered_again(kafka_url: str, tmp_path: Path) -> None:
    """A message that fails once is delivered again, with what is behind it. A copy sends nothing."""
    name, servers, handled = f"guide-{uuid4().hex[:8]}", kafka_url.partition("://")[2], list[str]()
    orders, placed = f"{name}-orders", f"{name}-placed"
    shop = Endpoint(
        "shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        transport=kafka_url,
        identity=IdentityField("id"),
        events={"placed": Topic(placed)},
        retry=QUICK,
    )

    @shop.handler(type="order")
    async def place(order: dict[str, str], context: Context) -> None:
        handled.append(order["id"])
        if handled.count("b") == 1 and order["id"] == "b":
            raise OSError("away")
        context.publish(order, type="placed")

    module: dict[str, Any] = {}
    exec(compile(snippet(PAGE, "# consume.py"), str(PAGE), "exec"), module)  # noqa: S102 - the page's program
    operator = AIOKafkaAdminClient(bootstrap_servers=servers)
    await operator.start()
    await operator.create_topics([NewTopic(each, 1, 1) for each in (orders, placed)])
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(orders, 0)])

    async def consume() -> None:
        async with shop.hosted() as hosted:
            await module["consume"](consumer, hosted)

    receiver = AIOKafkaConsumer(bootstrap_servers=servers)
    receiver.assign([TopicPartition(placed, 0)])
    try:
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer, consumer, receiver:
            for each in "abac":
                await producer.send_and_wait(orders, b'{"id": "%s"}' % each.encode())
            await receiver.seek_to_beginning()
            loop = asyncio.create_task(consume())
            reading = asyncio.gather(*(receiver.getone() for _ in "abc"))
            await asyncio.wait({loop, reading}, return_when=asyncio.FIRST_COMPLETED)
            assert not loop.done(), loop
            events = reading.result()
            while await consumer.committed(TopicPartition(orders, 0)) != len("abac"):
                assert not loop.done()
                await asyncio.sleep(0.01)
            await producer.send_and_wait(placed, b"end")
            behind = await receiver.getone()
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop
        assert sorted(each.value for each in events) == [b'{"id":"%s"}' % each for each in (b"a", b"b", b"c")]
        assert behind.value == b"end"
        assert handled.count("b") == 2
    finally:
        await operator.delete_topics([orders, placed])
        await operator.close()
