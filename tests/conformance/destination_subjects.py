"""Another program on each broker: it creates queues, exchanges, subjects, streams and topics, and receives from them."""

import asyncio
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, TopicPartition
from pamqp import commands as spec

from onceonly.adapters.aws.client import ServiceError
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.wire import read as read_sqs_message
from onceonly.adapters.azure.queue.wire import read as read_queue_text
from onceonly.adapters.azure.servicebus.inbox import ServiceBusInbox
from onceonly.adapters.azure.servicebus.wire import body_of
from onceonly.adapters.azure.servicebus.wire import headers_of as read_properties
from onceonly.adapters.nats.wire import read_headers
from onceonly.adapters.rabbitmq.frames import delivered
from onceonly.adapters.rabbitmq.link import RabbitMQLink, attempt
from onceonly.adapters.rabbitmq.wire import headers_of as read_table
from onceonly.adapters.redis.entries import DATA, headers_of
from onceonly.model.destination import Destination, Exchange, Queue, Stream, Subject, Topic
from onceonly_conformance.destination_suite import Arrival
from tests.conformance.azure_queue_subjects import AzureQueueSubject
from tests.conformance.kafka_subjects import KafkaSubject
from tests.conformance.nats_subjects import NatsSubject
from tests.conformance.rabbitmq_subjects import RabbitMQSubject
from tests.conformance.redis_subjects import RedisSubject
from tests.conformance.servicebus_subjects import ServiceBusSubject
from tests.conformance.sqs_subjects import SqsSubject
from tests.servers.servicebus.entities import Topic as TopicOfStandIn

KEY = "order.placed"
PAUSE_SECONDS = 0.02
"""Between two looks at a broker that cannot wait for a message."""


def other() -> str:
    """Return a name that nobody else has, and that no prefix of a test begins."""
    return f"other-{uuid4().hex[:10]}"


async def waited(look: Callable[[], Awaitable[list[Arrival]]], wait: float) -> list[Arrival]:
    """Look until something is there, or the time is over."""
    end = time.monotonic() + wait
    while True:
        found = await look()
        if found or time.monotonic() >= end:
            return found
        await asyncio.sleep(PAUSE_SECONDS)


def name_of(destination: Destination) -> str:
    """Return the broker's own name."""
    name: str = getattr(destination, "name", "")
    return name


class RabbitMQDestinations(RabbitMQSubject):
    """A queue, and an exchange that is bound to a second queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.exchange, self.bound = other(), f"{other()}.Messages:Order Billed", other()

    async def create(self) -> tuple[Destination, ...]:
        """Declare them, on a connection that no transport uses. The subject deletes them at its end."""
        async with self._administering() as link, link.temporary_channel() as channel:
            for queue in (self.queue, self.bound):
                await channel.queue_declare(queue, durable=True)
            await channel.exchange_declare(self.exchange, exchange_type="direct", durable=True)
            await channel.queue_bind(self.bound, self.exchange, KEY)
        return Queue(self.queue), Exchange(self.exchange, KEY)

    async def missing(self) -> tuple[Destination, ...]:
        """Name others."""
        return Queue(other()), Exchange(other(), KEY)

    async def remove(self, destination: Destination) -> None:
        """Delete it."""
        async with self._administering() as link, link.temporary_channel() as channel:
            if isinstance(destination, Exchange):
                await channel.exchange_delete(destination.name)
            else:
                await channel.queue_delete(name_of(destination))

    async def exists(self, destination: Destination) -> bool:
        """Declare it passively."""
        name = name_of(destination)

        async def look(channel: Any) -> Any:
            is_exchange = isinstance(destination, Exchange)
            declare = channel.exchange_declare if is_exchange else channel.queue_declare
            return await declare(name, passive=True)

        async with self._administering() as link:
            return await attempt(link, f"look for {name}", look) is not None

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Get what is in the queue, or in that of the exchange."""
        queue = self.bound if isinstance(destination, Exchange) else self.queue
        async with self._administering() as link:
            return await waited(lambda: _all_of(link, queue), wait)


async def _all_of(link: RabbitMQLink, queue: str) -> list[Arrival]:
    found: list[Arrival] = []
    async with link.temporary_channel() as channel:
        while isinstance((got := await channel.basic_get(queue, no_ack=True)).delivery, spec.Basic.GetOk):
            message = delivered(got)
            found.append((read_table(message), message.body))
    return found


