"""What is specific to queues in SQS: delays in steps, order, settings of queues, topics, requests without a receiver."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from onceonly.adapters.aws.sqs import delays as sqs_delays
from onceonly.adapters.aws.sqs import topology as sqs_topology
from onceonly.adapters.aws.sqs.inbox import UNCLAIMED_SECONDS
from onceonly.adapters.aws.sqs.transport import SqsTransport
from onceonly.model.errors import QueueMissing, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from onceonly_conformance.clock import ManualClock
from tests.adapters.aws.sqs.harness import EVENT, PATIENCE, TOPOLOGY, Broker, commands, ids, message, opened, take


@pytest.fixture
async def broker(ministack_endpoint: str) -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened(ministack_endpoint) as place:
        yield place


@pytest.fixture
async def fifo(ministack_endpoint: str) -> AsyncIterator[Broker]:
    """Open a place with the FIFO queue `shop`."""
    async with opened(ministack_endpoint, options="&fifo=true") as place:
        yield place


@pytest.mark.parametrize("options", ["", "&fifo=true"])
async def test_a_long_delay_is_a_chain_of_short_ones(
    ministack_endpoint: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never early by the receiver's clock, not lost, and not a suspect, however many steps there are."""
    async with opened(ministack_endpoint, options=options) as place:
        await _delay_in_steps(place, monkeypatch)


async def _delay_in_steps(place: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqs_delays, "LONGEST_DELAY_SECONDS", 1)
    clock, steps = ManualClock(), 0
    transport = await place.transport(clock=clock)
    postpone = transport._delays._pass_on
    hopped = asyncio.Event()

    async def counted(*arguments: object) -> None:
        nonlocal steps
        await postpone(*arguments)  # type: ignore[arg-type] # as they came
        steps += 1
        hopped.set()

    monkeypatch.setattr(transport._delays, "_pass_on", counted)
    due = clock.now() + 3_600_000
    assert await transport.send(commands("m1", due=due)) == (Answer.TAKEN,)
    for _ in range(2):
        receiving = asyncio.create_task(transport.receive(1, PATIENCE))
        async with asyncio.timeout(PATIENCE):
            await hopped.wait()
        hopped.clear()
        assert not receiving.done()
        receiving.cancel()
        await asyncio.wait([receiving])
    clock.advance(3_600_000)
    (got,) = await take(transport, 1)
    assert (ids([got]), got.suspect) == (["m1"], False)
    await transport.ack([got])
    assert steps >= 2
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_a_delay_is_rounded_up_to_seconds(broker: Broker) -> None:
    """And is 15 minutes at most."""
    clock = ManualClock()
    delays = (await broker.transport(clock=clock))._delays
    asked = (-5, 0, 1, 1000, 1001, 900_000, 900_001, 10**12)
    assert [delays.seconds_until(clock.now() + each) for each in asked] == [0, 0, 1, 1, 2, 900, 900, 900]


async def test_messages_of_a_group_are_delivered_in_order(fifo: Broker) -> None:
    """More than one request takes, and one group does not hold up another."""
    transport = await fifo.transport()
    names = [f"m{number}" for number in range(24)]
    sends = [
        Send(message=message(f"{key}-{name}", extensions=(("partitionkey", key),)), to="shop")
        for name in names
        for key in ("a 1", "b")
    ]
    assert await transport.send(sends) == (Answer.TAKEN,) * 48
    got: list[str] = []
    while len(got) < 48:
        held = await transport.receive(20, PATIENCE)
        got += ids(held)
        await transport.ack(held)
    for key in ("a 1", "b"):
        assert [each for each in got if each.startswith(f"{key}-")] == [f"{key}-{name}" for name in names]


async def test_an_event_on_a_fifo_topic_keeps_its_group(fifo: Broker) -> None:
    """So does its release."""
    transport = await fifo.transport()
    await transport.send([Send(message=message(extensions=(("partitionkey", "c7"),)))])
    await transport.release(await take(transport, 1))
    link = await fifo.link()
    answer = await link.polls.receive_message(
        QueueUrl=await link.need(link.names.queue("shop")), MessageSystemAttributeNames=["All"], WaitTimeSeconds=5
    )
    assert [each["Attributes"]["MessageGroupId"] for each in answer["Messages"]] == ["c7"]


