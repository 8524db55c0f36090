"""What is specific to queues in JetStream: settings of streams, delays, deliveries that nobody waits for, missing objects."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from onceonly.adapters.nats.delays import CHUNK, NatsDelayedMessages
from onceonly.adapters.nats.inbox import deliveries_of
from onceonly.adapters.nats.link import NatsArrival
from onceonly.adapters.nats.names import NatsNames, kind_of, subscriber_of
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.model.errors import CommitFailed, QueueMissing, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from onceonly_conformance.clock import ManualClock
from tests.adapters.nats.harness import EVENT, PATIENCE, Broker, commands, ids, message, opened, take


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened() as place:
        yield place


@pytest.mark.parametrize("kind", ["a.b", "*", ">", "a b", "köln", "=2e", "%", "x" * 1000])
def test_names_are_tokens_and_no_two_are_equal(kind: str) -> None:
    """Types are any text; a long one is a hash."""
    names = NatsNames("p.")
    subject = names.subscription(kind, "my.shop")
    assert subject.startswith("p.onceonly.subscription.")
    assert len(subject.split(".")) == 5
    assert not set(subject) & set(" *>")
    assert kind_of(subject) == (kind if len(kind) < 1000 else None)
    assert subscriber_of(subject) == "my.shop"


def test_a_delayed_message_is_not_due_before_its_time() -> None:
    """Its subject begins at the next tenth of a second."""
    names = NatsNames()
    for due in (1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_099):
        assert 0 <= (names.due_of("shop", names.delayed_until("shop", due)) or 0) - due < 100


@pytest.mark.parametrize(
    "reply", [b"$JS.ACK.s.c.3.10.11.170.0", b"$JS.ACK.hub.acc.s.c.3.10.11.170.0.r4nd", b"$JS.ACK._.acc.s.c.3.10.11.170.0"]
)
def test_the_count_of_deliveries_is_read_from_both_forms_of_the_subject(reply: bytes) -> None:
    """Newer servers put the domain and the account before the stream."""
    assert deliveries_of(NatsArrival(b"s", reply, b"", b"")) == 3


async def test_settings_of_the_streams_are_reported(broker: Broker) -> None:
    """Storage and replicas. One server with a file is a risk, whose cure is named."""
    report = await (await broker.transport()).check()
    assert dict(report.settings) | {"server": ""} == {"storage": "file", "replicas": "1", "server": ""}
    (warning,) = report.warnings
    assert warning.startswith(f"stream {broker.stream!r} has one replica")
    assert "replicas=3" in warning


async def test_a_stream_in_memory_is_used_and_warned_of(broker: Broker) -> None:
    """A restart of the server loses its messages."""
    async with broker.plain() as client:
        context = client.jetstream()
        await context.delete_stream(broker.stream)
        await context.add_stream(name=broker.stream, subjects=[broker.subject], retention="workqueue", storage="memory")
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="shop")])
    report = await transport.check()
    assert ("storage", "memory") in report.settings
    (warning,) = report.warnings
    assert "is stored in memory" in warning


@pytest.mark.parametrize("settings", [{"retention": "limits"}, {"retention": "workqueue", "subjects": ["other.{}"]}])
async def test_a_stream_with_other_settings_is_a_setup_error(broker: Broker, settings: dict[str, object]) -> None:
    """It would keep what is acknowledged, or never get what is sent."""
    subjects = [broker.subject]
    if "subjects" in settings:
        subjects = [f"{broker.subject}.other"]
    async with broker.plain() as client:
        context = client.jetstream()
        await context.delete_stream(broker.stream)
        await context.add_stream(name=broker.stream, subjects=subjects, retention=str(settings["retention"]))
    with pytest.raises(SetupError, match="exists with other settings"):
        await (await broker.transport()).declare([Topology(endpoint="shop")])


async def test_the_lease_of_the_url_becomes_that_of_the_consumer(broker: Broker) -> None:
    """Also of one that exists."""
    await (await broker.transport(url=f"{broker.url}&lease=90")).declare([Topology(endpoint="shop")])
    found = await (await broker.link()).api(f"CONSUMER.INFO.{broker.stream}.onceonly")
    assert found is not None
    assert found["config"]["ack_wait"] == 90_000_000_000


async def test_receiving_from_a_queue_that_was_never_declared_is_a_setup_error(broker: Broker) -> None:
    """Waiting for it would look like an empty queue."""
    with pytest.raises(QueueMissing, match="onceonly topology create"):
        await (await broker.transport("nobody")).receive(1, 0)


@pytest.mark.parametrize("wait", [0.0, PATIENCE])
async def test_a_queue_that_is_deleted_meanwhile_is_a_setup_error(broker: Broker, wait: float) -> None:
    """Whether a receiver waits or not, and it works again when the queue is declared again."""
    transport = await broker.transport()
    assert await transport.receive(1, 0) == ()
    waiting = asyncio.create_task(transport.receive(1, PATIENCE)) if wait else None
    await asyncio.sleep(0.1 if wait else 0)
    async with broker.plain() as client:
        await client.jetstream().delete_stream(broker.stream)
    with pytest.raises(QueueMissing):
        await (waiting or _never_empty(transport))
    await transport.declare([Topology(endpoint="shop")])
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert ids(await take(transport, 1)) == ["m1"]


async def _never_empty(transport: NatsTransport) -> None:
    while True:
        await transport.receive(1, 0)


async def test_many_delayed_messages_are_moved_once_by_receivers_that_compete(broker: Broker) -> None:
    """More than one chunk, with one due time: the server drops the copies of whoever is second."""
    clock = ManualClock()
    names = [f"m{number}" for number in range(CHUNK + 20)]
    sender = await broker.transport(clock=clock)
    await sender.send(commands(*names, due=clock.now() + 5_000))
    assert await sender.depth("shop") == Depth(waiting=0, held=0, delayed=len(names))
    clock.advance(5_000)
    receivers = [await broker.transport(clock=clock) for _ in range(3)]
    got: list[str] = []

    async def receive(number: int) -> None:
        while len(got) < len(names):
            deliveries = await receivers[number].receive(50, 0.5)
            got.extend(ids(deliveries))
            await receivers[number].ack(deliveries)

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(receive(number) for number in range(3)))
    assert sorted(got) == sorted(names)
    assert await sender.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_a_delay_to_the_own_endpoint_ends_while_a_receiver_waits(broker: Broker) -> None:
    """Retries are such messages."""
    transport = await broker.transport()
    waiting = asyncio.create_task(transport.receive(1, PATIENCE))
    await transport.send(commands("m1", due=SystemClock().now() + 300))
    assert ids(await waiting) == ["m1"]


async def test_a_receiver_that_waits_goes_on_moving_after_an_outage(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt to move what is due fails; nobody begins another receive."""
    transport, moved, calls = await broker.transport(), NatsDelayedMessages.move, list[int]()

    async def fail_first(self: NatsDelayedMessages) -> None:
        calls.append(len(calls))
        if calls == [0]:
            raise CommitFailed("the connection was lost")
        await moved(self)

    monkeypatch.setattr(NatsDelayedMessages, "move", fail_first)
    await (await broker.transport()).send(commands("m1", due=SystemClock().now() + 100))
    assert ids(await transport.receive(1, PATIENCE)) == ["m1"]


