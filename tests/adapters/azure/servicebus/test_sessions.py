"""Queues with sessions: order by key, what a dead process held, and sessions that are given up."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from onceonly.adapters.azure.servicebus import sessions as servicebus_sessions
from onceonly.adapters.azure.servicebus.address import SHARED_SESSIONS, is_shared_session, session_of
from onceonly.adapters.azure.servicebus.transport import ServiceBusTransport
from onceonly.model.errors import OutcomeUnknown, RetryableError, SetupError
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from tests.servers.servicebus.entities import Refused
from tests.servers.servicebus.harness import (
    PATIENCE,
    Place,
    commands,
    foreign,
    ids,
    keyed,
    opened,
    soon,
    take,
    until,
)

pytestmark = pytest.mark.slow

CHANCE = Random(7)  # noqa: S311 - for a test


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Open a namespace with the queue `shop`, which has sessions."""
    async with opened(Topology(endpoint="shop"), options="&sessions=true") as found:
        yield found


async def kill(place: Place, transport: ServiceBusTransport) -> None:
    """Cut all connections of a process, as its death does."""
    place.broker.disconnect()
    await until(lambda: not place.queue.sessions)
    await transport.close()


# Which session


def test_the_session_of_a_message_is_its_key() -> None:
    """Or a hash, if the service does not take the key, or the key looks like a session of this library."""
    assert session_of("customer 7", "s", "i") == "customer 7"
    odd = ["x" * 129, "\ud800", "onceonly-3", "onceonly-key-0"]
    found = [session_of(key, "s", "i") for key in odd]
    assert len({*found}) == len(odd)
    for session in found:
        assert session.startswith("onceonly-key-")
        assert not is_shared_session(session)


def test_messages_without_a_key_are_spread_over_a_few_sessions() -> None:
    """All copies of one are in the same."""
    found = [session_of("", "till", f"order-{number}") for number in range(1000)]
    assert len({*found}) == SHARED_SESSIONS
    assert all(map(is_shared_session, found))
    assert max(map(found.count, found)) < 2 * len(found) / SHARED_SESSIONS
    assert found[7] == session_of("", "till", "order-7")


# Order


async def test_messages_of_a_key_are_in_work_one_batch_at_a_time(place: Place) -> None:
    """Other keys go on."""
    transport = await place.transport()
    await transport.send([keyed("a1", "a"), keyed("a2", "a")])
    (first,) = await take(transport, 1)
    await transport.send([keyed("b1", "b")])
    assert [*ids([first]), *ids(await take(transport, 1))] == ["a1", "b1"]
    assert await transport.receive(10, 0.3) == ()
    await transport.ack([first])
    assert ids(await take(transport, 1)) == ["a2"]


async def test_receivers_of_one_process_never_hold_a_key_at_the_same_time(place: Place) -> None:
    """They look at the same session, and one of them gets its next message."""
    transport = await place.transport()
    names = [f"m{number}" for number in range(10)]
    await transport.send([keyed(name, "a") for name in names])
    done: list[str] = []
    while len(done) < len(names):
        got = await asyncio.gather(*(transport.receive(1, 0.1) for _ in range(3)))
        held = [each for several in got for each in several]
        assert len(held) <= 1
        done += ids(held)
        await transport.ack(held)
    assert done == names


async def test_messages_without_a_key_do_not_wait_for_each_other(place: Place) -> None:
    """Those of one session neither, in the process that holds it."""
    transport = await place.transport()
    same = [name for name in map(str, range(200)) if session_of("", "till", name) == session_of("", "till", "0")]
    assert len(same) > 2
    await transport.send(commands(*same[:2]))
    (first,) = await take(transport, 1)
    assert ids([first, *await take(transport, 1)]) == same[:2]
    await transport.send(commands(same[2]))
    assert ids(await take(transport, 1)) == [same[2]]


async def test_a_release_keeps_the_order_and_makes_no_suspect(place: Place) -> None:
    """Whatever part of a batch is released. What was handled does not come again."""
    transport = await place.transport()
    await transport.send([keyed(f"m{number}", "a") for number in range(5)])
    for expected in (["m0", "m1", "m2", "m3", "m4"], ["m1", "m2", "m3", "m4"], ["m2", "m3", "m4"]):
        held = await take(transport, len(expected))
        assert (ids(held), any(each.suspect for each in held)) == (expected, False)
        await transport.release(held[1:])
        await transport.ack(held[:1])


async def test_what_is_released_waits_for_what_is_in_work(place: Place) -> None:
    """Else it would be handled at the same time as the message before it."""
    transport = await place.transport()
    await transport.send([keyed("m1", "a"), keyed("m2", "a")])
    held = await take(transport, 2)
    await transport.release(held[1:])
    assert await (await place.transport()).receive(10, 0.3) == ()
    await transport.ack(held[:1])
    assert ids(await take(await place.transport(), 1)) == ["m2"]


