"""A worker on RabbitMQ among hostile messages: each takes effect once or is a dead letter, and all others are handled."""

import asyncio
import sqlite3
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import RabbitMQLink
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.assembly import open_dead_letters
from onceonly.formats.cloudevents import RAW_PROPERTIES
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from tests.adapters.rabbitmq.harness import PATIENCE
from tests.adversary.raw_amqp import NONE, cloud_event, connected, field, nested, properties, table, text
from tests.servers.available import RABBITMQ, need

pytestmark = pytest.mark.slow

GOOD = 50
METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("number", Integer, primary_key=True), Column("body", LargeBinary))
DEADLINE = 60.0


class Outcome(NamedTuple):
    """What became of the messages of one body."""

    handled: int
    letters: list[DeadLetter]


class Shop:
    """An endpoint whose handler counts bodies, and fails for those that begin with `bad`."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._file = folder / "shop.db"
        self.store = f"sqlite:///{self._file}"
        self._seen: set[bytes] = set()
        self._rung = asyncio.Event()
        self.endpoint = Endpoint(
            "shop",
            store=self.store,
            transport=url,
            metadata=METADATA,
            retry=Retry(immediate=1, delayed=0),
        )

        @self.endpoint.handler(type="Order")
        async def take(body: bytes, connection: AsyncConnection) -> None:
            if body.startswith(b"bad"):
                raise ValueError("this handler never works")
            await connection.execute(NOTES.insert(), {"body": body})
            self._seen.add(body)
            self._rung.set()

    def handled(self) -> Counter[bytes]:
        """Count what is committed."""
        with closing(sqlite3.connect(self._file)) as connection:
            return Counter(body for (body,) in connection.execute("select body from notes"))

    async def send_good(self, name: bytes) -> None:
        """Send good messages behind a hostile one."""
        async with connected(self.url) as producer:
            for number in range(GOOD):
                body = b"good " + name + b" %d" % number
                await producer.publish(self.queue, body, properties(headers=cloud_event(b"id of " + body)))

    @property
    def queue(self) -> str:
        """Name its queue."""
        return read_address(self.url).prefix + "shop"

    async def until(self, is_done: Callable[[], bool]) -> None:
        """Wait until something is so, looking whenever a message was handled."""
        async with asyncio.timeout(DEADLINE):
            while not is_done():
                self._rung.clear()
                await self._rung.wait()

    async def until_good(self, name: bytes) -> None:
        """Wait until all that came behind a hostile message are handled."""
        await self.until(lambda: sum(body.startswith(b"good " + name + b" ") for body in self._seen) == GOOD)

    async def letters(self) -> list[DeadLetter]:
        """Return all dead letters."""
        async with open_dead_letters(self.store) as letters:
            return list(await letters.page(Filter(), limit=1000))

    async def empty(self) -> None:
        """Wait until nothing waits and nothing is held."""
        link = RabbitMQLink(read_address(self.url), SystemRandomSource())
        transport = RabbitMQTransport(link, "shop", clock=SystemClock())
        try:
            async with asyncio.timeout(DEADLINE):
                while (depth := await transport.depth("shop")).waiting or depth.held:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0.1)
        finally:
            await transport.close()
            await link.close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """Run the endpoint; delete its queues at the end."""
    async with opened(tmp_path) as made:
        yield made


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Shop]:
    """Run an endpoint behind a prefix of its own."""
    made = Shop(f"{need(RABBITMQ)}?prefix=h{uuid4().hex[:10]}.&timeout=10", folder)
    try:
        async with made.endpoint.running():
            yield made
    finally:
        link = RabbitMQLink(read_address(made.url), SystemRandomSource())
        await RabbitMQTransport(link, "shop", clock=SystemClock()).remove([made.endpoint.topology()])
        await link.close()


def event(id_: bytes = b"", *, more: tuple[bytes, ...] = (), **known: Any) -> Callable[[bytes], bytes]:
    """Return the properties of a CloudEvent whose id is its body unless another is given."""
    return lambda body: properties(headers=cloud_event(id_ or body, more=more), **known)


def with_header(name: bytes, kind: bytes, value: bytes) -> Callable[[bytes], bytes]:
    """Return a CloudEvent with one more header."""
    return event(more=(field(name, kind, value),))


KINDS: dict[bytes, bytes] = {
    b"t": b"\x01",
    b"b": b"\x80",
    b"B": b"\xff",
    b"s": b"\x80\0",
    b"u": b"\xff\xff",
    b"I": b"\x80\0\0\0",
    b"i": b"\xff\xff\xff\xff",
    b"l": b"\x80" + bytes(7),
    b"f": b"\x3f\x80\0\0",
    b"d": b"\x7f\xef" + b"\xff" * 6,
    b"D": b"\xff\xff\xff\xff\xff",
    b"S": text(b"\xff\xfe"),
    b"x": text(b"\xff\xfe"),
    b"T": b"\xff" * 8,
    b"V": b"",
    b"A": text(b"V" + b"t\0" + b"S" + text(b"a")),
    b"F": nested(3),
}
ATTRIBUTES = (b"time", b"subject", b"conversationid", b"traceparent", b"onceonlyhops", b"onceonlyattempts", b"onceonlyhistory")
HOSTILE: dict[bytes, Callable[[bytes], bytes]] = {
    b"nothing": lambda _: NONE,
    b"microseconds": event(timestamp=1_700_000_000_000_000),
    b"nanoseconds": event(timestamp=1_700_000_000_000_000_000),
    b"the greatest instant": event(timestamp=2**64 - 1),
    b"message-id": event(message_id=b"M\xfcller"),
    b"type": event(message_type=b"\xff"),
    b"type alone": lambda _: properties(message_type=b"\xff", headers=table(field(b"ce-id", b"S", text(b"1")))),
    b"app-id": event(app_id=b"\xff"),
    b"content-type": event(content_type=b"\xff"),
    b"correlation-id": event(correlation_id=b"\xff"),
    b"cluster-id": event(cluster_id=b"\xff\xfe"),
    b"header name": with_header(b"\xff", b"S", text(b"x")),
    b"a long header name": with_header(b"n" * 255, b"S", text(b"x")),
    b"deep tables": with_header(b"deep", b"F", nested(2000)),
    b"deep arrays": with_header(b"deep", b"A", nested(2000, arrays=True)),
    b"thousands of values": with_header(b"many", b"A", text(b"V" * 60_000)),
    b"thousands of one name": event(more=(field(b"n", b"V", b""),) * 20_000),
    b"large headers": with_header(b"large", b"S", text(b"x" * 120_000)),
    b"a long id": event(b"i" * 100_000),
    b"a long conversation": with_header(b"ce-conversationid", b"S", text(b"c" * 100_000)),
    b"two ids": with_header(b"CE_ID", b"S", text(b"another")),
    b"a forged history": with_header(
        b"ce-onceonlyhistory", b"S", text(b'[{"kind":"exception","reason":"r","at":123456789012345678901234567890}]')
    ),
    b"a forged history of a negative time": with_header(
        b"ce-onceonlyhistory", b"S", text(b'[{"kind":"exception","reason":"r","at":-99999999999999999}]')
    ),
    b"a long history": with_header(
        b"ce-onceonlyhistory", b"S", text(b"[" + b",".join([b'{"kind":"exception","reason":"r"}'] * 65) + b"]")
    ),
    b"copies to others": with_header(b"CC", b"A", text(b"S" + text(b"nowhere"))),
    **{
        b"%s as %s" % (name, kind): with_header(b"ce-" + name, kind, value)
        for name in ATTRIBUTES
        for kind, value in KINDS.items()
    },
    **{
        b"id as " + kind: (
            lambda _, kind=kind, value=value: properties(
                headers=table(field(b"ce-id", kind, value), field(b"ce-type", b"S", text(b"Order")))
            )
        )
        for kind, value in KINDS.items()
    },
}


async def test_every_hostile_message_is_handled_or_a_dead_letter_and_costs_no_other(shop: Shop) -> None:
    """With a handler that works and with one that fails; and what comes behind them is handled."""
    bodies = [prefix + name for name in HOSTILE for prefix in (b"fine ", b"bad ")]
    async with connected(shop.url) as producer:
        for body in bodies:
            await producer.publish(shop.queue, body, HOSTILE[body.partition(b" ")[2]](body))
    await shop.send_good(b"all")
    await shop.until_good(b"all")
    await shop.empty()
    letters = await shop.letters()
    handled, wrong = shop.handled(), {}
    for body in bodies:
        found = Outcome(handled[body], [letter for letter in letters if letter.body == body])
        if found.handled + len(found.letters) != 1 or any(not letter.reason for letter in found.letters):
            wrong[body] = found
    assert not wrong
    assert all(count == 1 for count in handled.values())
    assert not [body for body in handled if body.startswith(b"bad")]


STOPPERS = [
    b"microseconds",
    b"message-id",
    b"type alone",
    b"header name",
    b"deep tables",
    b"time as l",
    b"large headers",
    b"a long id",
    b"a forged history",
    b"copies to others",
]


@pytest.mark.parametrize("name", STOPPERS)
async def test_fifty_good_ones_behind_each_that_stopped_an_endpoint(shop: Shop, name: bytes) -> None:
    """The first was at the head of the queue; those behind it must not wait for it."""
    async with connected(shop.url) as producer:
        await producer.publish(shop.queue, b"bad first", HOSTILE[name](b"bad first"))
    await shop.send_good(name)
    await shop.until_good(name)
    await shop.empty()
    (letter,) = await shop.letters()
    assert letter.body == b"bad first"


async def test_what_cannot_be_decoded_is_kept_with_its_bytes(shop: Shop) -> None:
    """So that an operator can read it, and send it again."""
    raw = HOSTILE[b"deep tables"](b"x")
    async with connected(shop.url) as producer:
        await producer.publish(shop.queue, b"x", raw)
    await shop.send_good(b"after")
    await shop.until_good(b"after")
    await shop.empty()
    (letter,) = await shop.letters()
    assert "nested more than 100 levels deep" in letter.reason
    kept = b64decode(dict(letter.headers)[RAW_PROPERTIES])
    assert raw[raw.index(b"\x04deep") :][:100] in kept


async def test_ids_that_differ_in_one_byte_are_two_messages_or_dead_letters(shop: Shop) -> None:
    """With the same body: nothing but the id tells them apart."""
    async with connected(shop.url) as producer:
        for id_ in (b"M\xfcller", b"M\xf6ller"):
            await producer.publish(shop.queue, b"same", properties(headers=cloud_event(id_)))
    await shop.send_good(b"after")
    await shop.until_good(b"after")
    await shop.empty()
    letters = await shop.letters()
    assert shop.handled()[b"same"] + len(letters) == 2
    assert len({letter.key for letter in letters}) == len(letters)


@pytest.mark.parametrize("name", [b"large headers", b"a long header name", b"deep tables", b"header name", b"copies to others"])
async def test_a_release_gives_back_whatever_it_is(tmp_path: Path, name: bytes) -> None:
    """As it came, unmarked, with what is released beside it; also headers that fill their frame."""
    fill = with_header(b"fill", b"S", text(b"x" * 130_800))
    async with opened(tmp_path) as made:
        url, queue = made.url, made.queue
        await made.empty()
    link = RabbitMQLink(read_address(url), SystemRandomSource())
    transport = RabbitMQTransport(link, "shop", clock=SystemClock())
    try:
        await transport.declare([made.endpoint.topology()])
        async with connected(url) as producer:
            for body, known in ((b"odd", HOSTILE[name](b"odd")), (b"full", fill(b"full")), (b"plain", event()(b"plain"))):
                await producer.publish(queue, body, known)
        seen: dict[bytes, Any] = {}
        for _ in range(3):
            got = await until(transport, 3)
            assert sorted(each.body for each in got) == [b"full", b"odd", b"plain"]
            assert not any(each.suspect for each in got)
            headers = {each.body: each.headers for each in got}
            seen = seen or headers
            assert headers == seen
            await transport.release(got)
        await transport.ack(await until(transport, 3))
        assert (await transport.depth("shop")).waiting == 0
    finally:
        await transport.remove([made.endpoint.topology()])
        await transport.close()
        await link.close()


async def until(transport: RabbitMQTransport, count: int) -> list[Any]:
    """Receive so many."""
    got: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(got) < count:
            got += await transport.receive(count - len(got), 1.0)
    return got
