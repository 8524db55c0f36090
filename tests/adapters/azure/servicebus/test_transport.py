"""What is specific to Service Bus: settings of queues, credit of links, a service that is busy, connections that are lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from onceonly.model.errors import CommitFailed, OutcomeUnknown, QueueMissing, RetryableError, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from tests.servers.servicebus.entities import Refused
from tests.servers.servicebus.harness import (
    EVENT,
    PATIENCE,
    TOPOLOGY,
    Place,
    commands,
    ids,
    message,
    opened,
    soon,
    take,
    until,
)

BUSY = Refused("com.microsoft:server-busy", "The request was terminated because the entity is being throttled.")
EMPTY = Depth(waiting=0, held=0, delayed=0)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Open a namespace with the queue `shop`."""
    async with opened() as found:
        yield found


# Queues


async def test_settings_of_the_queue_are_reported(place: Place) -> None:
    """Nothing to warn of in one that the library made."""
    report = await (await place.transport()).check()
    assert dict(report.settings) == {
        "lock_duration": "0:01:00",
        "max_delivery_count": "2000",
        "requires_session": "false",
        "requires_duplicate_detection": "false",
        "max_size_in_megabytes": "1024",
    }
    assert report.warnings == ()


@pytest.mark.parametrize(
    ("setting", "value", "warning"),
    [
        ("MaxDeliveryCount", "10", "moves a message to the broker's own dead-letter queue after 10 deliveries"),
        ("DefaultMessageTimeToLive", "P14D", "drops messages after 14 days"),
        ("AutoDeleteOnIdle", "P7D", "is deleted when it is idle for 7 days"),
        ("Status", "SendDisabled", "is not active"),
    ],
)
async def test_settings_that_lose_messages_are_warned_of(place: Place, setting: str, value: str, warning: str) -> None:
    """An operator may have set them."""
    place.queue.settings[setting] = value
    (told,) = (await (await place.transport()).check()).warnings
    assert warning in told


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("LockDuration", "PT30S", "locks a message for 30 s, and the URL has lease=60"),
        ("ForwardTo", "sb://name/other", "forwards its messages"),
        ("RequiresSession", "true", "requires sessions"),
    ],
)
async def test_settings_that_break_a_promise_are_a_setup_error(place: Place, setting: str, value: str, why: str) -> None:
    """At start, and when the queue is declared."""
    place.queue.settings[setting] = value
    transport = await place.transport()
    for call in (transport.check, lambda: transport.declare([TOPOLOGY])):
        with pytest.raises(SetupError, match=why):
            await call()


async def test_the_lease_of_the_url_becomes_the_lock_duration(place: Place) -> None:
    """Of a new queue; it allows as many deliveries as the service can."""
    await (await place.transport(url=f"{place.url}&lease=90")).declare([Topology(endpoint="slow")])
    settings = place.broker.namespace.queues["slow"].settings
    assert (settings["LockDuration"], settings["MaxDeliveryCount"]) == ("PT1M30S", "2000")


async def test_a_subscription_that_forwards_elsewhere_is_a_setup_error(place: Place) -> None:
    """The endpoint would get no events."""
    place.broker.namespace.topics[f"event__{EVENT}"].subscriptions["shop"].settings["ForwardTo"] = "sb://name/other"
    with pytest.raises(SetupError, match="does not forward to queue 'shop'"):
        await (await place.transport()).declare([TOPOLOGY])


async def test_processes_declare_at_the_same_time(place: Place) -> None:
    """Each finds all of it afterwards."""
    kinds = tuple(f"kind{number}" for number in range(5))
    transports = [await place.transport() for _ in range(4)]
    topologies = [Topology(endpoint=f"e{number}", events=kinds) for number in range(4)]
    await asyncio.gather(*(each.declare([topology]) for each in transports for topology in topologies))
    assert [await transports[0].subscriptions(each.endpoint) for each in topologies] == [frozenset(kinds)] * 4


