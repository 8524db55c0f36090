"""What is specific to Azure queues: receipts that change, marks of releases, delays of weeks, answers that are lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import pytest

from onceonly.adapters.azure.queue import client as queue_client
from onceonly.adapters.azure.queue import delays as queue_delays
from onceonly.adapters.azure.queue.client import MOST_RECEIVED
from onceonly.adapters.azure.queue.delays import hidden_seconds
from onceonly.adapters.azure.queue.transport import AzureQueueTransport
from onceonly.model.errors import OutcomeUnknown, QueueMissing, RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_subject import Moment
from tests.adapters.azure.queue.harness import EVENT, PATIENCE, Broker, commands, ids, message, opened, take
from tests.servers.azurite import Azurite
from tests.servers.cutting_http import Request

WEEK_MS = 7 * 24 * 3600 * 1000
EMPTY = Depth(waiting=0, held=0, delayed=0)


@pytest.fixture
async def broker(azurite_storage: Azurite) -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`."""
    async with opened(azurite_storage) as place:
        yield place


def is_put(request: Request) -> bool:
    """Recognize the request that adds a message."""
    return request.method == "POST"


def is_update(request: Request) -> bool:
    """Recognize the request that changes a message."""
    return request.method == "PUT" and "/messages/" in request.target


def is_delete(request: Request) -> bool:
    """Recognize the request that deletes a message."""
    return request.method == "DELETE" and "/messages/" in request.target


# Sending


async def test_messages_never_expire(broker: Broker) -> None:
    """By default the service would delete them after seven days."""
    transport = await broker.transport()
    for queue in (broker.queue, broker.delayed):
        client = broker.service.get_queue_client(queue)
        await transport._link.put(queue, "one more")
        years = [each.expires_on.year async for each in client.receive_messages(max_messages=1, visibility_timeout=1)]
        assert years == [9999]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_send_whose_answer_is_lost_is_unknown(broker: Broker, moment: Moment) -> None:
    """The others of the call are taken. It is not sent a second time by the driver."""
    cutter, url = await broker.cut(is_put)
    transport = await broker.transport(url=url)
    cutter.cut = moment
    answers = await transport.send(commands("m1", "m2", "m3"))
    assert Counter(answers) == {Answer.TAKEN: 2, Answer.UNKNOWN: 1}
    assert len(await broker.texts()) == (2 if moment == "before" else 3)
    cutter.cut = moment
    with pytest.raises(OutcomeUnknown):
        await transport.send(commands("m4"))


async def test_an_event_is_unknown_when_one_subscriber_did_not_answer(broker: Broker) -> None:
    """It is sent again to all."""
    cutter, url = await broker.cut(is_put)
    transport = await broker.transport(url=url)
    await transport.declare([Topology(endpoint="audit", events=(EVENT,))])
    cutter.cut = "before"
    answers = await transport.send([Send(message=message("e1")), *commands("m1", to="audit")])
    assert Answer.UNKNOWN in answers
    assert await transport.send([Send(message=message("e1"))]) == (Answer.TAKEN,)
    assert (await transport.depth("audit")).waiting >= 1


async def test_an_event_is_taken_for_a_subscriber_whose_queue_was_deleted(broker: Broker) -> None:
    """Its copy is dropped. Where it was the only one, the event is counted as one without subscribers."""
    transport = await broker.transport()
    await broker.service.delete_queue(broker.queue)
    assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
    assert transport.unsubscribed.take() == {EVENT: 1}
    await transport.declare([Topology(endpoint="audit", events=(EVENT,))])
    assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
    assert not transport.unsubscribed.take()


async def test_what_does_not_fit_is_refused_and_the_others_are_taken(broker: Broker) -> None:
    """With a larger `max_body` not all headers fit. A body without large headers does."""
    rng = Random(7)  # noqa: S311 - bytes that cannot be compressed
    transport = await broker.transport(url=broker.url("&max_body=45056"))
    body = rng.randbytes(45056)
    headers = tuple((f"x-{number}", rng.randbytes(2000).hex()) for number in range(4))
    large = Send(message=message("large", body=body, headers=headers), to="shop")
    plain = Send(message=message("plain", body=body), to="shop")
    assert await transport.send([large, plain]) == (Answer.REFUSED, Answer.TAKEN)
    (got,) = await take(transport, 1)
    assert got.body == body