class NatsDestinations(NatsSubject):
    """A stream that stores all subjects below a word."""

    async def create(self) -> tuple[Destination, ...]:
        """Create it. Its name does not begin with the prefix of the test."""
        self._other, self._read = other(), 1
        await (await self._admin()).api(f"STREAM.CREATE.{self._other}", {"name": self._other, "subjects": [f"{self._other}.>"]})
        return (Subject(f"{self._other}.orders.placed"),)

    async def close(self, *, removes: bool) -> None:
        """Delete the stream."""
        if hasattr(self, "_other"):
            await (await self._admin()).api(f"STREAM.DELETE.{self._other}")
        await super().close(removes=removes)

    async def missing(self) -> tuple[Destination, ...]:
        """Name a subject of no stream."""
        return (Subject(f"{other()}.orders.placed"),)

    async def remove(self, destination: Destination) -> None:
        """Delete the stream of the subject."""
        await (await self._admin()).api(f"STREAM.DELETE.{name_of(destination).partition('.')[0]}")

    async def exists(self, destination: Destination) -> bool:
        """Ask which streams have the subject."""
        found = await (await self._admin()).api("STREAM.NAMES", {"subject": name_of(destination)})
        return bool(found and found.get("streams"))

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Read the stream on from what was read last."""
        link, subject = await self._admin(), name_of(destination)

        async def look() -> list[Arrival]:
            found: list[Arrival] = []
            asked = {"seq": self._read, "next_by_subj": subject}
            while answer := await link.api(f"STREAM.MSG.GET.{self._other}", asked):
                got = answer["message"]
                headers = read_headers(b64decode(got.get("hdrs", "")))
                found.append((headers, b64decode(got.get("data", ""))))
                asked["seq"] = self._read = got["seq"] + 1
            return found

        return await waited(look, wait)


class RedisDestinations(RedisSubject):
    """Streams that were empty when they were created. One has the body in another field."""

    async def create(self) -> tuple[Destination, ...]:
        """Create two, by a group. Their keys begin with the prefix of the test in braces, by which they are deleted."""
        keys = [f"{self.keys.start.decode()}not:ours: {uuid4().hex}" for _ in range(2)]
        for key in keys:
            await self.client.xgroup_create(key, "other", mkstream=True)
        return Stream(keys[0]), Stream(keys[1], "the body")

    async def missing(self) -> tuple[Destination, ...]:
        """Name another key."""
        return (Stream(f"{self.keys.start.decode()}missing"),)

    async def remove(self, destination: Destination) -> None:
        """Delete the key."""
        await self.client.delete(name_of(destination))

    async def exists(self, destination: Destination) -> bool:
        """Look for the key."""
        return bool(await self.client.exists(name_of(destination)))

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Read all entries, and delete them."""
        key = name_of(destination)
        body = (destination.field if isinstance(destination, Stream) else DATA).encode()

        async def look() -> list[Arrival]:
            found: list[Arrival] = []
            for id_, fields in await self.client.xrange(key):
                await self.client.xdel(key, id_)
                others = [part.decode() for pair in fields.items() if pair[0] != body for part in pair]
                found.append((headers_of(others), fields[body]))
            return found

        return await waited(look, wait)


class KafkaDestinations(KafkaSubject):
    """A topic, read by a consumer without a group."""

    _consumer: AIOKafkaConsumer | None = None

    async def create(self) -> tuple[Destination, ...]:
        """Create it, with a consumer that reads it from its beginning."""
        name = await self.create_topic(f"{other()}.Orders_Placed")
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await self._consumer.start()
        partition = TopicPartition(name, 0)
        self._consumer.assign([partition])
        await self._consumer.seek_to_beginning(partition)
        return (Topic(name),)

    async def close(self) -> None:
        """Close the consumer, too."""
        if self._consumer is not None:
            await self._consumer.stop()
        await super().close()

    async def missing(self) -> tuple[Destination, ...]:
        """Name another topic."""
        return (Topic(other()),)

    async def remove(self, destination: Destination) -> None:
        """Delete it."""
        await self.admin.delete_topics([name_of(destination)])

    async def exists(self, destination: Destination) -> bool:
        """List all topics."""
        return name_of(destination) in await self.admin.list_topics()

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Read on."""
        assert self._consumer is not None
        found = await self._consumer.getmany(timeout_ms=round(wait * 1000))
        return [
            (tuple((name.replace("ce_", "ce-"), value.decode()) for name, value in each.headers), each.value or b"")
            for records in found.values()
            for each in records
        ]


class SqsDestinations(SqsSubject):
    """Queues by name and by URL, a FIFO queue, and a topic with a subscription of one more queue."""

    async def create(self) -> tuple[Destination, ...]:
        """Create them. The emulator deletes them with its process."""
        link = await self._link()
        plain, by_url, fifo, copies = other(), other(), f"{other()}.fifo", other()
        urls = {
            name: (await link.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"} if name == fifo else {}))[
                "QueueUrl"
            ]
            for name in (plain, by_url, fifo, copies)
        }
        arn = (await link.sns.create_topic(Name=other()))["TopicArn"]
        endpoint = (await link.attributes(urls[copies], "QueueArn"))["QueueArn"]
        raw = {"RawMessageDelivery": "true"}
        await link.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=endpoint, Attributes=raw)
        self._urls = {plain: urls[plain], urls[by_url]: urls[by_url], fifo: urls[fifo], arn: urls[copies]}
        return Queue(plain), Queue(urls[by_url]), Queue(fifo), Topic(arn)

    async def missing(self) -> tuple[Destination, ...]:
        """Name others in the same account."""
        link = await self._link()
        arn = await link.topic("none")
        base = (await link.sqs.create_queue(QueueName=other()))["QueueUrl"].rpartition("/")[0]
        return Queue(other()), Queue(f"{base}/{other()}"), Topic(f"{arn.rpartition(':')[0]}:{other()}")

    async def remove(self, destination: Destination) -> None:
        """Delete it."""
        link = await self._link()
        if isinstance(destination, Topic):
            await link.sns.delete_topic(TopicArn=destination.name)
        else:
            await link.sqs.delete_queue(QueueUrl=self._urls[name_of(destination)])

    async def exists(self, destination: Destination) -> bool:
        """Read its attributes."""
        link, name = await self._link(), name_of(destination)
        try:
            if isinstance(destination, Topic):
                await link.sns.get_topic_attributes(TopicArn=name)
            else:
                await link.sqs.get_queue_url(QueueName=name.rpartition("/")[2])
        except ServiceError:
            return False
        return True

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Receive, and delete."""
        link, url = await self._link(), self._urls[name_of(destination)]
        return await waited(lambda: _received(link, url), wait)


