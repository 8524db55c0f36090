"""A process that holds a unit: says "ready" when its handler's work is written, and commits when it reads a line."""

import asyncio
import sys

from onceonly.sql.store import SqlStore
from tests.sql.harness import add, message, opened, records, session_of


async def main(url: str) -> None:
    """Hold a unit until told to commit."""
    async with opened(url) as database:
        unit = await SqlStore(database, "shop").begin([message()])
        await add(unit, "from-the-process")
        await session_of(unit.resources).flush()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        await unit.commit(records(message(), decided=True))


asyncio.run(main(sys.argv[1]))