# Receiving


async def test_a_batch_is_received_with_several_requests(broker: Broker) -> None:
    """One request has 32 messages at most."""
    transport = await broker.transport()
    names = [f"m{number}" for number in range(100)]
    await transport.send(commands(*names))
    got = await transport.receive(100, PATIENCE)
    assert len(got) > 2 * MOST_RECEIVED
    assert len(set(ids(got)) & set(names)) == len(got)


async def test_a_receiver_of_the_same_process_is_woken(broker: Broker) -> None:
    """It does not wait for its next look."""
    link = await broker.link(broker.url().replace("poll=0.1", "poll=9999"))
    transport = AzureQueueTransport(link, "shop", clock=ManualClock())
    assert await transport.receive(1, 0) == ()
    transport._polls.next = transport._delays.look_at = asyncio.get_running_loop().time() + 9999
    waiting = asyncio.create_task(transport.receive(1, 9999))
    await asyncio.sleep(0)
    await AzureQueueTransport(link, "other", clock=ManualClock()).send(commands("m1"))
    async with asyncio.timeout(PATIENCE):
        assert ids(await waiting) == ["m1"]


async def test_the_pauses_of_an_idle_receiver_grow_from_call_to_call(broker: Broker) -> None:
    """A worker that asks often makes no more requests."""
    cutter, url = await broker.cut(lambda request: request.method == "GET")
    transport = await broker.transport(url=url.replace("poll=0.1", "poll=9999"))
    for _ in range(30):
        assert await transport.receive(1, 0.01) == ()
    assert cutter.writes < 15


async def test_a_queue_that_was_never_declared_is_a_setup_error(broker: Broker) -> None:
    """Waiting for it would look like an empty queue."""
    with pytest.raises(QueueMissing, match="onceonly topology create"):
        await (await broker.transport("nobody")).receive(1, 0)
    with pytest.raises(QueueMissing, match="onceonly topology create"):
        await (await broker.transport("nobody")).depth("nobody")


async def test_a_queue_that_is_deleted_and_declared_again_works(broker: Broker) -> None:
    """A worker reports the missing queue meanwhile."""
    transport = await broker.transport()
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    await broker.service.delete_queue(broker.queue)
    with pytest.raises(QueueMissing):
        await transport.receive(1, 0)
    await transport.extend(held)
    await transport.release(held)
    await transport.ack(held)
    await transport.declare([Topology(endpoint="shop")])
    await transport.send(commands("m2"))
    assert ids(await take(transport, 1)) == ["m2"]


# Leases


async def test_a_delivery_is_acked_with_the_receipt_of_its_last_renewal(broker: Broker) -> None:
    """Each renewal makes the receipt before invalid."""
    transport = await broker.transport()
    await transport.send(commands("m1", "m2"))
    held = await take(transport, 2)
    for _ in range(3):
        await transport.extend(held)
    await asyncio.gather(transport.extend(held), transport.ack(held), transport.extend(held))
    assert await transport.depth("shop") == EMPTY


async def test_a_cancelled_renewal_keeps_the_new_receipt(broker: Broker) -> None:
    """The request ends by itself."""
    transport = await broker.transport()
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    for steps in range(8):
        extending = asyncio.create_task(transport.extend(held))
        for _ in range(steps):
            await asyncio.sleep(0)
        extending.cancel()
        await asyncio.wait([extending])
    await transport.ack(held)
    assert await transport.depth("shop") == EMPTY


