"""Members, ids, counts and names that others wrote to Redis: each costs itself, and nothing else."""

import pytest

from onceonly.adapters.redis.transport import RedisTransport
from onceonly.formats.cloudevents import UNREADABLE
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from tests.adapters.redis.harness import EVENT, Broker, commands, ids, message, opened, take
from tests.fuzzing import Inputs

PAST = 1_700_000_000_000
MEMBERS = (
    *(
        b"",
        b"x",
        b"x" * 11,
        b"x" * 12,
        b"x" * 15,
        bytes(16),
        b"x" * 12 + b"\xff\xff\xff\xff",
        bytes(12) + b"\x00\x00\x00\x01\xc1",
    ),
    *(
        bytes(12) + b"\x00\x00\x00\x01\x90",
        bytes(12) + b"\x00\x00\x00\x02\x91\x01",
        bytes(12) + b"\x00\x00\x00\x03\x92\x01\x02",
    ),
    bytes(12) + b"\x00\x00\x4e\x23\xdc\x4e\x20" + b"\xa0" * 20_000,
    bytes(12) + b"\x00\x00\x00\x14\x9a" + b"\xa1a" * 5 + b"\xc0" + b"\xa1b" * 4,
)


async def test_bad_members_of_the_sorted_set_stop_no_delayed_message() -> None:
    """Each is unreadable, with its bytes as the body."""
    async with opened() as broker:
        delayed = broker.keys.queue("shop").delayed
        transport = await broker.transport()
        await broker.plain.zadd(delayed, dict.fromkeys(MEMBERS, 1) | {b"never": float("inf")})
        await transport.send(commands("good"))
        got = await take(transport, len(MEMBERS) + 1)
        unreadable = [each for each in got if each.headers and each.headers[0][0] == UNREADABLE]
        assert sorted(each.body for each in unreadable) == sorted(MEMBERS)
        assert ids([each for each in got if each not in unreadable]) == ["good"]
        await transport.ack(got)
        assert await transport.receive(1, 0.01) == ()


async def test_bad_ids_in_the_list_of_released_entries_are_passed_over() -> None:
    """What was taken in the same step is delivered."""
    async with opened() as broker:
        transport, released = await broker.transport(), broker.keys.queue("shop").released
        for number in range(4):
            await broker.plain.rpush(released, "x", "", "9" * 30 + "-1", "1-1", b"\xff")
            await transport.send(commands(f"m{number}"))
            (got,) = await take(transport, 1)
            assert not got.suspect
            await transport.release([got])
            (got,) = await take(transport, 1)
            await transport.ack([got])
        await broker.plain.delete(released)
        await broker.plain.set(released, "text")
        await transport.send(commands("last"))
        assert ids(await take(transport, 1)) == ["last"]


@pytest.mark.parametrize("count", [2**53 + 1, 2**63 - 2, 2**63 - 1])
async def test_a_huge_count_of_deliveries_stops_no_release(count: int) -> None:
    """It starts again at the first step."""
    async with opened(options="&lease=0.2") as broker:
        transport = await broker.transport()
        await transport.send(commands("m1"))
        (got,) = await take(transport, 1)
        claim = (
            "return #redis.call('XCLAIM', KEYS[1], 'onceonly', 'o', 0, ARGV[1], 'IDLE', 9999, 'RETRYCOUNT', ARGV[2], 'JUSTID')"
        )
        await broker.plain.eval(claim, 1, broker.stream, got.receipt.id, count)
        (got,) = await take(transport, 1)
        await transport.release([got])
        (got,) = await take(transport, 1)
        assert not got.suspect
        await transport.ack([got])
        assert await broker.plain.xlen(broker.stream) == 0


@pytest.mark.parametrize("name", ["a b", "", "Shop", "shop\n", "x" * 64, b"\xff", b"a\x00"], ids=repr)
async def test_a_subscriber_that_no_endpoint_can_be_is_ignored(name: bytes | str) -> None:
    """No key is made of its name."""
    async with opened() as broker:
        await broker.plain.sadd(broker.keys.subscribers(EVENT), name)
        await broker.plain.sadd(broker.keys.queue("shop").subscriptions, b"\xff")
        transport = await broker.transport()
        assert await transport.send([Send(message=message())]) == (Answer.TAKEN,)
        assert await transport.send(commands("m2", to="a b")) == (Answer.REFUSED,)
        assert await transport.subscriptions("shop") == {EVENT}
        assert len([key async for key in broker.plain.scan_iter(match=broker.keys.start + b"stream:*", count=1000)]) == 1


async def test_entries_of_a_deleted_consumer_come_again() -> None:
    """After a lease, as suspects. Redis itself would never deliver them again."""
    async with opened(options="&lease=0.2") as broker:
        first = await broker.transport()
        await first.send(commands("m1", "m2", "m3"))
        await take(first, 2)
        await broker.plain.xgroup_delconsumer(broker.stream, "onceonly", first._consumer)
        second = await broker.transport()
        got = await take(second, 3)
        assert sorted((name, each.suspect) for name, each in zip(ids(got), got, strict=True)) == [
            ("m1", True),
            ("m2", True),
            ("m3", False),
        ]
        await second.ack(got)
        assert await broker.plain.xlen(broker.stream) == 0