async def test_a_delayed_event_goes_to_those_who_subscribed_when_it_was_sent(broker: Broker) -> None:
    """Each has its own copy, which is counted for it."""
    clock = ManualClock()
    transport = await broker.transport(clock=clock)
    await transport.declare([Topology(endpoint="audit", events=(EVENT,))])
    await transport.send([Send(message=message(), due=clock.now() + 5_000)])
    await transport.declare([Topology(endpoint="audit", gone=(EVENT,))])
    assert [(await transport.depth(name)).delayed for name in ("shop", "audit")] == [1, 1]
    await (await broker.link()).api(f"STREAM.DELETE.{broker.names.queue('audit')}")


async def test_subscriptions_are_listed(broker: Broker) -> None:
    """So `onceonly status` shows those of earlier versions."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="shop", events=("a.b", "köln *"))])
    assert await transport.subscriptions("shop") == {EVENT, "a.b", "köln *"}
    assert await transport.subscriptions("nobody") == frozenset()


async def test_what_a_closed_receiver_was_brought_comes_to_another_at_once(broker: Broker) -> None:
    """Not as a suspect, and long before its lease ends."""
    first, second = await broker.transport(), await broker.transport()
    waiting = asyncio.create_task(first.receive(10, PATIENCE))
    await asyncio.sleep(0.2)  # its request waits at the server, or not: both must work
    await second.send(commands("m1"))
    waiting.cancel()
    (taken,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(taken, tuple):
        await first.release(taken)
    await first.close()
    (got,) = await take(second, 1)
    assert (ids([got]), got.suspect) == (["m1"], False)


async def test_a_message_that_the_server_cannot_take_is_refused(broker: Broker) -> None:
    """JetStream limits headers to 64 KiB; the others of the call are taken."""
    transport = await broker.transport()
    huge = Send(message=replace(message("huge"), headers=(("x-huge", "x" * 65_000),)), to="shop")
    assert await transport.send([huge, *commands("m1")]) == (Answer.REFUSED, Answer.TAKEN)
    assert ids(await take(transport, 1)) == ["m1"]


async def test_a_delivery_is_taken_back_from_a_receiver_that_lost_its_connection(broker: Broker) -> None:
    """An acknowledgement works on the next connection, because the server knows deliveries by their subject."""
    transport = await broker.transport()
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    await transport._link.drop()
    await transport.ack(held)
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_an_operator_sees_the_records_of_subscriptions(broker: Broker) -> None:
    """One message for each, however often it is declared."""
    for _ in range(3):
        await (await broker.transport()).declare([Topology(endpoint="shop", events=(EVENT,))])
    async with broker.plain() as client:
        answer = await client.request(f"$JS.API.STREAM.INFO.{broker.names.subscriptions}", b"")
    assert json.loads(answer.data)["state"]["messages"] == 1