async def _received(link: SqsLink, url: str) -> list[Arrival]:
    answer = await link.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    found: list[Arrival] = []
    for message in answer.get("Messages") or ():
        await link.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        read = read_sqs_message(message)
        found.append((read.headers, read.body))
    return found


class ServiceBusDestinations(ServiceBusSubject):
    """A queue, and a topic with a subscription that forwards to a second queue."""

    QUEUE, TOPIC, COPIES = "Sales.Queue", "orders/eu", "copies"

    async def create(self) -> tuple[Destination, ...]:
        """Create them in the stand-in."""
        namespace = self.server.broker.namespace
        for name in (self.QUEUE, self.COPIES):
            namespace.queues[name.lower()] = namespace.entity(name, {})
        topic = namespace.topics[self.TOPIC] = TopicOfStandIn(self.TOPIC, {})
        topic.subscriptions["all"] = namespace.entity("all", {"ForwardTo": f"sb://host/{self.COPIES}"})
        return Queue(self.QUEUE), Topic(self.TOPIC)

    async def missing(self) -> tuple[Destination, ...]:
        """Name others."""
        return Queue("Nothing"), Topic("nothing/eu")

    async def remove(self, destination: Destination) -> None:
        """Delete it."""
        namespace = self.server.broker.namespace
        del (namespace.topics if isinstance(destination, Topic) else namespace.queues)[name_of(destination).lower()]

    async def exists(self, destination: Destination) -> bool:
        """Look into the stand-in."""
        namespace = self.server.broker.namespace
        return name_of(destination).lower() in {*namespace.queues, *namespace.topics}

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Receive by the SDK, and complete."""
        link = (await self.transport())._link
        inbox = ServiceBusInbox(link, self.COPIES if isinstance(destination, Topic) else self.QUEUE)
        try:
            taken = await inbox.take(100, max(wait, PAUSE_SECONDS))
            await inbox.complete([receipt for _, receipt, _ in taken])
        finally:
            await inbox.close()
        return [(read_properties(message), body_of(message)[0]) for message, _, _ in taken]


class AzureQueueDestinations(AzureQueueSubject):
    """A queue of the account."""

    async def create(self) -> tuple[Destination, ...]:
        """Create it. The emulator deletes it with its process."""
        await self.transport()
        name = other()
        await self._links[0].create(name)
        return (Queue(name),)

    async def missing(self) -> tuple[Destination, ...]:
        """Name another one."""
        await self.transport()
        return (Queue(other()),)

    async def remove(self, destination: Destination) -> None:
        """Delete it."""
        await self._links[0].drop(name_of(destination))

    async def exists(self, destination: Destination) -> bool:
        """Look for it."""
        return await self._links[0].exists(name_of(destination))

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Receive, and delete."""
        link, queue = self._links[0], name_of(destination)

        async def look() -> list[Arrival]:
            found: list[Arrival] = []
            for message in await link.receive(queue, 32, 30):
                await link.delete(queue, message.id, message.pop_receipt or "")
                read = read_queue_text(message.content, message.id)
                found.append((read.headers, read.body))
            return found

        return await waited(look, wait)