async def test_removing_queues_leaves_nothing_of_them_and_all_of_others(place: Place) -> None:
    """A topic goes with its last subscription."""
    transport = await place.transport()
    audit = Topology(endpoint="audit", events=(EVENT, "other"))
    await transport.declare([audit])
    await transport.remove([audit])
    assert set(place.broker.namespace.queues) == {"shop"}
    assert set(place.broker.namespace.topics) == {f"event__{EVENT}"}


@pytest.mark.parametrize("wait", [0.0, PATIENCE])
async def test_a_queue_that_is_deleted_meanwhile_is_reported(place: Place, wait: float) -> None:
    """Whether a receiver waits or not, and it works again when the queue is declared again."""
    transport = await place.transport()
    assert await transport.receive(1, 0) == ()
    waiting = asyncio.create_task(transport.receive(1, wait)) if wait else None
    await asyncio.sleep(0.1 if wait else 0)
    del place.broker.namespace.queues["shop"]
    with pytest.raises(QueueMissing, match="onceonly topology create"):
        await soon(waiting or transport.receive(1, 0))
    with pytest.raises(QueueMissing):
        await transport.depth("shop")
    await transport.declare([TOPOLOGY])
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert ids(await take(transport, 1)) == ["m1"]


# Credit


async def test_a_link_that_settles_takes_no_message(place: Place) -> None:
    """The SDK would ask for one when it opens the link, and another process would wait for it."""
    transport, other = await place.transport(), await place.transport()
    await transport.send(commands("m1"))
    await transport.ack(await take(transport, 1))
    await transport.send(commands("m2", "m3"))
    assert sorted(ids(await take(other, 2))) == ["m2", "m3"]


async def test_a_receiver_that_has_ended_takes_no_message(place: Place) -> None:
    """It has taken back its credit."""
    first, second = await place.transport(), await place.transport()
    assert await first.receive(100, 0.1) == ()
    await second.send(commands("m1", "m2"))
    assert len(await take(second, 2)) == 2


async def test_an_empty_queue_is_seen_at_once(place: Place) -> None:
    """Many times a second."""
    transport = await place.transport()
    async with asyncio.timeout(PATIENCE):
        for _ in range(200):
            assert await transport.receive(100, 0) == ()


async def test_many_messages_are_settled_with_one_request(place: Place) -> None:
    """Each request is billed."""
    transport = await place.transport()
    await transport.send(commands(*(f"m{number}" for number in range(100))))
    held = await take(transport, 100)
    place.broker.requests.clear()
    await transport.extend(held)
    await transport.ack(held)
    assert place.broker.requests == ["renew-lock", "update-disposition"]


async def test_locks_that_were_lost_do_not_keep_others_from_being_settled(place: Place) -> None:
    """The service refuses all of a request, so halves of it are sent."""
    transport = await place.transport()
    await transport.send(commands(*(f"m{number}" for number in range(9))))
    held = await take(transport, 9)
    tokens = list(place.queue.locked)
    for token in tokens[2:4]:
        place.queue.abandon(token)
    await transport.ack(held)
    assert len(place.queue.messages) == 2


# A service that is busy


async def test_a_service_that_is_busy_when_messages_are_sent_is_an_outage(place: Place) -> None:
    """Nothing was stored, and the sender tries again."""
    transport = await place.transport()
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    place.broker.refusals["shop"] = BUSY
    with pytest.raises(CommitFailed, match="throttled"):
        await transport.send(commands("m2", "m3"))
    place.broker.refusals.clear()
    assert await transport.send(commands("m2", "m3")) == (Answer.TAKEN,) * 2
    assert sorted(ids(await take(transport, 3))) == ["m1", "m2", "m3"]


async def test_one_queue_that_is_busy_does_not_hold_up_others(place: Place) -> None:
    """Its messages are uncertain, so they are sent again."""
    transport = await place.transport()
    await transport.declare([Topology(endpoint="audit")])
    await transport.send([*commands("m1"), *commands("a1", to="audit")])
    place.broker.refusals["audit"] = BUSY
    sends = [*commands("m2"), *commands("a2", to="audit"), *commands("m3")]
    assert await transport.send(sends) == (Answer.TAKEN, Answer.UNKNOWN, Answer.TAKEN)