async def test_a_delivery_whose_renewal_was_not_answered_is_one_whose_lease_ended(broker: Broker) -> None:
    """Its new receipt is not known here. Its acknowledgement is ignored, and it comes again as a suspect."""
    cutter, url = await broker.cut(is_update)
    transport = await broker.transport(url=url + "&lease=1")
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    cutter.cut = "after"
    with pytest.raises(OutcomeUnknown):
        await transport.extend(held)
    await transport.ack(held)
    (again,) = await take(await broker.transport(), 1)
    assert (ids([again]), again.suspect) == (["m1"], True)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_ack_that_was_not_answered_can_be_repeated(broker: Broker, moment: Moment) -> None:
    """Whether it was executed or not."""
    cutter, url = await broker.cut(is_delete)
    transport = await broker.transport(url=url)
    await transport.send(commands("m1", "m2"))
    held = await take(transport, 2)
    cutter.cut = moment
    with pytest.raises(RetryableError):
        await transport.ack(held)
    await transport.ack(held)
    assert await transport.depth("shop") == EMPTY


async def test_a_released_message_has_a_mark_that_nobody_sees(broker: Broker) -> None:
    """However often it is released. A crash afterwards makes it a suspect."""
    transport = await broker.transport()
    await transport.send(commands("m1"))
    (text,) = await broker.texts()
    for count in (1, 2, 3):
        held = await take(transport, 1)
        assert [each.suspect for each in held] == [False]
        await transport.release(held)
        assert await broker.texts() == [f"onceonly-released:{count}\n{text}"]
    dying = await broker.transport(url=broker.url("&lease=1"))
    await take(dying, 1)
    (again,) = await take(transport, 1)
    assert (ids([again]), again.suspect) == (["m1"], True)


async def test_a_message_without_room_for_a_mark_is_released_as_a_suspect(broker: Broker) -> None:
    """It is delivered again, unchanged."""
    text = "x" * 65_530
    await broker.plain.send_message(text)
    transport = await broker.transport()
    await transport.release(await take(transport, 1))
    (again,) = await take(transport, 1)
    assert (again.body, again.suspect) == (text.encode(), True)


# Delays


def test_a_message_is_hidden_until_it_is_due_and_for_a_week_at_most() -> None:
    """In whole seconds, rounded up: never early."""
    assert [hidden_seconds(due, 1000) for due in (0, 1000, 1001, 2000, 2001)] == [0, 0, 1, 1, 2]
    assert hidden_seconds(3 * WEEK_MS, 0) == WEEK_MS // 1000


