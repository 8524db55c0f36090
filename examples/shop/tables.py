"""`python -m examples.shop.tables`: the tables, on a database server. Where there are migrations, they do this."""

import asyncio

from examples.shop.orders import Base, engine


async def main() -> None:
    """Make those that are missing."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


asyncio.run(main())
