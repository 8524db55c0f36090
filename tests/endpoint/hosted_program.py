"""A process that a host runs: handles one delivery of messages, prints the outcomes, and may be killed at a crash point.

Arguments: URL of the store, URL of the transport, a crash point or "-", the number of this delivery, and ids of messages.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observer import PortCall
from tests.endpoint.hosted_harness import TWICE, Line, Order, Placed, order, sql_shop

DEADLY, FAILING = "deadly", "failing"
EXIT = 77


class KillAt:
    """Kills this very process at a crash point."""

    def __init__(self, point: str) -> None:
        """Kill when it is reached for the first time."""
        self._crash = CrashAt(point)

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Enclose a call."""
        try:
            async with self._crash.around(call):
                yield
        except ProcessCrash:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(store: str, transport: str, point: str, *, deliveries: int, ids: list[str]) -> None:
    """Handle the messages once."""
    shop = sql_shop(store, transport, retry=TWICE)

    @shop.handler(type="Deadly")
    async def die(order: Order, session: AsyncSession) -> None:
        """End the process as an extension module does that crashes."""
        session.add(Line(what=order.id))
        os._exit(EXIT)

    @shop.handler(type="Failing")
    async def fail(order: Order, context: Context) -> None:
        """Fail, after something was published."""
        context.publish(Placed(order.id))
        raise ValueError("no stock")

    observer = None if point == "-" else KillAt(point)
    async with host_of(shop).hosted(observer=observer) as hosted:
        outcomes = await hosted.handle([message(name, deliveries) for name in ids])
        print(json.dumps(msgspec.to_builtins(outcomes)), flush=True)  # noqa: T201 - for the test


def message(name: str, deliveries: int):  # noqa: ANN201 - as `order`
    """Make a message of a type that fits its id."""
    type_ = {DEADLY: "Deadly", FAILING: "Failing"}.get(name, "Order")
    return order(name, deliveries, headers={"ce-id": name, "ce-source": "web", "ce-type": type_})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], deliveries=int(sys.argv[4]), ids=sys.argv[5:]))