async def test_settings_of_the_queue_are_reported(broker: Broker) -> None:
    """Nothing to warn of in one that the library made."""
    report = await (await broker.transport()).check()
    assert dict(report.settings) == {
        "queue": "standard",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "1209600",
        "DelaySeconds": "0",
    }
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"MessageRetentionPeriod": "345600"}, "older than 4 days"),
        ({"DelaySeconds": "7"}, "delays events by 7 s"),
    ],
)
async def test_settings_that_lose_or_delay_messages_are_warned_of(
    broker: Broker, settings: dict[str, str], warning: str
) -> None:
    """An operator may have set them."""
    await broker.change(**settings)
    (told,) = (await (await broker.transport()).check()).warnings
    assert warning in told


async def test_a_redrive_policy_is_warned_of(broker: Broker) -> None:
    """SQS would move messages away that the library still counts."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="audit")])
    link = await broker.link()
    arn = (await link.attributes(await link.need(link.names.queue("audit")), "QueueArn"))["QueueArn"]
    await broker.change(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))
    (told,) = (await transport.check()).warnings
    assert "has a redrive policy" in told
    await sqs_topology.remove(link, [Topology(endpoint="audit")])


async def test_a_queue_that_is_too_small_is_a_setup_error(broker: Broker) -> None:
    """Before any message is committed that could not be sent. A lower `max_body` is the remedy."""
    await broker.change(MaximumMessageSize="262144")
    transport = await broker.transport()
    for call in (transport.check(), transport.declare([TOPOLOGY])):
        with pytest.raises(SetupError, match=r"262144 bytes .MaximumMessageSize.*max_body=737280 needs 1048576"):
            await call
    small = await broker.transport(url=f"{broker.url}&max_body=147456")
    await small.declare([TOPOLOGY])
    assert (await small.check()).warnings == ()


async def test_a_policy_of_the_operator_stays(broker: Broker) -> None:
    """The statement for topics is added once."""
    own = {"Sid": "own", "Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue", "Resource": "*"}
    await broker.change(Policy=json.dumps({"Version": "2012-10-17", "Statement": own}))
    for _ in range(2):
        await (await broker.transport()).declare([TOPOLOGY])
    link = await broker.link()
    found = await link.attributes(await link.need(link.names.queue("shop")), "Policy")
    assert [each["Sid"] for each in json.loads(found["Policy"])["Statement"]] == ["own", "onceonly-events"]


async def test_a_subscription_with_an_envelope_is_changed_to_raw_delivery(broker: Broker) -> None:
    """Somebody may have made it in the console."""
    transport, link = await broker.transport(), await broker.link()
    (found,) = await sqs_topology.subscribers(link, EVENT)
    await link.sns.set_subscription_attributes(
        SubscriptionArn=found["SubscriptionArn"], AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    await transport.declare([TOPOLOGY])
    assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
    assert ids(await take(transport, 1)) == ["m1"]


async def test_subscriptions_are_listed(broker: Broker) -> None:
    """So `onceonly status` shows those of earlier versions."""
    transport = await broker.transport()
    topology = Topology(endpoint="shop", events=("a.b", "köln *"))
    await transport.declare([topology])
    assert await transport.subscriptions("shop") == {EVENT, "a.b", "köln *"}
    assert await transport.subscriptions("nobody") == frozenset()
    await sqs_topology.remove(await broker.link(), [topology])


async def test_an_event_without_subscribers_is_counted(broker: Broker) -> None:
    """Also one whose topic does not exist, a delayed one and a large one."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="shop", gone=(EVENT,))])
    later, large = SystemClock().now() + 60_000, message(body=b"x" * 300_000)
    sends = [Send(message=message()), Send(message=message(), due=later), Send(message=large)]
    assert await transport.send(sends) == (Answer.TAKEN,) * 3
    await sqs_topology.remove(await broker.link(), [Topology(endpoint="audit", events=(EVENT,))])
    assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
    assert transport.unsubscribed.take() == {EVENT: 4}


