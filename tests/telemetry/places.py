"""Two endpoints: a shop that publishes, and billing that subscribes. With a store in memory, or on servers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from onceonly import Context, Endpoint, WorkerSettings
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.observer import Observer

FAST = WorkerSettings(wait=0.05)


@dataclass
class PlaceOrder:
    """A command."""

    order_id: str


@dataclass
class OrderPlaced:
    """An event."""

    order_id: str


@dataclass
class Services:
    """Both endpoints; `billed` is set when billing has handled an event. `while_placing` and `while_billing` are hooks."""

    shop: Endpoint
    billing: Endpoint
    placing: list[str] = field(default_factory=list)
    billed: asyncio.Event = field(default_factory=asyncio.Event)
    while_placing: Callable[[str], Any] = lambda _: None
    while_billing: Callable[[str], Any] = lambda _: None

    @asynccontextmanager
    async def running(self, *, shop: Observer | None = None, only: str = "") -> AsyncIterator[None]:
        """Run both, or one of them."""
        async with asyncio.timeout(60):
            if only:
                async with host_of(getattr(self, only)).running(observer=shop):
                    yield
                return
            async with host_of(self.billing).running(), host_of(self.shop).running(observer=shop):
                yield

    async def place(self, *orders: str) -> None:
        """Have the shop send itself commands, outside of any handler."""
        async with self.shop.transaction() as tx:
            for order in orders:
                tx.send(PlaceOrder(order), to="shop")


def services(store: str, transport: str, telemetry: Any, **options: Any) -> Services:
    """Make both endpoints."""
    shop, billing = (
        Endpoint(name, store=store, transport=transport, telemetry=telemetry, worker=FAST, **options)
        for name in ("shop", "billing")
    )
    made = Services(shop, billing)

    @shop.handler
    async def place(order: PlaceOrder, context: Context) -> None:
        made.placing.append(order.order_id)
        context.publish(OrderPlaced(order.order_id))
        made.while_placing(order.order_id)

    @billing.handler
    async def bill(event: OrderPlaced) -> None:
        made.while_billing(event.order_id)
        made.billed.set()

    return made
