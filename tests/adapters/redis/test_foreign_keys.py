"""Keys of a queue that another program uses: they cost what they would have held, and stop nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from onceonly.adapters.redis.documents import RedisDocuments
from onceonly.formats import undecodable
from onceonly.formats.log_events import LoggedKeys
from onceonly.model.errors import CommitFailed, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.documents import Change
from onceonly.ports.transport import Depth, Topology
from onceonly.queues import destinations as silent
from onceonly.runtime.environment import SystemClock
from tests.adapters.redis.harness import EVENT, PATIENCE, Broker, commands, ids, message, opened, take

TAKEN, UNKNOWN = Answer.TAKEN, Answer.UNKNOWN
SOON, LATER = 20, 3_600_000


@pytest.fixture(autouse=True)
def _nothing_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thing is logged once in a process."""
    monkeypatch.setattr(undecodable, "_REPORTED_AT_BROKER", LoggedKeys())
    monkeypatch.setattr(silent, "_LOGGED", LoggedKeys())


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Open a place with the queue `shop`, whose leases are short."""
    async with opened(options="&lease=1") as place:
        yield place


def logged(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """Return the keys that were logged as this."""
    records = [each.__dict__ for each in caplog.records if each.levelno == logging.WARNING]
    return [each["found"] for each in records if each.get("what") == what]


async def test_a_list_of_released_entries_that_is_none_fails_no_release(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """What is released comes again when its lease would have ended, and is no suspect. The key is logged once."""
    transport = await broker.transport()
    await transport.send(commands("m1", "m2", "m3"))
    await broker.plain.set(broker.keys.queue("shop").released, "something else")
    held = await take(transport, 3)
    await transport.release(held)
    assert (await transport.depth("shop")).waiting == 3
    again = await take(transport, 3)
    assert sorted(ids(again)) == ["m1", "m2", "m3"]
    assert not any(each.suspect for each in again)
    await transport.release(again[:1])
    assert logged(caplog, "key") == [broker.keys.queue("shop").released.decode()]


async def test_a_wake_stream_that_is_none_stops_no_receiver(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed messages are stored once, releases are done, and receivers that wait do not look without a pause."""
    await broker.plain.set(broker.keys.queue("shop").wake, "something else")
    transport, looks = await broker.transport(), list[int]()
    take_now = transport._take

    async def counted(limit: int) -> object:
        looks.append(limit)
        return await take_now(limit)

    due = SystemClock().now() + SOON
    assert await transport.send([*commands("m1", "m2"), *commands("d1", due=due)]) == (TAKEN, TAKEN, TAKEN)
    assert (await transport.depth("shop")).waiting + (await transport.depth("shop")).delayed >= 2
    got = await take(transport, 3)
    await transport.release(got[:1])
    again = await take(transport, 1)
    assert ids(again) == ids(got[:1])
    await transport.ack([*got[1:], *again])
    monkeypatch.setattr(transport, "_take", counted)
    assert await transport.receive(1, 0.5) == ()
    assert len(looks) < 20
    assert logged(caplog, "key") == [broker.keys.queue("shop").wake.decode()]


async def test_a_set_of_delayed_messages_that_is_none_stops_only_these(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are sent and received, and the queue can be counted."""
    await broker.plain.set(broker.keys.queue("shop").delayed, "something else")
    transport = await broker.transport()
    later = SystemClock().now() + LATER
    for _ in range(2):
        assert await transport.send([*commands("d1", due=later), *commands("m1")]) == (UNKNOWN, TAKEN)
    assert await transport.depth("shop") == Depth(waiting=2, held=0, delayed=0)
    await transport.ack(await take(transport, 2))
    assert await transport.receive(1, 0.05) == ()
    assert logged(caplog, "key") == [broker.keys.queue("shop").delayed.decode()]
    assert caplog.text.count("destination cannot be served") == 1
    await broker.plain.delete(broker.keys.queue("shop").delayed)
    assert await transport.send(commands("d1", due=SystemClock().now() + SOON)) == (TAKEN,)
    async with asyncio.timeout(PATIENCE):
        assert ids(await take(transport, 1)) == ["d1"]


async def test_a_stream_that_is_none_delays_no_messages_to_others(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """Its sender is told once which key is meant."""
    transport = await broker.transport()
    await transport.declare([Topology(endpoint="other")])
    await broker.plain.delete(broker.keys.queue("other").stream)
    await broker.plain.set(broker.keys.queue("other").stream, "something else")
    for _ in range(2):
        assert await transport.send([*commands("x1", to="other"), *commands("m1")]) == (UNKNOWN, TAKEN)
    assert caplog.text.count("destination cannot be served") == 1


@pytest.mark.parametrize("key", ["subscriptions:shop", f"subscribers:{EVENT}"])
async def test_a_set_of_subscriptions_that_is_none_is_named(broker: Broker, key: str) -> None:
    """When the queue is declared. Commands, and events of other types, are sent."""
    transport = await broker.transport()
    name = broker.keys.start + key.encode()
    await broker.plain.delete(name)
    await broker.plain.set(name, "something else")
    with pytest.raises(SetupError, match=f"WRONGTYPE the key .*{key} is a string"):
        await transport.declare([Topology(endpoint="shop", events=(EVENT,))])
    other = Send(message=replace(message("e2"), type="shop.other"))
    event = UNKNOWN if key.startswith("subscribers") else TAKEN
    assert await transport.send([Send(message=message("e1")), other, *commands("m1")]) == (event, TAKEN, TAKEN)


async def test_a_document_whose_key_is_used_costs_only_itself(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be written; the others of the same call are. An index that is none refuses a write before it begins."""
    address = (await broker.transport())._link.address
    documents = RedisDocuments(broker.plain, address, clock=SystemClock())
    await broker.plain.set(f"{broker.prefix}d:b", "something else")
    try:
        saved = await documents.save([Change(key=key, body=b"1", expected="") for key in ("a", "b", "c")])
        assert [bool(version) for version in saved] == [True, False, True]
        assert {*await documents.load(["a", "b", "c"])} == {*await documents.load(["a", "b", "c"])} == {"a", "c"}
        assert logged(caplog, "document") == [f"{broker.prefix}d:b"]
        await broker.plain.set(f"{broker.prefix}i", "something else")
        with pytest.raises(CommitFailed, match=f"WRONGTYPE the key {broker.prefix}i is a string"):
            await documents.save([Change(key="d", body=b"1", expected="")])
        assert await documents.load(["d"]) == {}
    finally:
        await broker.plain.delete(*(f"{broker.prefix}{key}" for key in ("d:a", "d:b", "d:c", "d:d", "i", "e")))
