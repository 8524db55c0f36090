"""A worker on Service Bus among hostile messages: each takes effect once or is a dead letter, and all others are handled.

The messages are raw AMQP, put into the queue past the client, which refuses to send most of them.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.assembly import open_dead_letters
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from tests.servers.servicebus.codec import Array, Described, Symbol, Timestamp, ULong
from tests.servers.servicebus.entities import StoredMessage
from tests.servers.servicebus.harness import opened, until
from tests.servers.servicebus.wire import APPLICATION, DATA, PROPERTIES, VALUE, section

METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("number", Integer, primary_key=True), Column("body", LargeBinary))
GOOD = 20
SEQUENCE = 0x76
SESSION = "s 1"
Sections = list[tuple[int, Any]]


def order(id_: object, *more: tuple[int, Any], **attributes: Any) -> Sections:
    """Write a message whose type the endpoint handles. Its body is added, unless `more` has one."""
    named = {"specversion": "1.0", "id": id_, "source": "till", "type": "Order"} | attributes
    return [(APPLICATION, {f"cloudEvents_{name}": value for name, value in named.items()}), *more]


def with_properties(id_: str, more: dict[Any, Any]) -> Sections:
    """Write such a message with other properties."""
    (code, named), *_ = order(id_)
    return [(code, named | more)]


def stored(sections: Sections, name: str) -> StoredMessage:
    """Make what the service has stored. The body is the name of the message."""
    parts = list(sections)
    if not any(code in (DATA, SEQUENCE, VALUE) for code, _ in parts):
        parts.append((DATA, name.encode()))
    return StoredMessage(tuple((code, section(code, value)) for code, value in parts), session=SESSION)


HANDLED: dict[str, Sections] = {
    "plain": order("1"),
    "an integer as an id": order(2),
    "other scripts": order("3", subject="東京 🛫"),
    "a header of many bytes": with_properties("4", {"x": "x" * 60_000}),
    "thousands of headers": with_properties("5", {f"n{number}": "v" for number in range(4_000)}),
    "names that are not text": with_properties("6", {7: "seven", b"\xff": b"\xfe", None: None}),
    "values that are lists and maps": with_properties("7", {"list": [1, [2]], "map": {"a": {"b": 1}}, "none": None}),
    "a forged count": order("8", onceonlyattempts="-1"),
    "a forged history": order("9", onceonlyhistory='[{"kind":"exception","reason":"r","at":99999999999999999999}]'),
    "a time of another planet": with_properties("10", {"x": Timestamp(2**60)}),
    "a message id that looks like ours": [(PROPERTIES, ["onceonly-1"]), *order("11")],
    "properties of wrong types": [(PROPERTIES, [7, b"user", 1, 2, 3, 4, Symbol("x")]), *order("12")],
    "a body in several parts": [*order("13"), (DATA, b"a body in "), (DATA, b"several parts")],
    "a body that is text": [*order("14"), (VALUE, "a body that is text")],
    "a body that is described": [*order("16"), (VALUE, Described(ULong(1), "a body that is described"))],
    "no source and no type": [(APPLICATION, {"cloudEvents_id": "17"})],
    "headers that are a map": with_properties("18", {"onceonly-headers": "{}"}),
    "headers as pairs": with_properties("15", {"onceonly-headers": '[["x", "1"], ["x", "2"]]'}),
}
DEAD: dict[str, Sections] = {
    "nothing": [],
    "no id": order(None),
    "an empty id": order(""),
    "another type": order("a", type="Nothing"),
    "an id that is too long": order("x" * 5_000),
    "headers that are no JSON": with_properties("c", {"onceonly-headers": "[["}),
    "headers that are numbers": with_properties("b", {"onceonly-headers": "[1, 2]"}),
    "headers of deep JSON": with_properties("d", {"onceonly-headers": "[" * 5_000}),
    "two ids": with_properties("e", {"cloudEvents_ID": "f"}),
    "a body that is a list": [*order("g"), (SEQUENCE, [1, 2, "three"])],
    "a body that is a map": [*order("h"), (VALUE, {"a": 1})],
    "a body that is a number": [*order("i"), (VALUE, 7)],
    "a body that is an array": [*order("j"), (VALUE, Array(0x81, (1, 2)))],
}


@pytest.mark.parametrize("options", ["", "&sessions=true"])
async def test_hostile_messages_take_effect_once_or_are_dead_letters(tmp_path: Path, options: str) -> None:
    """Each is put twice, among good ones."""
    store = f"sqlite:///{tmp_path}/shop.db"
    async with opened(Topology(endpoint="shop"), options=options) as place:
        retry = Retry(immediate=1, delayed=0)
        shop = Endpoint("shop", store=store, transport=place.url, metadata=METADATA, retry=retry, unknown_types_wait=0)

        @shop.handler(type="Order")
        async def take(body: bytes, connection: AsyncConnection) -> None:
            await connection.execute(NOTES.insert(), {"body": body})

        good = {f"good {number}": order(f"good-{number}") for number in range(GOOD)}
        for several in (HANDLED, DEAD, good, HANDLED, DEAD):
            for name, sections in several.items():
                place.queue.put(stored(sections, name))
        async with shop.running():
            await until(lambda: not place.queue.size)
        assert not place.queue.dead
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        handled = Counter(body for (body,) in connection.execute("select body from notes"))
    assert handled == Counter(name.encode() for name in (*HANDLED, *good))
    async with open_dead_letters(store) as found:
        letters = await found.page(Filter(), limit=1000)
    assert all(letter.reason for letter in letters)
    assert len(letters) == len(DEAD)


@pytest.mark.parametrize("options", ["", "&sessions=true"])
async def test_a_body_over_the_limit_of_the_endpoint_is_a_dead_letter(tmp_path: Path, options: str) -> None:
    """A namespace of the tier Premium takes bodies up to 100 MB."""
    store = f"sqlite:///{tmp_path}/shop.db"
    async with opened(Topology(endpoint="shop"), options=f"&max_body=100{options}") as place:
        shop = Endpoint("shop", store=store, transport=place.url, retry=Retry(immediate=0, delayed=0))

        @shop.handler(type="Order")
        async def take(body: bytes) -> None:
            raise AssertionError(body)

        place.queue.put(stored([*order("1"), (DATA, b"x" * 101)], ""))
        async with shop.running():
            await until(lambda: not place.queue.size)
    async with open_dead_letters(store) as found:
        (letter,) = await found.page(Filter(), limit=10)
    assert "too large: 101 bytes" in letter.reason
