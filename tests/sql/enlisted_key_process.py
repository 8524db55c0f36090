"""What runs in a process of its own: kind of session, store, transport, when to die ("before", "after") or a number, key."""

import asyncio
import os
import signal
import sys

from onceonly.errors import ConflictError
from tests.sql.enlist_harness import OrderPlaced, Shop, endpoint
from tests.sql.enlisted_key_scenarios import Owned, caller_of


async def main(kind: str, store: str, transport: str, *how: str) -> None:
    """Place an order once for the key, and print whether it was known, and the answer."""
    when, key = (*how, "k1")[:2]
    shop = Shop.__new__(Shop)
    shop.store, shop.transport, shop.endpoint = store, transport, endpoint(store, transport)
    async with caller_of(shop, kind) as caller:
        while True:
            try:
                async with caller.session() as owned:
                    await place(owned, when, key)
            except ConflictError:
                continue
            return


async def place(owned: Owned, when: str, key: str) -> None:
    """Place it, or die."""
    entry = await owned.take(key)
    if not entry.is_known:
        owned.add(f"order {when} {os.getpid()}"[:20])
        entry.publish(OrderPlaced("A"))
        entry.answer = os.getpid()
        await owned.call("flush")
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await owned.call("commit")
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(f"{entry.is_known} {entry.answer}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
