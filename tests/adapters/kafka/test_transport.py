"""The transport that sends to Kafka: what it writes, what it refuses, and what it is not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    TopicAuthorizationFailedError,
)
from msgspec.structs import replace

from onceonly import Endpoint, Exchange, Topic
from onceonly.adapters.kafka.address import read_address
from onceonly.adapters.kafka.link import KafkaConnection
from onceonly.adapters.kafka.wire import KafkaRecord, write_record
from onceonly.config.location import locate
from onceonly.errors import CommitFailed, InvalidEffect, SetupError
from onceonly.model.message import PARTITION_KEY, Send
from onceonly.model.record import Answer
from onceonly.queues.destinations import CopyOutcome
from onceonly_conformance.samples import message
from tests.conformance.destination_subjects import other
from tests.conformance.kafka_subjects import KafkaSubject
from tests.endpoint.transaction_harness import SimulatedEndpoint


@pytest.fixture
async def subject(kafka_url: str) -> AsyncIterator[KafkaSubject]:
    """Open topics of its own."""
    async with KafkaSubject.open(kafka_url) as opened:
        yield opened


async def test_a_missing_topic_does_not_affect_other_messages(subject: KafkaSubject) -> None:
    """Nor does what is sent to an endpoint."""
    topic, transport = await subject.create_topic(other()), await subject.transport()
    places = [f"topic:{other()}", f"topic:{topic}", "billing", f"topic:{topic}"]
    refused, taken = Answer.REFUSED, Answer.TAKEN
    assert await transport.send([Send(message=message(), to=each) for each in places]) == (refused, taken, refused, taken)


async def test_messages_with_one_key_are_in_one_partition_in_order(subject: KafkaSubject) -> None:
    """The key of the record is that of the message, so every client that hashes keys finds the same partition."""
    topic, transport = await subject.create_topic(other(), partitions=4), await subject.transport()
    names = [f"m{number}" for number in range(20)]
    keyed = [replace(message(name), extensions=((PARTITION_KEY, "A"),)) for name in names]
    assert set(await transport.send([Send(message=each, to=f"topic:{topic}") for each in keyed])) == {Answer.TAKEN}
    consumer = AIOKafkaConsumer(bootstrap_servers=subject.servers)
    async with consumer:
        consumer.assign([TopicPartition(topic, each) for each in range(4)])
        await consumer.seek_to_beginning()
        records = []
        while len(records) < len(names):
            for found in (await consumer.getmany(timeout_ms=10_000)).values():
                records += found
    assert {each.key for each in records} == {b"A"}
    assert len({each.partition for each in records}) == 1
    assert [dict(each.headers)["ce_id"].decode() for each in records] == names


async def test_it_has_no_queue(subject: KafkaSubject, tmp_path: Path) -> None:
    """An endpoint that would receive from it fails at its start, and says what to do."""
    transport = await subject.transport()
    await transport.declare(())
    with pytest.raises(SetupError, match=r"hosted\(\)"):
        await transport.receive(1, 0)
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=subject.url)

    @shop.handler(type="order")
    async def order(_: bytes) -> None: ...

    with pytest.raises(SetupError, match="Kafka has no queues for endpoints"):
        async with shop.running():
            pass
    async with shop.sending():  # handlers of a host do not need a queue
        pass


async def test_what_needs_a_queue_is_refused_at_the_call(kafka_url: str, tmp_path: Path) -> None:
    """A command to an endpoint, an event without a rule, a delay, another kind, and a name that no topic has."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=kafka_url, events={"placed": Topic("placed")})
    async with shop.sending(), shop.transaction() as tx:
        with pytest.raises(InvalidEffect, match=r"has no queues for endpoints\. Send it to Topic"):
            tx.send(b"", to="billing", type="x")
        with pytest.raises(InvalidEffect, match=r"events=\{'x': Topic"):
            tx.publish(b"", type="x")
        with pytest.raises(InvalidEffect, match="cannot delay"):
            tx.send(b"", to=Topic("orders"), type="x", delay=60)
        with pytest.raises(InvalidEffect, match="Use Topic"):
            tx.send(b"", to=Exchange("orders"), type="x")
        with pytest.raises(InvalidEffect, match="the name of a Kafka topic"):
            tx.send(b"", to=Topic("a topic"), type="x")


async def test_transactions_on_documents_need_a_queue(kafka_url: str) -> None:
    """Their control messages have none there. Handlers of a host send no control messages, and work."""
    elsewhere = Endpoint("shop", store="redis://127.0.0.1:1/0", transport=kafka_url)
    for opened in (elsewhere.sending(), elsewhere.transaction()):
        with pytest.raises(SetupError, match=r"need control messages.*no queue for them: use a SQL store"):
            async with opened:
                pass
    bank = SimulatedEndpoint(transport=kafka_url).bank
    async with bank.hosted() as hosted:
        outcome = await hosted.handle_one(b'{"account": "A", "amount": 1}', id="1")
        assert (outcome.is_settled, outcome.is_dead) == (True, False)
        with pytest.raises(SetupError, match="no queue for them"):
            async with bank.transaction():
                pass


async def test_brokers_that_are_away_are_an_outage() -> None:
    """Nothing listens there."""
    transport = await KafkaSubject("kafka://127.0.0.1:1").transport()
    with pytest.raises(CommitFailed, match=r"cannot connect to kafka://127\.0\.0\.1:1"):
        await transport.send([Send(message=message(), to="topic:orders")])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MessageSizeTooLargeError(), CopyOutcome.REFUSED),
        (NotEnoughReplicasError(), CommitFailed),
        (KafkaConnectionError(), CommitFailed),
        (TopicAuthorizationFailedError(), SetupError),
    ],
)
async def test_errors_say_whether_it_is_sent_again(error: Exception, outcome: object) -> None:
    """What the broker never takes is refused. Everything else stays a record."""
    connection = KafkaConnection(read_address("kafka://127.0.0.1:1"))
    try:
        found = connection._outcome(KafkaRecord("orders", None, [], b""), error)
        assert found is outcome or type(found) is outcome
    finally:
        await connection.close()


def test_a_record_that_is_too_large_is_refused_before_it_is_sent() -> None:
    """The headers count."""
    send = Send(message=replace(message(), headers=(("x", "y" * 5000),)), to="topic:orders")
    assert write_record(send, "orders", most=10_000) is not None
    assert write_record(send, "orders", most=5_000) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("kafka://", "not a Kafka URL"),
        ("kafka://host/orders", "not a Kafka URL"),
        ("kafka://user@host", "needs a password"),
        ("kafka://host?sasl=PLAIN", "needs a user"),
        ("kafka+tls://me:secret@host?sasl=X", "use one of PLAIN"),
        ("kafka://host?cafile=a.pem", r"kafka\+tls"),
        ("kafka://host?acks=1", "unknown option"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url: str, problem: str) -> None:
    """When the endpoint is defined."""
    with pytest.raises(SetupError, match=problem):
        locate(url, "transport").traits  # noqa: B018 - reads the URL


def test_a_url_has_several_brokers() -> None:
    """Each with its port, or that of Kafka."""
    address = read_address("kafka+tls://me:p%40ss@one,two:9093?sasl=SCRAM-SHA-512&max_body=5000")
    assert (address.servers, address.user, address.password) == (("one:9092", "two:9093"), "me", "p@ss")
    assert (address.traits.max_body, address.traits.has_queues) == (5000, False)
