"""The same messages through a worker and through a host: the same rows, messages on the wire and dead letters."""

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Reject, WorkerSettings
from onceonly.assembly import open_transport
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import PREFIX
from onceonly.model.message import Message, Send
from onceonly.runtime.observe.observer import Point
from tests.endpoint.hosted_harness import TWICE as RETRY
from tests.endpoint.hosted_harness import (
    Base,
    HostQueue,
    Line,
    Order,
    Placed,
    declare_listener,
    letters,
    order,
    received,
    rows,
)
from tests.endpoint.test_end_to_end import Watch

NAMES = ("a", "b", "a", "rejected", "always", "second time", "a", "b")
"""Copies of two messages, one that is rejected, one that always fails, and one that fails once."""


def shop_at(store: str, queue: str) -> tuple[Endpoint, list[str]]:
    """Make an endpoint, and the list of the messages that its handler has begun."""
    retry = RETRY.__class__(immediate=2, delayed=0, jitter=0)
    shop = Endpoint("shop", store=store, transport=queue, metadata=Base.metadata, retry=retry, worker=WorkerSettings(wait=0.02))
    begun: list[str] = []

    @shop.handler
    async def place(order: Order, session: AsyncSession, context: Context) -> None:
        begun.append(order.id)
        session.add(Line(what=order.id))
        context.publish(Placed(order.id))
        if order.id == "rejected":
            raise Reject("not for sale")
        if order.id == "always" or (order.id == "second time" and begun.count(order.id) == 1):
            raise ValueError("no stock")

    return shop, begun


async def by_worker(shop: Endpoint, queue: str) -> None:
    """Send the messages to its queue, and run it until each copy is settled."""
    watch, stop = Watch(), asyncio.Event()
    async with open_transport(queue, "shop") as own:
        await own.declare([shop.topology()])
        sent = [_message(name) for name in NAMES]
        await own.send([Send(message=each, to="shop") for each in sent])
    running = asyncio.create_task(host_of(shop).run(stop, observer=watch))
    copies = 2 + 1  # of the message that always fails, and of the other
    await watch.until(Point.ACK, len(NAMES) + copies)
    stop.set()
    await running


def _message(name: str) -> Message:
    headers = dict(order(name).headers)  # type: ignore[call-overload]
    return Message(id=headers[f"{PREFIX}id"], source=headers[f"{PREFIX}source"], type="Order", body=order(name).body)


async def by_host(shop: Endpoint, _: str) -> None:
    """Hand the messages over, in two calls, until each copy is settled."""
    async with shop.hosted() as hosted:
        for some in (NAMES[:5], NAMES[5:]):
            host = HostQueue([order(name) for name in some])
            for _delivery in range(5):
                await host.deliver(hosted)
            assert host.waiting == []


async def outcome_of(place: str, play: Any) -> dict[str, Any]:
    """Return what is left of a run."""
    store, queue = f"sqlite:///{place}-store.db", f"sqlite:///{place}-queue.db"
    await declare_listener(queue)
    shop, begun = shop_at(store, queue)
    async with asyncio.timeout(60):
        await play(shop, queue)
    found = await letters(shop)
    return {
        "rows": await rows(store),
        "sent": sorted(set(await received(queue))),
        "letters": sorted((each.message.id, each.reason, each.attempts) for each in found if each.message),
        "failures": sorted(len(each.history) for each in found),
        "runs": {name: begun.count(name) for name in ("always", "second time")},
    }


async def test_a_host_and_a_worker_leave_the_same(tmp_path: Path) -> None:
    """Ids of sent messages are derived from those received, so they are equal as well."""
    worker = await outcome_of(f"{tmp_path}/worker", by_worker)
    host = await outcome_of(f"{tmp_path}/host", by_host)
    for result in (worker, host):  # the time is a part of an id, and its position is not
        assert len(result["sent"]) == 3
    assert {**worker, "sent": ()} == {**host, "sent": ()}
    assert host["rows"] == ["a", "b", "second time"]
    assert host["letters"] == [("always", "ValueError: no stock", 3), ("rejected", "not for sale", 1)]