async def test_the_order_of_each_key_is_kept_by_processes_that_compete(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They release a part of what they take, and give sessions up all the time."""
    monkeypatch.setattr(servicebus_sessions, "TURN_SECONDS", 0.05)
    monkeypatch.setattr(servicebus_sessions, "MOST_SESSIONS", 3)
    keys = [f"k{number}" for number in range(8)]
    await (await place.transport()).send([keyed(f"{key}-{number:02}", key) for number in range(15) for key in keys])
    done: dict[str, list[str]] = defaultdict(list)

    async def work() -> None:
        transport = await place.transport()
        while sum(map(len, done.values())) < 15 * len(keys):
            held = list(await transport.receive(CHANCE.randint(1, 20), 0.3))
            kept: list[str] = []
            for each in held:  # a message is handled only if those before it in its batch are
                (name,) = ids([each])
                key = name.partition("-")[0]
                if key in kept or CHANCE.random() < 0.2:
                    kept.append(key)
                else:
                    done[key].append(name)
            back = [each for each in held if ids([each])[0].partition("-")[0] in kept and ids([each])[0] not in _all(done)]
            await transport.ack([each for each in held if each not in back])
            await transport.release(back)

    async with asyncio.timeout(90):
        await asyncio.gather(*(work() for _ in range(3)))
    assert done == {key: [f"{key}-{number:02}" for number in range(15)] for key in keys}


def _all(done: dict[str, list[str]]) -> set[str]:
    return {name for names in done.values() for name in names}


async def test_a_delayed_message_keeps_its_session(place: Place) -> None:
    """It is at the end of its session when it is due."""
    transport = await place.transport()
    await transport.send([keyed("late", "a", due=place.broker.namespace.now() + 500), keyed("m1", "a")])
    held = await take(transport, 1)
    await transport.ack(held)
    assert ids([*held, *await take(transport, 1)]) == ["m1", "late"]


# What a process held


async def test_what_a_dead_process_held_comes_again_as_suspect(place: Place) -> None:
    """At once, and only that: messages behind it were never delivered. The service counts no delivery."""
    dying = await place.transport()
    await dying.send([keyed(f"m{number}", "a") for number in range(4)])
    held = await take(dying, 2)
    await kill(place, dying)
    assert {message.deliveries for message in place.queue.messages.values()} == {0}
    transport = await place.transport()
    again = await take(transport, 4)
    assert ids(again) == ["m0", "m1", "m2", "m3"]
    assert [each.suspect for each in again] == [True, True, False, False]
    await dying.ack(held)
    assert len(place.queue.messages) == 4


async def test_a_suspect_that_is_released_is_none_and_those_behind_it_still_are(place: Place) -> None:
    """The mark is cleared when every message before it was delivered."""
    dying = await place.transport()
    await dying.send([keyed("m1", "a"), keyed("m2", "a")])
    await take(dying, 2)
    await kill(place, dying)
    transport = await place.transport()
    held = await transport.receive(1, PATIENCE)
    await transport.release(held)
    again = await take(transport, 2)
    assert [each.suspect for each in again] == [True, True]
    await transport.release(again)
    assert [each.suspect for each in await take(transport, 2)] == [False, False]


async def test_a_transport_that_closes_with_deliveries_marks_them(place: Place) -> None:
    """It did not release them, so it may have been about to die."""
    first = await place.transport()
    await first.send([keyed("m1", "a")])
    await take(first, 1)
    await first.close()
    assert [each.suspect for each in await take(await place.transport(), 1)] == [True]


async def test_nothing_is_left_of_a_session_that_was_handled(place: Place) -> None:
    """Its state would be stored for ever."""
    transport = await place.transport()
    await transport.send([keyed(f"m{number}", f"k{number}") for number in range(10)])
    held = await take(transport, 10)
    assert place.queue.states
    await transport.ack(held)
    await until(lambda: not place.queue.states and not place.queue.sessions)


async def test_a_state_of_another_program_is_replaced(place: Place) -> None:
    """It marks nothing."""
    for state in (b"\xff", b"onceonly:", b"onceonly:x", b"other:99", "onceonly:٣".encode()):
        place.queue.states["a"] = state
        transport = await place.transport()
        await transport.send([keyed("m1", "a")])
        held = await take(transport, 1)
        assert not held[0].suspect
        await transport.ack(held)
        await transport.close()


# Locks


async def test_a_lock_that_ended_is_not_settled(place: Place) -> None:
    """The acknowledgement is ignored, and the message comes again, as a suspect."""
    transport = await place.transport()
    await transport.send([keyed("m1", "a")])
    held = await take(transport, 1)
    place.broker.namespace.end_locks()
    await transport.ack(held)
    await transport.release(held)
    await transport.extend(held)
    (again,) = await take(await place.transport(), 1)
    assert (ids([again]), again.suspect) == (["m1"], True)


async def test_an_extension_renews_each_session_once(place: Place) -> None:
    """However many of its messages are held."""
    transport = await place.transport()
    await transport.send([keyed(f"m{number}", f"k{number % 2}") for number in range(10)])
    held = await take(transport, 10)
    await transport.extend(held)
    assert place.broker.requests.count("renew-session-lock") == 2


async def test_many_messages_of_a_session_are_settled_with_one_frame(place: Place) -> None:
    """Those that were delivered one after the other."""
    transport = await place.transport()
    await transport.send([keyed(f"m{number}", "a") for number in range(50)])
    held = await take(transport, 50)
    await transport.ack(held[::2])
    await transport.ack(held[1::2])
    assert not place.queue.messages


async def test_a_connection_that_is_lost_with_deliveries_loses_none(place: Place) -> None:
    """The acknowledgement fails or is ignored, and the messages come again, as suspects."""
    transport = await place.transport()
    await transport.send([keyed("m1", "a"), keyed("m2", "b")])
    held = await take(transport, 2)
    place.broker.disconnect()
    with suppress(RetryableError):
        await transport.ack(held)
    await transport.ack(held)
    again: dict[str, bool] = {}
    async with asyncio.timeout(PATIENCE):
        while len(again) < 2:
            with suppress(RetryableError):
                again |= {ids([each])[0]: each.suspect for each in await transport.receive(2, 1.0)}
    assert again == {"m1": True, "m2": True}


# Sessions that are given up


async def test_a_session_without_messages_is_given_to_another_process(place: Place) -> None:
    """When its next message comes."""
    first, second = await place.transport(), await place.transport()
    await first.send([keyed("m1", "a")])
    await first.ack(await take(first, 1))
    await first.send([keyed("m2", "a")])
    assert ids(await take(second, 1)) == ["m2"]


async def test_a_process_that_takes_nothing_holds_no_session(place: Place) -> None:
    """It has accepted one for a receiver that has ended."""
    first, second = await place.transport(), await place.transport()
    assert await first.receive(1, 0) == ()
    await first.send([keyed("m1", "a")])
    await until(lambda: "a" in place.queue.sessions)
    assert ids(await take(second, 1)) == ["m1"]


async def test_a_receiver_that_comes_when_the_last_one_has_just_gone_is_served(place: Place) -> None:
    """Connections that wait for a session are given up after half a second without receivers."""
    transport, sender = await place.transport(), await place.transport()
    for pause in (0.45, 0.5, 0.55, 0.7, 0.75, 0.8):
        assert await transport.receive(1, 0) == ()
        await asyncio.sleep(pause)  # the moment in which they end is what matters
        waiting = asyncio.create_task(transport.receive(1, PATIENCE))
        await sender.send([keyed(f"{pause}", "a")])
        async with asyncio.timeout(PATIENCE / 4):
            held = await waiting
        await transport.ack(held)


async def test_more_keys_than_sessions_are_all_handled(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process holds a few of them, and never more."""
    monkeypatch.setattr(servicebus_sessions, "MOST_SESSIONS", 3)
    transport = await place.transport()
    names = [f"m{number}" for number in range(30)]
    await transport.send([keyed(name, name) for name in names])
    got: list[str] = []
    while len(got) < len(names):
        held = await take(transport, 1)
        assert len(place.queue.sessions) <= 3
        got += ids(held)
        await transport.ack(held)
    assert sorted(got) == sorted(names)


async def test_a_busy_session_gives_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds, here at once."""
    monkeypatch.setattr(servicebus_sessions, "MOST_SESSIONS", 1)
    monkeypatch.setattr(servicebus_sessions, "TURN_SECONDS", 0.0)
    transport = await place.transport()
    await transport.send([keyed(f"a{number}", "a") for number in range(6)])
    await transport.send([keyed("b", "b")])
    got: list[str] = []
    for _ in range(7):
        held = await transport.receive(1, PATIENCE)
        got += ids(held)
        await transport.ack(held)
    assert [name for name in got if name != "b"] == [f"a{number}" for number in range(6)]
    assert "b" in got


async def test_a_cancelled_receive_loses_nothing(place: Place) -> None:
    """Its message is delivered to another receiver, and is no suspect."""
    for steps in range(12):
        receiver, other = await place.transport(), await place.transport()
        waiting = asyncio.create_task(receiver.receive(10, PATIENCE))
        for _ in range(5):
            await asyncio.sleep(0)
        putting = asyncio.create_task(other.send([keyed(f"m{steps}", "a")]))
        for _ in range(steps * 10):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting, putting])
        holder = other if waiting.cancelled() else receiver
        got = waiting.result() if holder is receiver else await take(other, 1)
        assert (ids(got), [each.suspect for each in got]) == ([f"m{steps}"], [False])
        await holder.ack(got)
        await asyncio.gather(receiver.close(), other.close())


async def test_what_was_taken_at_the_moment_of_a_cancellation_is_released(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was too late to take nothing. The message is delivered to another receiver, and is no suspect."""
    take_of = servicebus_sessions.SessionInbox._take

    async def take_and_cancel(*arguments: Any) -> Any:
        got = await take_of(*arguments)
        receiving.cancel()
        return got

    receiver, other = await place.transport(), await place.transport()
    await other.send([keyed("m", "a")])
    with monkeypatch.context() as patching:
        patching.setattr(servicebus_sessions.SessionInbox, "_take", take_and_cancel)
        receiving = asyncio.create_task(receiver.receive(10, PATIENCE))
        await asyncio.wait([receiving])
    assert receiving.cancelled()
    got = await take(other, 1)
    assert (ids(got), [each.suspect for each in got]) == (["m"], [False])
    await other.ack(got)


async def test_a_waiting_receiver_gets_a_message_at_once(place: Place) -> None:
    """Many times in a row, each with another key."""
    transport, sender = await place.transport(), await place.transport()
    for number in range(10):
        waiting = asyncio.create_task(transport.receive(1, PATIENCE))
        await sender.send([keyed(f"m{number}", f"k{number}")])
        held = await soon(waiting)
        assert ids(held) == [f"m{number}"]
        await transport.ack(held)


# Trouble


async def test_a_service_that_is_busy_is_an_outage(place: Place) -> None:
    """Then it works again."""
    transport = await place.transport()
    assert await transport.receive(1, 0) == ()
    await transport.close()
    transport = await place.transport()
    await transport.send([keyed("m1", "a")])
    place.broker.refusals["shop"] = Refused("com.microsoft:server-busy", "The request was terminated: throttled.")
    with pytest.raises(RetryableError, match="throttled"):
        await transport.receive(1, PATIENCE)
    place.broker.refusals.clear()
    got: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not got:
            with suppress(RetryableError):
                got = ids(await transport.receive(1, 1.0))
    assert got == ["m1"]


async def test_a_state_that_cannot_be_written_delivers_nothing(place: Place) -> None:
    """A message that is not marked must not kill a process. It comes when the service works again."""
    transport = await place.transport()
    await transport.send([keyed("m1", "a")])
    place.broker.refused_operations["set-session-state"] = Refused("com.microsoft:server-busy", "throttled")
    assert await transport.receive(1, 1.0) == ()
    assert "set-session-state" in place.broker.requests
    place.broker.refused_operations.clear()
    (got,) = await take(transport, 1)
    assert (ids([got]), got.suspect) == (["m1"], False)


async def test_a_release_that_the_service_does_not_confirm_is_reported(place: Place) -> None:
    """The message comes again, as a suspect at worst."""
    transport = await place.transport()
    await transport.send([keyed("m1", "a")])
    held = await take(transport, 1)
    place.broker.refused_operations["set-session-state"] = Refused("com.microsoft:server-busy", "throttled")
    with pytest.raises(OutcomeUnknown):
        await transport.release(held)
    place.broker.refused_operations.clear()
    assert ids(await take(transport, 1)) == ["m1"]


@pytest.mark.parametrize("sessions", [True, False])
async def test_a_queue_of_the_other_kind_is_a_setup_error(place: Place, *, sessions: bool) -> None:
    """When it is declared, and when messages are received. The error names the option."""
    with_sessions, without = place.url, place.url.replace("&sessions=true", "")
    url, other = (with_sessions, without) if sessions else (without, with_sessions)
    await (await place.transport(url=url)).declare([Topology(endpoint="one")])
    transport = await place.transport("one", url=other)
    for call in (
        lambda: transport.declare([Topology(endpoint="one")]),
        transport.check,
        lambda: transport.receive(1, PATIENCE),
    ):
        with pytest.raises(SetupError, match=r"sessions=(true|false)"):
            await call()


async def test_a_foreign_message_without_a_session_is_refused_by_the_service(place: Place) -> None:
    """Its producer gets the error. Commands of endpoints always have a session."""
    with pytest.raises(Exception, match="requires a session id"):
        await place.put(foreign())
    plain = await place.transport("other", url=place.url.replace("&sessions=true", ""))
    assert await plain.send(commands("m1")) == (Answer.TAKEN,)