async def test_a_delay_of_more_than_a_week_ends_when_it_is_due(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is hidden again and again; here for a second each time, instead of a week."""
    monkeypatch.setattr(queue_delays, "LONGEST_HIDDEN_SECONDS", 1)
    clock = ManualClock()
    transport = await broker.transport(clock=clock)
    await transport.send(commands("m1", due=clock.now() + 3 * WEEK_MS))
    looks = 0
    put = transport._link.update

    async def counted(*arguments: str, hidden: int, text: str | None = None) -> str:
        nonlocal looks
        looks += 1
        return await put(*arguments, hidden=hidden, text=text)

    monkeypatch.setattr(transport._link, "update", counted)
    while looks < 2:
        assert await transport.receive(1, 0.5) == ()
    assert (await transport.depth("shop")).waiting + (await transport.depth("shop")).delayed >= 1
    clock.advance(3 * WEEK_MS)
    (got,) = await take(transport, 1)
    assert (ids([got]), got.suspect) == (["m1"], False)
    await transport.ack([got])
    assert await transport.depth("shop") == EMPTY


async def test_a_message_that_is_visible_too_early_is_hidden_again(broker: Broker) -> None:
    """The clock of its sender was ahead."""
    clock, ahead = ManualClock(), ManualClock()
    ahead.advance(59_500)
    sender, transport = await broker.transport(clock=ahead), await broker.transport(clock=clock)
    await sender.send(commands("m1", due=clock.now() + 60_000))
    for _ in range(3):
        assert await transport.receive(1, 1.0) == ()
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=1)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_move_that_was_not_answered_loses_nothing(
    broker: Broker, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is repeated. So a copy may come twice, with one identity."""
    monkeypatch.setattr(queue_delays, "MOVE_SECONDS", 1)
    clock = ManualClock()
    await (await broker.transport(clock=clock)).send(commands("m1", due=clock.now() + 1000))
    clock.advance(1000)
    cutter, url = await broker.cut(is_put)
    transport = await broker.transport(url=url, clock=clock)
    cutter.cut = moment
    got: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while await transport.depth("shop") != EMPTY or not got:
            try:
                deliveries = await transport.receive(10, 0.2)
            except OutcomeUnknown:
                continue
            got += ids(deliveries)
            await transport.ack(deliveries)
    assert set(got) == {"m1"}


async def test_the_queue_of_delayed_messages_is_created_again(broker: Broker) -> None:
    """An operator may have deleted it. A delayed command to nobody is refused."""
    transport = await broker.transport()
    await broker.service.delete_queue(broker.delayed)
    later = 4_000_000_000_000
    assert await transport.receive(1, 0) == ()
    answers = await transport.send([*commands("m1", due=later), *commands("m2", to="nobody", due=later)])
    assert answers == (Answer.TAKEN, Answer.REFUSED)
    assert await transport.depth("shop") == Depth(waiting=0, held=0, delayed=1)


# Queues and subscriptions


async def test_processes_declare_at_the_same_time(broker: Broker) -> None:
    """None of them removes the subscription of another."""
    kinds = [f"kind{number}" for number in range(6)]
    transports = [await broker.transport() for _ in range(4)]
    topologies = [Topology(endpoint=f"e{number}", events=tuple(kinds)) for number in range(4)]
    await asyncio.gather(*(each.declare([topology]) for each in transports for topology in topologies))
    found = [await transports[0].subscriptions(topology.endpoint) for topology in topologies]
    assert found == [frozenset(kinds)] * 4


async def test_a_subscription_that_ended_begins_again_at_once(broker: Broker) -> None:
    """Azure blocks the name of a deleted queue for 30 seconds, so it is not deleted."""
    transport = await broker.transport()
    for _ in range(2):
        await transport.declare([Topology(endpoint="shop", gone=(EVENT,))])
        assert await transport.subscriptions("shop") == frozenset()
        await transport.declare([Topology(endpoint="shop", events=(EVENT,))])
        assert await transport.subscriptions("shop") == {EVENT}


async def test_a_queue_that_an_operator_created_is_used(broker: Broker) -> None:
    """With whatever metadata."""
    await broker.service.create_queue(broker.names.queue("own"), metadata={"team": "shop"})
    transport = await broker.transport("own")
    await transport.declare([Topology(endpoint="own")])
    assert await transport.send(commands("m1", to="own")) == (Answer.TAKEN,)
    assert ids(await take(transport, 1)) == ["m1"]


async def test_a_queue_that_is_being_deleted_is_an_outage(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator has no such state, so its answer is replaced."""
    transport = await broker.transport()
    monkeypatch.setattr(queue_client, "code_of", lambda _: "QueueBeingDeleted")
    with pytest.raises(OutcomeUnknown, match="30 seconds"):
        await transport.send(commands("m1", to="nobody"))


async def test_many_waiting_messages_are_counted(broker: Broker) -> None:
    """The service shows 32 of them. So with more, those that are held count as waiting."""
    transport = await broker.transport()
    await transport.send(commands(*(f"m{number}" for number in range(40))))
    await take(transport, 3)
    assert await transport.depth("shop") == Depth(waiting=40, held=0, delayed=0)
    await take(transport, 30)
    assert await transport.depth("shop") == Depth(waiting=7, held=33, delayed=0)


async def test_removing_queues_leaves_nothing_of_them_and_all_of_others(broker: Broker) -> None:
    """Also subscriptions that have ended."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="audit", events=(EVENT,)), Topology(endpoint="shop", gone=(EVENT,))])
    await transport.remove([Topology(endpoint="shop", events=(EVENT,))])
    left = {queue.name async for queue in broker.service.list_queues(name_starts_with=f"{broker.prefix}-")}
    names = broker.names
    assert left == {names.queue("audit"), names.delayed("audit"), names.subscription(EVENT, "audit")}
