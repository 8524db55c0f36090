"""A database of one run, and a channel of its broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractChannel
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine


@asynccontextmanager
async def opened_servers(postgresql: str, rabbitmq: str) -> AsyncIterator[tuple[AsyncEngine, AbstractChannel]]:
    """Make a database on a server for a block, and open a channel. Drops the database at the end."""
    url = make_url(postgresql).set(drivername="postgresql+asyncpg")
    name = f"onceonly_bench_{uuid4().hex[:8]}"
    operator = create_async_engine(url, isolation_level="AUTOCOMMIT")
    engine = create_async_engine(url.set(database=name))
    try:
        async with operator.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
        async with await aio_pika.connect(rabbitmq) as broker:
            yield engine, await broker.channel()
    finally:
        await engine.dispose()
        async with operator.connect() as connection:
            await connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        await operator.dispose()