# Fuzzing, on a real server. See `tests/fuzzing.py`.

BATCH = 500


async def settled(broker: Broker, transport: RedisTransport, count: int) -> list[Delivery]:
    """Receive so many deliveries, acknowledge them, and check that nothing else is there."""
    got: list[Delivery] = []
    while len(got) < count:
        some = await take(transport, min(100, count - len(got)))
        assert some, (len(got), count)
        await transport.ack(some)
        got += some
    assert await transport.receive(1, 0.001) == ()
    assert await broker.plain.xlen(broker.stream) == 0
    return got


async def test_fuzz_members_of_the_sorted_set() -> None:
    """Each is delivered once, as a message or unreadable, and a good one as well."""
    inputs = Inputs()
    async with opened() as broker:
        delayed, transport = broker.keys.queue("shop").delayed, await broker.transport()
        await transport.send(commands("late", due=4_000_000_000_000))
        (plain,) = await broker.plain.zrange(delayed, 0, -1)
        await broker.plain.delete(delayed)
        for _ in inputs.rounds(BATCH):
            members = {inputs.changed(plain) if inputs.random() < 0.8 else inputs.choice(MEMBERS) for _ in range(BATCH)}
            await broker.plain.zadd(delayed, dict.fromkeys(members, 1))
            await transport.send(commands("good"))
            got = await settled(broker, transport, len(members) + 1)
            assert ("ce-id", "good") in [header for each in got for header in each.headers]


async def test_fuzz_entries_of_the_stream() -> None:
    """Fields and values of any bytes, and counts of deliveries in the headers."""
    inputs, names = (
        Inputs(),
        (b"data", b"ce-id", b"ce-onceonlyattempts", b"ce-onceonlyhistory", b"onceonly-headers", b"content-type"),
    )
    async with opened() as broker:
        transport = await broker.transport()
        for _ in inputs.rounds(BATCH):
            async with broker.plain.pipeline(transaction=False) as pipe:
                for _ in range(BATCH):
                    fields = [
                        part
                        for _ in range(inputs.randrange(1, 5))
                        for part in (inputs.choice((inputs.choice(names), inputs.data())), inputs.data())
                    ]
                    pipe.execute_command("XADD", broker.stream, "*", *fields)
                await pipe.execute()
            await transport.send(commands("good"))
            got = await settled(broker, transport, BATCH + 1)
            assert ("ce-id", "good") in [header for each in got for header in each.headers]


async def test_fuzz_ids_of_released_entries() -> None:
    """Those that name no entry are passed over, and the message is delivered."""
    inputs = Inputs()
    async with opened() as broker:
        released, transport = broker.keys.queue("shop").released, await broker.transport()
        for number in inputs.rounds(BATCH):
            await broker.plain.rpush(released, *[_any_id(inputs) for _ in range(BATCH)])
            await transport.send(commands(f"m{number}"))
            got: list[Delivery] = []
            while not got:
                got = list(await transport.receive(100, 0.01))
            await transport.release(got)
            while await broker.plain.llen(released):
                await transport.ack(await transport.receive(100, 0.01))
            await transport.ack(await transport.receive(100, 0.001))
            assert await broker.plain.xlen(broker.stream) == 0


def _any_id(inputs: Inputs) -> bytes:
    numbers = f"{inputs.choice((0, 1, -1, 2**63, 2**64, 10**30, inputs.getrandbits(48)))}-{inputs.choice((0, 1, 2**64, '*'))}"
    return inputs.choice((inputs.data(), numbers.encode(), inputs.changed(numbers.encode())))


async def test_fuzz_counts_of_deliveries() -> None:
    """Counts as other programs set them: their entries are delivered, released and acknowledged."""
    inputs = Inputs()
    claim = (
        "for i = 1, #ARGV, 2 do redis.call('XCLAIM', KEYS[1], 'onceonly', 'o', 0, ARGV[i], 'IDLE', 99999, "
        "'RETRYCOUNT', ARGV[i + 1], 'JUSTID') end"
    )
    async with opened(options="&lease=1") as broker:
        transport = await broker.transport()
        for _ in inputs.rounds(BATCH):
            await transport.send(commands(*[f"m{number}" for number in range(BATCH)]))
            first = await take(transport, BATCH)
            counts = [inputs.choice((0, 1, 2, 2**31, 2**53, 2**63 - 1, inputs.getrandbits(62))) for _ in first]
            given = [part for each, count in zip(first, counts, strict=True) for part in (each.receipt.id, count)]
            for start in range(0, len(given), 200):
                await broker.plain.eval(claim, 1, broker.stream, *given[start : start + 200])
            again = await take(transport, BATCH)
            assert sorted(ids(again)) == sorted(ids(first))
            await transport.release(again)
            assert len(await settled(broker, transport, BATCH)) == BATCH
