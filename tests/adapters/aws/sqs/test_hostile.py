"""A worker on SQS among hostile messages: each takes effect once or is a dead letter, and all others are handled."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, Retry
from onceonly.adapters.aws.sqs.address import read_sqs
from onceonly.adapters.aws.sqs.batches import portions
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.assembly import open_dead_letters, open_transport, temporary_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from tests.adapters.aws.sqs.harness import PATIENCE, plain

METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("number", Integer, primary_key=True), Column("body", LargeBinary))
GOOD = 20


def order(**attributes: Any) -> dict[str, Any]:
    """Write attributes of a message whose type the endpoint handles."""
    named = {name.replace("_", "-"): value for name, value in attributes.items()}
    return {"ce-specversion": "1.0", "ce-source": "till", "ce-type": "Order", **named}


HANDLED: dict[str, dict[str, Any]] = {
    "plain": order(ce_id="1"),
    "packed": {"onceonly-headers": '[["ce-id","2"],["ce-source","till"],["ce-type","Order"]]'},
    "packed and plain": {"onceonly-headers": '[["ce-source","till"],["ce-type","Order"]]', "ce-id": "3"},
    "a value of many bytes": order(ce_id="4", x="x" * 60_000),
    "a value of bytes": order(ce_id="5", x=b"\xff\xfe"),
    "a forged history": order(ce_id="6", ce_onceonlyhistory='[{"kind":"exception","reason":"r","at":99999999999999999999}]'),
    "a forged count": order(ce_id="7", ce_onceonlyattempts="-1"),
    "a forged due time": order(ce_id="8", onceonly_due="soon"),
    "a due time in the past": order(ce_id="9", onceonly_due="1"),
    "an id of bytes": order(ce_id=b"ten"),
}
DEAD: dict[str, dict[str, Any]] = {
    "no attributes": {},
    "no id": order(),
    "an id that is not UTF-8": order(ce_id=b"\xff\xfe"),
    "two ids": {**order(ce_id="a"), "CE-ID": "b"},
    "another type": {**order(ce_id="11"), "ce-type": "Nothing"},
    "packed headers that are no JSON": order(ce_id="12", onceonly_headers="{"),
    "packed headers that are no pairs": order(ce_id="13", onceonly_headers="[[1,2]]"),
    "packed headers of bytes": order(ce_id="14", onceonly_headers=b"\xff"),
    "packed headers that are deep": order(ce_id="15", onceonly_headers="[" * 50_000),
    "a body that is no base64": order(ce_id="16", onceonly_body="base64"),
    "a body in an unknown encoding": order(ce_id="17", onceonly_body="gzip"),
    "a structured event that is none": {"content-type": "application/cloudevents+json"},
}


class Shop:
    """An endpoint whose handler stores bodies."""

    def __init__(self, folder: Path, endpoint: str, options: str) -> None:
        self._file = folder / "shop.db"
        self.store = f"sqlite:///{self._file}"
        self.transport = f"sqs://test:test@eu-central-1?prefix=h{uuid4().hex[:10]}-&endpoint={endpoint}{options}"
        self.endpoint = Endpoint(
            "shop",
            store=self.store,
            transport=self.transport,
            metadata=METADATA,
            retry=Retry(immediate=1, delayed=0),
            unknown_types_wait=0,
        )

        @self.endpoint.handler(type="Order")
        async def take(body: bytes, connection: AsyncConnection) -> None:
            await connection.execute(NOTES.insert(), {"body": body})

    async def put(self, *messages: tuple[dict[str, Any], str]) -> None:
        """Send attributes and bodies as they are."""
        link = await SqsLink.open(read_sqs(self.transport))
        url = await link.need(link.names.queue("shop"))
        for part in portions(messages):
            group = {"MessageGroupId": "g"} if link.address.fifo else {}
            unique: Any = (lambda: {"MessageDeduplicationId": uuid4().hex}) if link.address.fifo else dict
            entries = [
                {"Id": str(number), "MessageBody": body, "MessageAttributes": plain(attributes), **group, **unique()}
                for number, (attributes, body) in enumerate(part)
            ]
            answer = await link.sqs.send_message_batch(QueueUrl=url, Entries=entries)
            assert not answer.get("Failed"), answer
        await link.close()

    async def settled(self) -> tuple[Counter[bytes], list[DeadLetter]]:
        """Wait until the queue is empty; gives what was handled and what was not."""
        async with open_transport(self.transport, "shop") as transport, asyncio.timeout(4 * PATIENCE):
            while (depth := await transport.depth("shop")).waiting or depth.held or depth.delayed:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.05)
        with closing(sqlite3.connect(self._file)) as connection:
            handled = Counter(body for (body,) in connection.execute("select body from notes"))
        async with open_dead_letters(self.store) as letters:
            return handled, list(await letters.page(Filter(), limit=1000))


@pytest.fixture(params=["", "&fifo=true"], ids=["standard", "fifo"])
async def shop(tmp_path: Path, ministack_endpoint: str, request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    """Run the endpoint behind a prefix of its own."""
    made = Shop(tmp_path, ministack_endpoint, request.param)
    async with temporary_transport(made.transport, [Topology(endpoint="shop")]), made.endpoint.running():
        yield made


async def test_hostile_messages_take_effect_once_or_are_dead_letters(shop: Shop) -> None:
    """Each is sent twice, among good ones."""
    good = [(order(ce_id=f"good-{number}"), f"good {number}") for number in range(GOOD)]
    odd = [(attributes, name) for name, attributes in (*HANDLED.items(), *DEAD.items())]
    await shop.put(*odd, *good, *odd)
    handled, letters = await shop.settled()
    assert handled == Counter(name.encode() for name in HANDLED) + Counter(body.encode() for _, body in good)
    assert {letter.body.decode(): bool(letter.reason) for letter in letters} == dict.fromkeys(DEAD, True)


async def test_an_empty_body_reaches_its_handler(shop: Shop) -> None:
    """SQS takes none, so an attribute says that it is empty."""
    await shop.put((order(ce_id="1", onceonly_body="empty"), "-"))
    handled, letters = await shop.settled()
    assert (handled, letters) == (Counter([b""]), [])


async def test_a_body_over_the_limit_of_the_endpoint_is_a_dead_letter(shop: Shop) -> None:
    """SQS takes more than `max_body`, but a copy in base64 would not fit."""
    await shop.put((order(ce_id="1"), "x" * (1024 * 1024 - 1000)))
    handled, letters = await shop.settled()
    assert (sum(handled.values()), len(letters)) == (0, 1)
