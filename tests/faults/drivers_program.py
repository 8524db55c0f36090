"""Processes of a shop whose messages three drivers finish: redelivered messages, relays and control messages.

`python -m tests.faults.drivers_program ROLE POINT TIMES ORDER...`. ROLE is "client", which opens a transaction for each order;
"worker", which handles orders and control messages; or "relay". A process kills itself when it reaches the crash point POINT
for the TIMES-th time. It prints what it does, a line each.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from onceonly import Context, ControlMessages, Endpoint, WorkerSettings
from onceonly.assembly import open_relay
from onceonly.endpoint.host import host_of
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from tests.faults.control_program import DELAYS, KillAt

RELAY_AFTER_SECONDS = 0.2
"""So early that relays take records which other processes are about to send."""


@dataclass
class Place:
    """An order, as a message."""

    order: str


@dataclass
class Placed:
    """What follows from it."""

    order: str


@dataclass
class PlacedOrder:
    """The entity: how often an order was placed."""

    order: str
    times: int = 0


class Reporting(KillAt):
    """Prints how many events were sent, before the process is killed."""

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Print after the call."""
        self._reach(f"before-{call.point}")
        yield
        if call.point is Point.DISPATCH:
            events = sum(each.to == "billing" for each in call.items)  # control messages are sent as well
            print(f"sent {events}", flush=True)  # noqa: T201 - the test reads it
        self._reach(f"after-{call.point}")


def shop_of_environment() -> Endpoint:
    """Return the endpoint."""
    shop = Endpoint(
        "shop",
        store=os.environ["DRIVERS_STORE"],
        transport=os.environ["DRIVERS_TRANSPORT"],
        max_commit=timedelta(seconds=5),
        relay_after=RELAY_AFTER_SECONDS,
        control=ControlMessages(delays=DELAYS, max_commit=timedelta(seconds=5)),
        worker=WorkerSettings(max_concurrency=4),
        janitor=False,
    )

    @shop.handler(entity=PlacedOrder, key="order")
    async def place(message: Place, order: PlacedOrder, context: Context) -> None:
        order.times += 1
        context.send(Placed(message.order), to="billing")

    return shop


async def transact(observer: Reporting, names: list[str]) -> None:
    """Open a transaction for each order. Those with a key can be repeated."""
    shop = shop_of_environment()
    async with host_of(shop).opened(observer=observer):
        for name in names:
            print(f"begin {name}", flush=True)  # noqa: T201 - the test reads it
            async with shop.transaction(idempotency_key=name if name.startswith("keyed") else None) as tx:
                if not tx.is_known:
                    (await tx.entity(PlacedOrder, name)).times += 1
                    tx.send(Placed(name), to="billing")
            print(f"done {name}", flush=True)  # noqa: T201 - the same


async def work(observer: Reporting) -> None:
    """Handle orders and control messages."""
    async with host_of(shop_of_environment()).running(observer=observer):
        print("ready", flush=True)  # noqa: T201 - the same
        await asyncio.Event().wait()


async def send_what_is_left(observer: Reporting) -> None:
    """Run a relay as `onceonly relay` does."""
    settings = shop_of_environment().settings
    async with open_relay(settings, observer=observer) as ports:
        found = ports.for_relay()
        assert found is not None
        print("ready", flush=True)  # noqa: T201 - the same
        relaying = Relay(by_relay(found), after=settings.relay_after, grace=1.0, notifier=Notifier(), environment=LIVE)
        await relaying.run(asyncio.Event())


def main(role: str, point: str, times: str, *names: str) -> None:
    """Run the process."""
    observer = Reporting(point, int(times))
    match role:
        case "client":
            asyncio.run(transact(observer, [*names]))
        case "worker":
            asyncio.run(work(observer))
        case _:
            asyncio.run(send_what_is_left(observer))


if __name__ == "__main__":
    main(*sys.argv[1:])
