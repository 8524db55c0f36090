"""Handlers that cancel themselves or do not end: the worker goes on or says why it cannot, and no application is killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from onceonly import Endpoint, Retry, WorkerSettings
from onceonly.assembly import open_dead_letters, open_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import WorkerStopped
from onceonly.model.message import Message, Send
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.background import Background

PLACE = "memory://misbehaving"


@dataclass
class Order:
    """What is sent."""

    id: str


def endpoint() -> Endpoint:
    """Make an endpoint whose handlers have little time, and no second try."""
    worker = WorkerSettings(grace=0.05, wait=0.05, batch_size=1)
    return Endpoint("shop", store=PLACE, transport=PLACE, retry=Retry(immediate=0, delayed=0), timeout=0.05, worker=worker)


@asynccontextmanager
async def working(shop: Endpoint, *ids: str) -> AsyncIterator[Background]:
    """Run it in this application, and send it orders."""
    async with open_transport(PLACE, "shop") as queue, shop.running() as background:
        sends = [
            Send(message=Message(id=name, source="web", type="Order", body=b'{"id":"%s"}' % name.encode()), to="shop")
            for name in ids
        ]
        await queue.send(sends)
        yield background


async def letters(count: int) -> list[DeadLetter]:
    """Wait for so many dead letters."""
    async with open_dead_letters(PLACE) as kept:
        while len(found := await kept.page(Filter())) < count:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        return list(found)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_handler_that_cancels_its_own_task_has_failed(waits: bool) -> None:  # noqa: FBT001
    """The reason says so, and the messages behind it are handled."""
    shop, handled = endpoint(), asyncio.Event()

    @shop.handler
    async def place(order: Order) -> None:
        if order.id == "good":
            handled.set()
            return
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.Event().wait()

    async with working(shop, "bad", "good") as background:
        await handled.wait()
        (letter,) = await letters(1)
        assert background.failure == ""
    assert letter.message is not None
    assert letter.message.id == "bad"
    assert "cancelled its own task" in letter.reason


async def test_a_handler_that_does_not_end_stops_an_embedded_worker() -> None:
    """It holds no other application: `failure` is for its probe, and leaving the context raises."""
    shop, end = endpoint(), asyncio.Event()

    @shop.handler
    async def place(_order: Order) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async def run() -> None:
        async with working(shop, "endless", "behind") as background:
            while not background.failure:  # noqa: ASYNC110 - a probe has no other way
                await asyncio.sleep(0.01)
            assert background.failure.startswith("WorkerStopped: a handler of endpoint 'shop'")

    with pytest.raises(WorkerStopped, match="did not end in time"):
        await run()
    end.set()
