"""A worker on Azure queues among hostile messages: each takes effect once or is a dead letter, and all others are handled."""

import sqlite3
from base64 import b64encode
from collections import Counter
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.adapters.azure.queue.wire import MESSAGE_ID, read, unmarked
from onceonly.assembly import open_dead_letters
from onceonly.ports.dead_letters import Filter
from tests.adapters.azure.queue.harness import event_text, opened
from tests.adapters.azure.queue.test_foreign import emptied
from tests.servers.azurite import Azurite

METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("number", Integer, primary_key=True), Column("body", LargeBinary))
GOOD = 40


def order(**attributes: object) -> str:
    """Write a message whose type the endpoint handles."""
    return event_text(**{"type": "Order", "source": "till"} | attributes)


HANDLED: dict[str, str] = {
    "plain": order(id="1", data="plain"),
    "letters of XML": order(id="2", data="]]><&>\"'"),
    "other scripts": order(id="3", data="東京 🛫", subject="köln"),
    "a mark of a release": "onceonly-released:999999999\n" + order(id="4", data="a mark of a release"),
    "a forged count": order(id="5", data="a forged count", onceonlyattempts="-1"),
    "a forged history": order(id="6", data="a forged history", onceonlyhistory='[{"kind":"x"}]'),
    "a forged due time": order(id="7", data="a forged due time", onceonlydue="4000000000000"),
    "thousands of headers": order(id="8", data="thousands", onceonlyheaders="[" + ",".join(['["x","y"]'] * 4000) + "]"),
    "an integer as an id": order(id=9, data="an integer as an id"),
    "blanks around it": "  \n\t" + order(id="10", data="blanks around it") + "\n ",
    "in base64": b64encode(order(id="11", data="in base64").encode()).decode(),
    "no data": order(id="12"),
    "null": order(id="13", data=None),
}
DEAD: dict[str, str] = {
    "nothing": "",
    "text": "hello",
    "a blank": " ",
    "other JSON": '{"order": 7}',
    "a list": "[1, 2]",
    "no id": event_text(id=""),
    "an id that is an object": order(id={}),
    "two ids": '{"specversion": "1.0", "id": "a", "ID": "b", "source": "s", "type": "Order"}',
    "another type": event_text(id="a", type="Nothing"),
    "an id that is too long": order(id="x" * 5_000),
    "half an event": order(id="a")[:-5],
    "deep JSON": '{"specversion": "1.0", "id": ' + "[" * 5_000,
    "broken base64 of data": order(id="b", data_base64="!"),
    "forged headers": order(id="c", onceonlyheaders="{}"),
    "forged compression": "onceonly-zlib:AAAA",
    "two marks": "onceonly-released:1\nonceonly-released:2\n" + order(id="d"),
    "almost 64 KiB": "x" * 65_536,
}


async def test_hostile_messages_take_effect_once_or_are_dead_letters(azurite_storage: Azurite, tmp_path: Path) -> None:
    """Each is put twice, among good ones."""
    store = f"sqlite:///{tmp_path}/shop.db"
    async with opened(azurite_storage) as broker:
        shop = Endpoint(
            "shop",
            store=store,
            transport=broker.url(),
            metadata=METADATA,
            retry=Retry(immediate=1, delayed=0),
            unknown_types_wait=0,
        )

        @shop.handler(type="Order")
        async def take(body: bytes, connection: AsyncConnection) -> None:
            await connection.execute(NOTES.insert(), {"body": body})

        good = [order(id=f"good-{number}", data=f"good {number}") for number in range(GOOD)]
        for text in (*HANDLED.values(), *DEAD.values(), *good, *HANDLED.values(), *DEAD.values()):
            await broker.plain.send_message(text)
        async with shop.running():
            await emptied(broker)
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            handled = Counter(body for (body,) in connection.execute("select body from notes"))
        assert len(handled) == sum(handled.values()) == len(HANDLED) + GOOD
        assert {f'"good {number}"'.encode() for number in range(GOOD)} <= handled.keys()
        async with open_dead_letters(store) as found:
            letters = await found.page(Filter(), limit=1000)
        assert all(letter.reason for letter in letters)
        # Equal deliveries are one dead letter. Those that have only the id of the service are not equal.
        found_in = [read(unmarked(text)[0], "id") for text in DEAD.values()]
        expected = [content.body for content in found_in for _ in range(2 if content.headers[0][0] == MESSAGE_ID else 1)]
        assert sorted(letter.body for letter in letters) == sorted(expected)


async def test_hostile_messages_among_those_that_are_delayed_are_moved(azurite_storage: Azurite) -> None:
    """Whatever it is, it is due."""
    async with opened(azurite_storage) as broker:
        client = broker.service.get_queue_client(broker.delayed)
        texts = [text for text in (*HANDLED.values(), *DEAD.values()) if "onceonlydue" not in text]
        for text in texts:
            await client.send_message(text)
        transport, got = await broker.transport(), 0
        while got < len(texts):
            got += len(await transport.receive(100, 20.0))
        depth = await transport.depth("shop")
        assert (depth.held, depth.delayed) == (len(texts), 0)