async def test_one_queue_without_the_right_to_send_does_not_fail_others(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are sent again. The reason is logged once, and raised where there are no others."""
    transport = await place.transport()
    await transport.declare([Topology(endpoint="audit")])
    place.broker.refusals["audit"] = Refused("amqp:unauthorized-access", "Unauthorized access. 'Send' claim(s) are required.")
    sends = [*commands("m2"), *commands("a2", to="audit"), *commands("m3")]
    for _ in range(2):
        assert await transport.send(sends) == (Answer.TAKEN, Answer.UNKNOWN, Answer.TAKEN)
    assert caplog.text.count("destination cannot be served") == 1
    with pytest.raises(SetupError, match="claim"):
        await transport.send(commands("a2", to="audit"))


async def test_a_full_queue_is_no_outage(place: Place) -> None:
    """Its messages are not stored, and their senders keep them."""
    transport = await place.transport()
    place.queue.limit = 1
    assert await transport.send(commands("m1", "m2")) == (Answer.UNKNOWN,) * 2
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert len(place.queue.messages) == 1


async def test_a_service_that_is_busy_when_messages_are_received_is_an_outage(place: Place) -> None:
    """It refuses the link."""
    transport = await place.transport()
    place.broker.refusals["shop"] = BUSY
    with pytest.raises(RetryableError, match="throttled"):
        await transport.receive(1, 0)
    place.broker.refusals.clear()
    assert await transport.receive(1, 0) == ()


@pytest.mark.parametrize("operation", ["update-disposition", "renew-lock"])
async def test_a_service_that_is_busy_when_messages_are_settled_loses_none(place: Place, operation: str) -> None:
    """The acknowledgement is repeated."""
    transport = await place.transport()
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    place.broker.refused_operations[operation] = BUSY
    with pytest.raises(RetryableError):
        await (transport.ack(held) if operation == "update-disposition" else transport.extend(held))
    place.broker.refused_operations.clear()
    await transport.extend(held)
    await transport.ack(held)
    assert await transport.depth("shop") == EMPTY


# Connections


async def test_a_send_that_was_not_answered_is_unknown(place: Place) -> None:
    """The service has stored it, and the connection was lost before its answer."""
    transport = await place.transport()
    place.broker.silent = True
    assert await transport.send(commands("m1")) == (Answer.UNKNOWN,)
    place.broker.silent = False
    assert await transport.send(commands("m1")) == (Answer.TAKEN,)
    assert set(ids(await take(transport, 2))) == {"m1"}


async def test_a_sender_connects_again(place: Place) -> None:
    """Idle connections are closed by the service."""
    transport = await place.transport()
    for name in ("m1", "m2", "m3"):
        assert await transport.send(commands(name)) == (Answer.TAKEN,)
        place.broker.disconnect()
    assert {*ids(await take(await place.transport(), 3))} == {"m1", "m2", "m3"}


@pytest.mark.parametrize("how", ["reset", "end"])
@pytest.mark.parametrize("options", ["", "&sessions=true"])
async def test_a_waiting_receiver_notices_that_its_connection_was_lost(how: str, options: str) -> None:
    """It reports an outage, or connects again by itself. The next message comes."""
    async with opened(Topology(endpoint="shop"), options=options) as place:
        transport = await place.transport()
        assert await transport.receive(1, 0) == ()
        waiting = asyncio.create_task(transport.receive(1, PATIENCE))
        await asyncio.sleep(0.1)
        for peer in tuple(place.broker.peers):
            if how == "reset":
                peer.cut()
            elif peer._io is not None:
                peer._io.close()
        sent = asyncio.create_task((await place.transport()).send(commands("m1")))
        got: list[str] = []
        with suppress(RetryableError):
            got = ids(await soon(waiting))
        async with asyncio.timeout(PATIENCE):
            while not got:
                with suppress(RetryableError):
                    got = ids(await transport.receive(1, 1.0))
        assert got == ["m1"]
        assert await sent == (Answer.TAKEN,)


async def test_what_is_held_is_settled_on_another_connection(place: Place) -> None:
    """The service knows deliveries by their lock tokens."""
    transport = await place.transport()
    await transport.send(commands("m1", "m2"))
    held = await take(transport, 2)
    await transport.extend(held)
    place.broker.disconnect()
    with suppress(OutcomeUnknown):
        await transport.ack(held[:1])
    await transport.ack(held[:1])
    await transport.release(held[1:])
    assert ids(await take(await place.transport(), 1)) == ["m2"]
    assert len(place.queue.messages) == 1


async def test_a_service_that_does_not_answer_is_an_outage(place: Place) -> None:
    """After `timeout` seconds. Nothing waits for ever."""
    url = place.url.replace("timeout=10", "timeout=1")
    sender, transport = await place.transport(url=url), await place.transport(url=url)
    assert await sender.send(commands("m1")) == (Answer.TAKEN,)
    held = await take(transport, 1)
    await transport.extend(held)
    place.broker.deaf = True
    assert await soon(sender.send(commands("m2"))) == (Answer.UNKNOWN,)
    for call in (transport.ack(held), (await place.transport(url=url)).receive(1, 0)):
        with pytest.raises(RetryableError):
            await soon(call)
    place.broker.deaf = False
    await transport.ack(held)


async def test_what_a_closed_receiver_was_brought_comes_to_another_at_once(place: Place) -> None:
    """Not as a suspect, and long before its lock ends."""
    first, second = await place.transport(), await place.transport()
    waiting = asyncio.create_task(first.receive(10, PATIENCE))
    await asyncio.sleep(0.1)  # its request waits at the service, or not: both must work
    await second.send(commands("m1"))
    waiting.cancel()
    (taken,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(taken, tuple):
        await first.release(taken)
    await first.close()
    (got,) = await take(second, 1)
    assert (ids([got]), got.suspect) == (["m1"], False)


# Sending


async def test_large_messages_are_sent_in_several_batches(place: Place) -> None:
    """A batch has 256 KiB in the tier Standard."""
    transport = await place.transport()
    sends = [Send(message=message(f"m{number}", body=bytes(100_000)), to="shop") for number in range(7)]
    assert await transport.send(sends) == (Answer.TAKEN,) * 7
    assert ids(await take(transport, 7)) == [f"m{number}" for number in range(7)]


async def test_a_message_that_the_service_cannot_take_is_refused(place: Place) -> None:
    """One whose headers are too large, and one that is larger than the namespace allows; others of the call are taken."""
    transport = await place.transport(url=f"{place.url}&max_body=400000")
    huge = Send(message=message("huge", headers=(("x", "x" * 40_000),)), to="shop")
    large = Send(message=message("large", body=bytes(300_000)), to="shop")
    answers = await transport.send([huge, *commands("m1"), large, *commands("m2")])
    assert answers == (Answer.REFUSED, Answer.TAKEN, Answer.REFUSED, Answer.TAKEN)
    assert ids(await take(transport, 2)) == ["m1", "m2"]


async def test_a_delayed_event_waits_in_its_topic(place: Place) -> None:
    """It goes to those who subscribe when it is due, and is counted for them."""
    transport = await place.transport()
    await transport.send([Send(message=message("e1"), due=place.broker.namespace.now() + 700)])
    await transport.declare([Topology(endpoint="audit", events=(EVENT,))])
    assert (await transport.depth("shop", (EVENT,))).delayed == 1
    for name in ("shop", "audit"):
        assert ids(await take(await place.transport(name), 1)) == ["e1"]


async def test_a_copy_that_was_not_completed_makes_a_duplicate(place: Place) -> None:
    """The release has stored its copy, and the service did not answer to the rest. Deduplication drops one of the two."""
    transport = await place.transport()
    await transport.send(commands("m1"))
    held = await take(transport, 1)
    place.broker.refused_operations["update-disposition"] = BUSY
    with pytest.raises(RetryableError):
        await transport.release(held)
    place.broker.refused_operations.clear()
    place.broker.namespace.end_locks()
    await until(lambda: len(place.queue.messages) == 2)
    again = await take(transport, 2)
    assert sorted((ids([each])[0], each.suspect) for each in again) == [("m1", False), ("m1", True)]
