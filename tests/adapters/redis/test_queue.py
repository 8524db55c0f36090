"""Leases, releases and delays on streams."""

import asyncio
from itertools import pairwise

import pytest

from onceonly.adapters.redis import scripts, transport
from onceonly.adapters.redis.address import GROUP
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from onceonly_conformance.clock import ManualClock
from tests.adapters.redis.harness import EVENT, PATIENCE, commands, ids, message, opened, take, until

TAKEN = (Answer.TAKEN,)


async def test_an_ack_of_an_earlier_delivery_of_the_same_process_is_ignored() -> None:
    """Also after a release, which ends the delivery."""
    async with opened() as broker:
        receiver = await broker.transport()
        await receiver.send(commands("m1"))
        first = await take(receiver, 1)
        await receiver.release(first)
        second = await take(receiver, 1)
        await receiver.ack(first)
        await receiver.release(first)
        assert await receiver.depth("shop") == Depth(waiting=0, held=1, delayed=0)
        await receiver.ack(second)
        assert await receiver.depth("shop") == Depth(waiting=0, held=0, delayed=0)


async def test_what_is_released_again_and_again_holds_up_nothing() -> None:
    """With one delivery at a time, others are received in between; released ones in turn."""
    async with opened() as broker:
        receiver = await broker.transport()
        await receiver.send(commands("a", "b"))
        seen = []
        for _ in range(12):
            (delivery,) = await take(receiver, 1)
            seen += ids([delivery])
            await receiver.release([delivery])
        assert seen.count("a") == seen.count("b") == 6
        await receiver.send(commands("new"))
        got = []
        for _ in range(3):
            (delivery,) = await take(receiver, 1)
            got += ids([delivery])
            await receiver.release([delivery])
        assert "new" in got


async def test_a_release_that_is_overlooked_is_no_suspect_when_it_is_found() -> None:
    """If the list of released entries is gone, the entry is claimed after a lease like any other, without the mark."""
    async with opened(options="&lease=0.2") as broker:
        receiver = await broker.transport()
        await receiver.send(commands("m1"))
        await receiver.release(await take(receiver, 1))
        await broker.plain.delete(broker.keys.queue("shop").released)
        (again,) = await take(await broker.transport(), 1)
        assert (ids([again]), again.suspect) == (["m1"], False)


async def test_a_receiver_that_waits_finds_a_lease_that_ends() -> None:
    """It looks for ended leases itself: the server tells nobody."""
    async with opened(options="&lease=0.5") as broker:
        holder, receiver = await broker.transport(), await broker.transport()
        await holder.send(commands("m1"))
        await take(holder, 1)
        (again,) = await receiver.receive(1, PATIENCE)
        assert (ids([again]), again.suspect) == (["m1"], True)


async def test_many_ended_leases_are_found_behind_many_live_ones() -> None:
    """A look at a part of the held entries goes on where the last one ended."""
    names = [f"m{number}" for number in range(2500)]
    async with opened() as broker:
        holder = await broker.transport()
        await holder.send(commands(*names))
        held = await take(holder, len(names))
        last = held[-1].receipt
        assert isinstance(last, transport.RedisReceipt)
        idle = 10**9
        await broker.plain.xclaim(broker.stream, GROUP, last.consumer, 0, [last.id], idle=idle, justid=True)
        (again,) = await take(await broker.transport(), 1)
        assert (ids([again]), again.suspect) == ([names[-1]], True)


async def test_delayed_messages_are_moved_once_by_many_receivers() -> None:
    """Each is delivered once, not before it is due, and earlier ones first."""
    async with opened() as broker:
        receivers = [await broker.transport() for _ in range(4)]
        now = SystemClock().now()
        dues = {f"m{number}": now + 300 + 2 * number for number in range(100)}
        await receivers[0].send([send for name, due in dues.items() for send in commands(name, due=due)])
        got: list[str] = []

        async def drain(each: transport.RedisTransport) -> None:
            while len(got) < len(dues) and (more := await each.receive(7, PATIENCE if not got else 1)):
                now = SystemClock().now()
                assert all(dues[name] <= now for name in ids(more))
                got.extend(ids(more))
                await each.ack(more)

        await asyncio.gather(*map(drain, receivers))
        assert sorted(got) == sorted(dues)
        assert all(dues[one] - dues[other] < 100 for one, other in pairwise(got))


async def test_a_waiting_receiver_wakes_for_a_message_that_is_due_before_the_others() -> None:
    """It is not waited for as long as for those that were there."""
    async with opened(options="&timeout=120") as broker:  # longer than the test has patience
        receiver, sender = await broker.transport(), await broker.transport()
        now = SystemClock().now()
        await sender.send(commands("late", due=now + 3_600_000))
        receiver._interval = receiver._waiter._longest = 3_600_000
        await receiver.receive(1, 0)
        waiting = asyncio.ensure_future(receiver.receive(1, PATIENCE))
        await until(lambda: _has_blocked(broker.plain))
        await sender.send(commands("soon", due=SystemClock().now() + 50))
        assert ids(await waiting) == ["soon"]


