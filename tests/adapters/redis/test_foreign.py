"""Programs that use a plain client of Redis, on either side of a queue."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly import Endpoint
from onceonly.adapters.redis.entries import MORE, from_entry, headers_of, to_entry
from onceonly.assembly import open_dead_letters
from onceonly.formats.cloudevents import UNREADABLE
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, Topology
from tests.adapters.redis.harness import EVENT, Broker, commands, ids, message, opened, take, until


@dataclass
class PlaceOrder:
    """A command of a foreign program."""

    order_id: str


EMPTY = Depth(waiting=0, held=0, delayed=0)


def shop_on(broker: Broker, folder: Path) -> tuple[Endpoint, list[str]]:
    """Make an endpoint on the queue, and the orders that it handles."""
    seen: list[str] = []
    shop = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=broker.url, unknown_types_wait=0)

    @shop.handler
    async def place_order(order: PlaceOrder) -> None:
        seen.append(order.order_id)

    return shop, seen


async def test_an_entry_of_a_plain_client_is_handled_once(tmp_path: Path) -> None:
    """It has the fields `ce-id`, `ce-source`, `ce-type` and `data`. A second entry with the same identity is a duplicate."""
    async with opened() as broker:
        shop, seen = shop_on(broker, tmp_path)
        entry = {"ce-id": "o1", "ce-source": "legacy", "ce-type": "PlaceOrder", "data": b'{"order_id": "A"}'}
        for _ in range(3):
            await broker.plain.xadd(broker.stream, entry)
        async with shop.running():
            await broker.plain.xadd(broker.stream, entry)
            await broker.plain.xadd(broker.stream, {**entry, "ce-id": "o2", "data": b'{"order_id": "B"}'})
            await emptied(broker)
        assert sorted(seen) == ["A", "B"]


@pytest.mark.parametrize(
    "entry",
    [
        {"order_id": "7", "total": "5"},
        {"data": b""},
        {"": ""},
        {b"\xff\xfe": b"\x00\xff", b"data": b"\xff"},
        {"ce-id": "x", "ce-source": "y", "ce-type": "PlaceOrder", "data": b"\xff not JSON"},
        {"ce-id": "x", "ce-source": "y", "ce-type": "NoSuchType", "data": b"{}"},
        {"ce-id": "x", "CE-ID": "y", "ce-source": "s", "ce-type": "PlaceOrder", "data": b'{"order_id": "A"}'},
        {"content-type": "application/cloudevents+json", "data": b"{"},
        {"onceonly-headers": "{}", "ce-id": "x", "ce-source": "y", "ce-type": "PlaceOrder", "data": b'{"order_id": "A"}'},
        {f"field-{number}": "x" for number in range(5000)},
    ],
    ids=["fields", "empty", "nothing", "bytes", "body", "type", "two-ids", "structured", "headers", "many"],
)
async def test_an_entry_that_is_no_message_is_a_dead_letter(entry: dict[str, bytes], tmp_path: Path) -> None:
    """It has a reason, and the endpoint goes on."""
    async with opened() as broker:
        shop, seen = shop_on(broker, tmp_path)
        await broker.plain.xadd(broker.stream, entry)
        good = {"ce-id": "good", "ce-source": "legacy", "ce-type": "PlaceOrder", "data": b'{"order_id": "good"}'}
        await broker.plain.xadd(broker.stream, good)
        async with shop.running():
            await emptied(broker)
        assert seen == ["good"]
        async with open_dead_letters(shop.settings.places.store) as letters:
            (letter,) = await letters.page(Filter(), limit=10)
            assert letter.reason


async def test_what_is_sent_can_be_read_by_a_plain_consumer() -> None:
    """Each attribute and header is a field, and the body is the field `data`."""
    async with opened() as broker:
        sender = await broker.transport()
        headers = (("x-shop", "Zürich"), ("data", "no body"))
        sent = message(body=b"\x00\xff", subject="s", datacontenttype="application/x-order", headers=headers)
        assert await sender.send([Send(message=sent, to="shop")]) == (Answer.TAKEN,)
        ((_, fields),) = await broker.plain.xrange(broker.stream)
        assert fields == {
            b"ce-specversion": b"1.0",
            b"ce-id": b"m1",
            b"ce-source": b"till",
            b"ce-type": EVENT.encode(),
            b"ce-subject": b"s",
            b"content-type": b"application/x-order",
            b"x-shop": "Zürich".encode(),
            b"data": b"\x00\xff",
        }


async def test_a_plain_consumer_subscribes_with_two_commands() -> None:
    """It creates a stream with a group, and adds its name to the set of subscribers. Then it has a copy of each event."""
    async with opened() as broker:
        stream = broker.keys.start + b"stream:audit"
        await broker.plain.xgroup_create(stream, "audit", id="0", mkstream=True)
        await broker.plain.sadd(broker.keys.start + b"subscribers:" + EVENT.encode(), "audit")
        assert await (await broker.transport()).send([Send(message=message("e1"))]) == (Answer.TAKEN,)
        ((_, ((id_, fields),)),) = await broker.plain.xreadgroup("audit", "me", {stream: ">"})
        assert (fields[b"ce-id"], fields[b"data"]) == (b"e1", b'{"total": 1}')
        await broker.plain.xack(stream, "audit", id_)
        assert ids(await take(await broker.transport(), 1)) == ["e1"]


async def test_entries_that_a_plain_client_deletes_are_skipped() -> None:
    """A held or released entry that is gone is not delivered, and does not hold up others."""
    async with opened() as broker:
        receiver = await broker.transport()
        await receiver.send(commands("m1", "m2", "m3"))
        held = await take(receiver, 3)
        await receiver.release(held[:2])
        await broker.plain.xtrim(broker.stream, maxlen=0)
        await receiver.ack(held)
        await receiver.release(held)
        await receiver.send(commands("m4"))
        assert ids(await take(await broker.transport(), 1)) == ["m4"]
        assert (await receiver.depth("shop")).waiting == 0


async def test_entries_added_before_the_queue_is_declared_arrive() -> None:
    """The group begins with the first entry."""
    async with opened() as broker:
        await broker.plain.xadd(broker.keys.queue("late").stream, {"ce-id": "early", "data": b""})
        transport = await broker.transport("late")
        await transport.declare([Topology(endpoint="late")])
        assert ids(await take(transport, 1)) == ["early"]


TEXT = st.text(max_size=20)
HEADERS = st.lists(st.tuples(TEXT, TEXT), max_size=10)


@given(HEADERS, st.booleans())
def test_headers_survive(headers: list[tuple[str, str]], many: bool) -> None:  # noqa: FBT001 - hypothesis
    """What is written is read, also with more headers than fields; what cannot be encoded is refused."""
    sent = (*headers, *((("x", "y"),) * 1000 if many else ()), *headers)
    entry = to_entry(sent)
    if entry is None:
        assert any("\ud800" <= letter <= "\udfff" for pair in headers for part in pair for letter in part)
    elif not any(name == MORE for name, _ in headers):
        assert headers_of(from_entry(entry)) == sent


@given(st.lists(st.binary(max_size=300), max_size=40))
def test_values_that_are_not_text_are_read_one_to_one(values: list[bytes]) -> None:
    """As surrogates, from which the bytes can be made again."""
    packed = b"\xdc" + len(values).to_bytes(2) + b"".join(packed_string(value) for value in values)
    read = from_entry(packed)
    assert [each.encode("utf-8", "surrogateescape") for each in read] == values


def packed_string(value: bytes) -> bytes:
    """Pack a string as the server does."""
    size = len(value)
    start = bytes((0xA0 | size,)) if size < 32 else b"\xd9" + bytes((size,)) if size < 256 else b"\xda" + size.to_bytes(2)
    return start + value


def test_headers_in_json_that_are_none_make_an_entry_unreadable() -> None:
    """The fields are kept, for the dead letter."""
    headers = headers_of(["a", "1", MORE, "["])
    assert headers[0][0] == UNREADABLE
    assert headers[1:] == (("a", "1"), (MORE, "["))


async def test_any_bytes_are_delivered_one_to_one() -> None:
    """Also names and values that are not text, several fields of one name, and values of many sizes."""
    async with opened() as broker:
        fields = [b"\xff\xfe", b"\x00\xff", b"same", b"1", b"same", b"2", b"data", b"first", b"data", b"\x80body", b"", b""]
        fields += [part for size in (31, 32, 255, 256, 65_535, 65_536) for part in (b"n%d" % size, b"\xfe" * size)]
        await broker.plain.execute_command("XADD", broker.stream, "*", *fields)
        (delivery,) = await take(await broker.transport(), 1)
        assert delivery.body == b"\x80body"
        headers = [part.encode("utf-8", "surrogateescape") for pair in delivery.headers for part in pair]
        assert headers == fields[:8] + fields[10:]


async def emptied(broker: Broker) -> None:
    """Wait until the queue is empty."""
    transport = await broker.transport()

    async def is_empty() -> bool:
        return await transport.depth("shop") == EMPTY

    await until(is_empty)
