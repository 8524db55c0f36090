"""An endpoint with a journal in a process of its own, which kills itself at a port call if it is told to.

`python -m tests.faults.journal_program [CRASH_POINT]` works, and says "ready". The variable TOLD names its database.
`onceonly relay tests.faults.journal_program:shop` is a relay of it.
"""

import asyncio
import os
import sys
from dataclasses import dataclass

from onceonly import Context, Endpoint, Journal
from onceonly.endpoint.host import host_of
from tests.endpoint.http_services import KillAt

PLACE, RELAY_AFTER = "TOLD", "TOLD_RELAY_AFTER"


@dataclass
class Place:
    """A command."""

    order: str


@dataclass
class Charge:
    """A command that follows, to another endpoint."""

    order: str


def told(url: str) -> Endpoint:
    """Make the endpoint."""
    after = float(os.environ.get(RELAY_AFTER, "10"))
    transport = f"{url}{'&' if '?' in url else '?'}lease=1"
    shop = Endpoint("shop", store=url, transport=transport, journal=Journal(), relay_after=after)

    async def place(command: Place, context: Context) -> None:
        context.send(Charge(command.order), to="billing")

    shop.handler(place)
    return shop


shop = told(os.environ.get(PLACE, "sqlite:///unused.db"))


async def main(point: str) -> None:
    """Work until killed."""
    async with host_of(shop).running(observer=KillAt(point) if point else None):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