async def _has_blocked(client: object) -> bool:
    found = await client.info("clients")  # type: ignore[attr-defined]
    return bool(found["blocked_clients"])


async def test_a_delayed_event_goes_to_those_who_subscribe_when_it_is_sent() -> None:
    """It waits in the queue of each. Without subscribers it is counted at once."""
    both = [Topology(endpoint=name, events=(EVENT,)) for name in ("shop", "audit")]
    async with opened(*both) as broker:
        clock = ManualClock()
        sender = await broker.transport(clock=clock)
        assert await sender.send([Send(message=message(), due=clock.now() + 60_000)]) == TAKEN
        other = Send(message=message(type="nobody"), due=clock.now() + 60_000)
        assert await sender.send([other]) == TAKEN
        assert sender.unsubscribed.take() == {"nobody": 1}
        await sender.declare([Topology(endpoint="late", events=(EVENT,))])
        clock.advance(60_000)
        for name, expected in (("shop", ["m1"]), ("audit", ["m1"]), ("late", [])):
            assert ids(await (await broker.transport(name, clock=clock)).receive(10, 0)) == expected


async def test_events_without_subscribers_are_counted() -> None:
    """By their type, as on other brokers."""
    async with opened() as broker:
        sender = await broker.transport()
        kinds = ["a", EVENT, "b", "a"]
        assert await sender.send([Send(message=message(type=kind)) for kind in kinds]) == TAKEN * 4
        assert sender.unsubscribed.take() == {"a": 2, "b": 1}


async def test_acked_entries_leave_nothing_behind() -> None:
    """Neither in the stream nor in the group."""
    async with opened() as broker:
        receiver = await broker.transport()
        await receiver.send(commands(*(f"m{number}" for number in range(50))))
        await receiver.ack(await take(receiver, 50))
        assert await broker.plain.xlen(broker.stream) == 0
        assert (await broker.plain.xpending(broker.stream, GROUP))["pending"] == 0


async def test_a_transport_that_is_closed_leaves_the_group_unless_it_holds_something() -> None:
    """Deleting its consumer would delete what it holds."""
    async with opened() as broker:
        await (await broker.transport()).send(commands("m1"))
        holder, idle = await broker.transport(), await broker.transport()
        held = await take(holder, 1)
        await idle.receive(1, 0)
        await idle.close()
        await holder.close()
        names = [each["name"] for each in await broker.plain.xinfo_consumers(broker.stream, GROUP)]
        assert names == [held[0].receipt.consumer]  # type: ignore[attr-defined]


async def test_consumers_of_dead_processes_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a later declaration, once they hold nothing."""
    async with opened() as broker:
        dead, receiver = await broker.transport(), await broker.transport()
        await dead.receive(1, 0)
        await asyncio.sleep(0.01)
        monkeypatch.setattr(transport, "FORGET_CONSUMERS_SECONDS", 0)
        await receiver.declare([Topology(endpoint="shop")])
        assert await broker.plain.xinfo_consumers(broker.stream, GROUP) == []
        await receiver.send(commands("m1"))
        assert ids(await take(dead, 1)) == ["m1"]


async def test_depth_counts_more_held_entries_than_one_page() -> None:
    """Ended leases are counted page by page."""
    async with opened(options="&lease=600") as broker:
        receiver = await broker.transport()
        await receiver.send(commands(*(f"m{number}" for number in range(2100))))
        held = await take(receiver, 2100)
        assert await receiver.depth("shop") == Depth(waiting=0, held=2100, delayed=0)
        expired = [each.receipt.id for each in held[:2050]]  # type: ignore[attr-defined]
        owner = held[0].receipt.consumer  # type: ignore[attr-defined]
        await broker.plain.xclaim(broker.stream, GROUP, owner, 0, expired, idle=10**9, justid=True)
        assert await receiver.depth("shop") == Depth(waiting=2050, held=50, delayed=0)


def test_the_name_of_released_entries_is_no_consumer_of_a_process() -> None:
    """Names of consumers contain the process and a random part."""
    assert b"-" not in scripts.RELEASED


async def test_removing_queues_leaves_nothing_of_them_and_all_of_others() -> None:
    """Also the subscriptions that another version of the endpoint declared."""
    both = [Topology(endpoint=name, events=(EVENT, "more")) for name in ("shop", "audit")]
    async with opened(*both) as broker:
        remover = await broker.transport()
        await remover.send([*commands("m1"), *commands("m2", due=SystemClock().now() + 3_600_000)])
        await remover.remove([Topology(endpoint="shop")])
        left = {key.removeprefix(broker.keys.start) async for key in broker.plain.scan_iter(match=broker.keys.start + b"*")}
        assert left == {b"stream:audit", b"subscriptions:audit", b"subscribers:more", b"subscribers:" + EVENT.encode()}
        assert await broker.plain.smembers(broker.keys.subscribers("more")) == {b"audit"}
