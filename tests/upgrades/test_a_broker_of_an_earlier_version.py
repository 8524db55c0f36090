"""A RabbitMQ that the version before the new package layout has filled is drained by this one: each message takes effect once.

`filled/rabbitmq/` holds what commit 8a3cea4 left behind when it ran `upgrade_program.py` on RabbitMQ: dumps of the endpoints'
SQLite files, and in `broker.json` every queue, exchange, binding and message. Acknowledgements were withheld, so all messages
that were handled wait again. For each endpoint it has handled orders 1, 2 and 3, given up -1, and failed once with 7, whose
retry is delayed. Orders 4 and 5 are committed, and their process died before it sent anything. Orders 6 and 8 wait, 9 is
delayed.
"""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pamqp import commands as spec

from onceonly.algorithms.delivery import deliver
from onceonly.conformance.clock import ManualClock
from onceonly.endpoint.host import host_of
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import Environment
from tests.adapters.rabbitmq.harness import Broker
from tests.upgrades.harness import ORDERS, ask, restored

FILLED = Path(__file__).with_name("filled") / "rabbitmq"
LEVELS = 17
LATER = 1_795_436_361_542 + 600_000
"""Ten minutes after it was filled, in milliseconds since 1970."""
NAMES = ("history", "tokens", "marks")
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.slow


@pytest.fixture(name="broker")
async def a_filled_broker() -> AsyncIterator[Broker]:
    """Restore what was in RabbitMQ, behind a prefix of the test's own. Nothing of it is declared by the code under test."""
    async with AsyncExitStack() as stack:
        broker = Broker(stack, levels=LEVELS, tick=1000)
        topologies = [Topology(endpoint=name, events=("Count", "PlaceOrder")) for name in (*NAMES, "sink")]
        stack.push_async_callback((await broker.transport()).remove, topologies)
        text = (FILLED / "broker.json").read_text(encoding="utf-8").replace('"old.', f'"{broker.prefix}')
        async with broker.plain() as channel:
            await restore(channel, json.loads(text))
        yield broker


async def restore(channel: Any, filled: dict[str, list[dict[str, Any]]]) -> None:
    """Declare the queues, exchanges and bindings, and put the messages where they were."""
    for queue in filled["queues"]:
        await channel.queue_declare(queue["name"], durable=queue["durable"], arguments=values(queue))
    for exchange in filled["exchanges"]:
        await channel.exchange_declare(
            exchange["name"], exchange_type=exchange["type"], durable=exchange["durable"], arguments=values(exchange)
        )
    for binding in filled["bindings"]:
        bind = channel.queue_bind if binding["destination_kind"] == "queue" else channel.exchange_bind
        source, destination = binding["source_name"], binding["destination_name"]
        pair = (destination, source)  # of a queue or an exchange, it is first where messages go, then where from
        await bind(*pair, binding["routing_key"], arguments=values(binding))
    for each in filled["messages"]:
        is_delayed = ":" in each["queue"]  # it goes through its exchange, which decides where it waits
        exchange, key = (each["exchange"], each["routing_key"]) if is_delayed else ("", each["queue"])
        properties = spec.Basic.Properties(**each["properties"])
        body = base64.b64decode(each["body"])
        await channel.basic_publish(body, exchange=exchange, routing_key=key, mandatory=True, properties=properties)


def values(declared: dict[str, Any]) -> dict[str, Any]:
    """Give the arguments without their types."""
    return {name: value for name, _, value in declared["arguments"]}


@pytest.fixture(name="program")
def program_on_the_filled_broker(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Restore the files, and import the program that works on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UPGRADE_QUEUE", broker.url)
    with restored(FILLED, tmp_path) as program:
        yield program


@pytest.mark.parametrize("name", NAMES)
async def test_each_message_takes_effect_once(name: str, program: ModuleType, broker: Broker) -> None:
    """By claims, by tokens and by marks elsewhere."""
    endpoint = getattr(program, name)
    assert ask(f"{name}.db", "SELECT count(*) FROM onceonly_records") == [(2,)]  # there is something to drain
    handled, clock = Counter[int](), ManualClock(LATER)
    async with host_of(endpoint).opened(environment=Environment(clock=clock)) as ports, asyncio.timeout(PATIENCE_SECONDS):
        while not (handled.keys() >= ORDERS and await is_empty(ports.transport, name)):
            clock.advance(1000)
            await deliver(await ports.transport.receive(100, 1), ports)
            handled = Counter(number for (number,) in ask(f"{name}.db", "SELECT number FROM orders"))
        letters = await ports.dead_letters.page(Filter(endpoint=name))
    assert handled == dict.fromkeys(ORDERS, 1)
    sent = [headers["ce-id"] async for headers in waiting(broker, "sink") if headers["ce-source"] == name]
    assert len(set(sent)) == len(sent) == len(ORDERS)
    assert ask(f"{name}.db", "SELECT count(*) FROM onceonly_records") == [(0,)]
    assert [letter.message is not None and b"-1" in letter.message.body for letter in letters] == [True]


async def is_empty(transport: Transport, name: str) -> bool:
    """Report whether nothing waits or is delayed; what is delayed is counted for all endpoints."""
    depth = await transport.depth(name)
    return depth.waiting == depth.held == 0


async def waiting(broker: Broker, queue: str) -> AsyncIterator[dict[str, Any]]:
    """Take what waits in a queue, and give its headers."""
    async with broker.plain() as channel:
        while isinstance((found := await channel.basic_get(broker.names.queue(queue), no_ack=True)).delivery, spec.Basic.GetOk):
            yield dict(found.header.properties.headers)
