"""`dead retry`, `dead edit` and `send` reach the queue from which a host receives, and `hosted` recognizes what comes."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import aio_pika
import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from onceonly import Hosted, HostedOutcome
from onceonly.cli.targets import load
from tests.cli.written_modules import forget_modules
from tests.endpoint.hosted_harness import letters
from tests.servers.available import NATS, RABBITMQ, need

PROGRAM = """
from dataclasses import dataclass
from onceonly import Context, Endpoint, {kind}, Retry

@dataclass
class Order:
    id: str

RUNS, FAILS = [], [True]
shop = Endpoint("shop", store="sqlite:///shop.db", transport={url!r}, receives_from={kind}({name!r}),
                retry=Retry(immediate=1, delayed=0))

@shop.handler
async def place(order: Order, context: Context) -> None:
    RUNS.append((order.id, context.message.id, context.attempts, [*context.message.extensions]))
    if FAILS[0]:
        raise ValueError("no")
"""
Take = Callable[[Hosted], Awaitable[HostedOutcome]]


class HostPlace(NamedTuple):
    """A queue of a host: its broker, its kind and its name; what sends to it, and what takes one message through `hosted`."""

    url: str
    kind: str
    name: str
    send: Callable[[dict[str, str], bytes], Awaitable[Any]]
    take: Take


@asynccontextmanager
async def on_rabbitmq() -> AsyncIterator[HostPlace]:
    """Receive with an aio-pika loop from a plain queue."""
    url, name = need(RABBITMQ), f"orders-{uuid4().hex[:8]}"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        try:
            async with queue.iterator() as arrivals:

                async def take(hosted: Hosted) -> HostedOutcome:
                    message = await anext(arrivals)
                    outcome = await hosted.handle_one(
                        message.body,
                        headers=message.headers,
                        id=message.message_id or "",
                        deliveries=2 if message.redelivered else 1,
                    )
                    if outcome.is_settled:
                        await message.ack()
                    else:
                        await asyncio.sleep(outcome.retry_after)
                        await message.nack()
                    return outcome

                async def send(headers: dict[str, str], body: bytes) -> None:
                    await channel.default_exchange.publish(aio_pika.Message(body, headers=dict(headers)), name)

                yield HostPlace(url, "Queue", name, send, take)
        finally:
            await queue.delete(if_unused=False, if_empty=False)


@asynccontextmanager
async def on_nats() -> AsyncIterator[HostPlace]:
    """Receive with a nats-py loop from a stream."""
    url, name = need(NATS), f"orders-{uuid4().hex[:8]}"
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name=name, subjects=[f"{name}.placed"])
    try:
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT)
        pulled = await stream.pull_subscribe(f"{name}.placed", durable="host", config=config)

        async def take(hosted: Hosted) -> HostedOutcome:
            (message,) = await pulled.fetch(1, timeout=60)
            outcome = await hosted.handle_one(
                message.data, headers=message.headers or {}, deliveries=message.metadata.num_delivered or 1
            )
            await (message.ack() if outcome.is_settled else message.nak(delay=outcome.retry_after))
            return outcome

        async def send(headers: dict[str, str], body: bytes) -> None:
            await stream.publish(f"{name}.placed", body, headers=headers)

        yield HostPlace(url, "Subject", f"{name}.placed", send, take)
    finally:
        await stream.delete_stream(name)
        await client.close()


async def onceonly(folder: Path, *arguments: str, given: bytes = b"") -> str:
    """Run a command in a process of its own, and return what it printed."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onceonly"), *arguments, cwd=folder, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate(given)
    assert process.returncode == 0, printed.decode()
    return printed.decode()


async def until_settled(take: Take, hosted: Hosted) -> HostedOutcome:
    """Take deliveries until one is settled."""
    async with asyncio.timeout(60):
        while not (outcome := await take(hosted)).is_settled:
            pass
    return outcome


@pytest.mark.parametrize("opened", [on_rabbitmq, on_nats])
@pytest.mark.slow
async def test_a_retried_dead_letter_runs_again_in_the_host(
    opened: Callable[[], AbstractAsyncContextManager[HostPlace]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its id and type, and all of its attempts, also if it is edited. It is not known, and it runs once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    async with opened() as place:
        (tmp_path / "hosted_shop.py").write_text(PROGRAM.format(kind=place.kind, url=place.url, name=place.name))
        forget_modules(tmp_path)
        shop = load("hosted_shop:shop")
        module = sys.modules["hosted_shop"]
        headers = {"ce-id": "o1", "ce-source": "web", "ce-type": "Order", "content-type": "application/json"}
        async with shop.hosted() as hosted:
            await place.send(headers, b'{"id":"a"}')
            assert (await until_settled(place.take, hosted)).is_dead
            assert [(id_, attempts) for _, id_, attempts, _ in module.RUNS] == [("o1", 0), ("o1", 1)]
            (letter,) = await letters(shop)

            module.RUNS.clear()  # it fails again: with as many attempts as a new message has
            assert "1 retried" in await onceonly(tmp_path, "dead", "retry", "hosted_shop:shop", letter.key)
            assert await letters(shop) == []
            assert (await until_settled(place.take, hosted)).is_dead
            assert [(id_, attempts) for _, id_, attempts, _ in module.RUNS] == [("o1", 0), ("o1", 1)]
            (letter,) = await letters(shop)

            module.RUNS.clear()
            module.FAILS[0] = False
            edit = ("dead", "edit", "hosted_shop:shop", letter.key, "-", "--note", "typo")
            await onceonly(tmp_path, *edit, given=b'{"id":"b"}')
            outcome = await until_settled(place.take, hosted)
            assert not outcome.is_dead
            assert module.RUNS == [("b", "o1", 0, [])]
            assert await letters(shop) == []

            await onceonly(tmp_path, "send", "-", "--to", "hosted_shop:shop", given=_event("o1"))  # the same id again
            assert (await until_settled(place.take, hosted)).is_dead  # with another body: a payload mismatch
            await onceonly(tmp_path, "send", "-", "--to", "hosted_shop:shop", given=_event("o2"))
            assert not (await until_settled(place.take, hosted)).is_dead
            assert [(order, id_) for order, id_, _, _ in module.RUNS] == [("b", "o1"), ("c", "o2")]


def _event(id_: str) -> bytes:
    return b'{"specversion":"1.0","id":"%s","source":"web","type":"Order","data":{"id":"c"}}\n' % id_.encode()