async def test_an_event_over_the_limit_of_sns_goes_to_each_queue(broker: Broker) -> None:
    """SNS takes 256 KiB, SQS takes a megabyte."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="audit", events=(EVENT,))])
    body = bytes(transport.traits.max_body)
    assert await transport.send([Send(message=message(body=body))]) == (Answer.TAKEN,)
    for name in ("shop", "audit"):
        assert [each.body for each in await take(await broker.transport(name), 1)] == [body]
    assert transport.unsubscribed.take() == {}
    await sqs_topology.remove(await broker.link(), [Topology(endpoint="audit")])


@pytest.mark.parametrize("wait", [0.0, PATIENCE])
async def test_a_queue_that_is_deleted_meanwhile_is_a_setup_error(broker: Broker, wait: float) -> None:
    """At the next request, and it works again when the queue is declared again."""
    transport, link = await broker.transport(), await broker.link()
    assert await transport.receive(1, 0) == ()
    await sqs_topology.delete_queue(link, link.names.queue("shop"))
    with pytest.raises(QueueMissing):
        await transport.receive(1, wait)
    await transport.declare([TOPOLOGY])
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert ids(await take(transport, 1)) == ["m1"]


async def test_a_request_of_a_receiver_that_left_is_taken_over(broker: Broker) -> None:
    """What it brings comes to the next receiver, without a copy."""
    transport = await broker.transport()
    assert await transport.receive(10, 0.05) == ()
    (poll,) = transport._inbox._polls
    assert not poll.is_claimed
    receiving = asyncio.create_task(transport.receive(10, PATIENCE))
    await asyncio.sleep(0)
    assert poll.is_claimed
    await (await broker.transport()).send(commands("m1"))
    assert ids(await receiving) == ["m1"]


async def test_what_came_without_a_receiver_is_released(broker: Broker) -> None:
    """Another process gets it, not as a suspect and long before its lease ends; also when its process closes the queue."""
    first, second = await broker.transport(), await broker.transport()
    for name in ("m1", "m2"):
        receiving = asyncio.create_task(first.receive(10, PATIENCE))
        await asyncio.sleep(0.1)
        receiving.cancel()
        await asyncio.wait([receiving])
        (poll,) = first._inbox._polls
        await second.send(commands(name))
        await asyncio.wait([poll.task])
        if name == "m2":
            await first.close()
        else:
            await asyncio.sleep(UNCLAIMED_SECONDS)
        (got,) = await take(second, 1)
        assert (ids([got]), got.suspect) == ([name], False)
        await second.ack([got])


async def test_a_receiver_never_gets_more_than_it_asked_for(broker: Broker) -> None:
    """A request for ten that a receiver left is not for one who asks for two."""
    transport = await broker.transport()
    assert await transport.receive(10, 0.05) == ()
    await (await broker.transport()).send(commands("m1", "m2", "m3", "m4"))
    got: list[str] = []
    while len(got) < 4:
        held = await transport.receive(2, PATIENCE)
        assert len(held) <= 2
        got += ids(held)
        await transport.ack(held)
    assert sorted(got) == ["m1", "m2", "m3", "m4"]


async def test_many_receivers_of_one_process_compete(broker: Broker) -> None:
    """With batches of different sizes, each message comes to one of them, and none is released on the way."""
    transport = await broker.transport()
    names = [f"m{number}" for number in range(120)]
    await transport.send(commands(*names))
    got: list[str] = []

    async def receive(transport: SqsTransport, limit: int) -> None:
        while len(got) < len(names):
            held = await transport.receive(limit, 0.5)
            assert not [each for each in held if each.suspect]
            got.extend(ids(held))
            await transport.ack(held)

    async with asyncio.timeout(3 * PATIENCE):
        await asyncio.gather(*(receive(transport, limit) for limit in (1, 7, 10, 35)))
    assert sorted(got) == sorted(names)
