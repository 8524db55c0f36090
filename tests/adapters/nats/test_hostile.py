"""A worker on NATS among hostile messages: each takes effect once or is a dead letter, and all others are handled."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from nats.aio.client import Client
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.adapters.nats.names import NatsNames
from onceonly.assembly import open_dead_letters, open_transport, temporary_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from tests.adapters.nats.harness import PATIENCE
from tests.servers.available import NATS, need

METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("number", Integer, primary_key=True), Column("body", LargeBinary))
GOOD = 20


def lines(*headers: bytes) -> bytes:
    """Write headers of a message whose type the endpoint handles."""
    return b"\r\n".join((b"NATS/1.0", b"ce-specversion: 1.0", b"ce-source: till", b"ce-type: Order", *headers, b"", b""))


HANDLED: dict[str, bytes] = {
    "plain": lines(b"ce-id: 1"),
    "a header of many bytes": lines(b"ce-id: 2", b"x: " + b"x" * 60_000),
    "thousands of headers": lines(b"ce-id: 3", *[b"n%d: v" % number for number in range(5_000)]),
    "a name that is not UTF-8": lines(b"ce-id: 4", b"\xff\xfe: v"),
    "no blank behind the colon": lines(b"ce-id:6"),
    "a forged history": lines(
        b"ce-id: 7", b'ce-onceonlyhistory: [{"kind":"exception","reason":"r","at":99999999999999999999}]'
    ),
    "a forged count": lines(b"ce-id: 8", b"ce-onceonlyattempts: -1"),
    "a rollup that the stream does not know": lines(b"ce-id: 9", b"X-Nats-Rollup: all"),
    "a forged escape": lines(b"ce-id: 10", b"x-onceonly-escaped-%: %zz"),
}
DEAD: dict[str, bytes] = {
    "no headers": b"",
    "no id": lines(),
    "an attribute that is not UTF-8": lines(b"ce-id: 5", b"ce-subject: \xff"),
    "an empty id": lines(b"ce-id: "),
    "an id that is not UTF-8": lines(b"ce-id: \xff\xfe"),
    "two ids": lines(b"ce-id: a", b"CE-ID: b"),
    "another type": b"NATS/1.0\r\nce-id: 1\r\nce-source: till\r\nce-type: Nothing\r\n\r\n",
    "a line without a colon": lines(b"ce-id: 11", b"broken"),
    "another version": lines(b"ce-id: 12").replace(b"NATS/1.0", b"NATS/9.9", 1),
    "a structured event that is none": b"NATS/1.0\r\ncontent-type: application/cloudevents+json\r\n\r\n",
}


class Shop:
    """An endpoint whose handler stores bodies."""

    def __init__(self, folder: Path) -> None:
        prefix = f"h{uuid4().hex[:10]}."
        names = NatsNames(prefix)
        self._server = need(NATS)
        self._file = folder / "shop.db"
        self._subject = names.queue_subject("shop").encode()
        self._stream = names.queue("shop")
        self.store = f"sqlite:///{self._file}"
        self.transport = f"{self._server}?prefix={prefix}&timeout=10"
        self.endpoint = Endpoint(
            "shop", store=self.store, transport=self.transport, metadata=METADATA, retry=Retry(immediate=1, delayed=0)
        )

        @self.endpoint.handler(type="Order")
        async def take(body: bytes, connection: AsyncConnection) -> None:
            await connection.execute(NOTES.insert(), {"body": body})

    async def publish(self, *messages: tuple[bytes, bytes]) -> None:
        """Publish headers and bodies as they are, and wait until the server has stored them. Once for each shop."""
        client = Client()
        await client.connect(self._server)
        for headers, body in messages:
            sizes = b"%d %d" % (len(headers), len(headers) + len(body)) if headers else b"%d" % len(body)
            word = b"HPUB" if headers else b"PUB"
            await client._send_command(b"%s %s %s\r\n%s%s\r\n" % (word, self._subject, sizes, headers, body))
        await client.flush()
        async with asyncio.timeout(PATIENCE):  # the server stores what it has received a little later
            while (await client.jetstream().stream_info(self._stream)).state.last_seq < len(messages):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        await client.close()

    async def settled(self) -> tuple[Counter[bytes], list[DeadLetter]]:
        """Wait until the queue is empty; gives what was handled and what was not."""
        async with open_transport(self.transport, "shop") as transport, asyncio.timeout(3 * PATIENCE):
            while (depth := await transport.depth("shop")).waiting or depth.held or depth.delayed:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.05)
        with closing(sqlite3.connect(self._file)) as connection:
            handled = Counter(body for (body,) in connection.execute("select body from notes"))
        async with open_dead_letters(self.store) as letters:
            return handled, list(await letters.page(Filter(), limit=1000))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """Run the endpoint behind a prefix of its own."""
    made = Shop(tmp_path)
    async with temporary_transport(made.transport, [Topology(endpoint="shop")]), made.endpoint.running():
        yield made


async def test_hostile_messages_take_effect_once_or_are_dead_letters(shop: Shop) -> None:
    """Each is sent twice, among good ones."""
    good = [(lines(b"ce-id: good-%d" % number), b"good %d" % number) for number in range(GOOD)]
    odd = [(headers, name.encode()) for name, headers in (*HANDLED.items(), *DEAD.items())]
    await shop.publish(*odd, *good, *odd)
    handled, letters = await shop.settled()
    assert handled == Counter(name.encode() for name in HANDLED) + Counter(body for _, body in good)
    assert {letter.body.decode(): bool(letter.reason) for letter in letters} == dict.fromkeys(DEAD, True)


async def test_an_empty_body_reaches_its_handler(shop: Shop) -> None:
    """It is no missing one."""
    await shop.publish((lines(b"ce-id: 1"), b""))
    handled, letters = await shop.settled()
    assert (handled, letters) == (Counter([b""]), [])


async def test_a_body_over_the_limit_of_the_endpoint_is_a_dead_letter(shop: Shop) -> None:
    """The server takes more than `max_body`, but a copy with the history of a failure would not fit."""
    await shop.publish((lines(b"ce-id: 1"), bytes(1024 * 1024 - 1000)))
    handled, letters = await shop.settled()
    assert (sum(handled.values()), len(letters)) == (0, 1)
