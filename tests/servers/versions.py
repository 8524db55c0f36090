"""The version of a server, as it says itself."""

import asyncio
from urllib.parse import urlsplit

import aiormq
import msgspec
from redis.asyncio import Redis
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
_STATEMENTS = {"postgresql": "SHOW server_version", "mysql": "SELECT VERSION()"}


async def version_of(url: str) -> str:
    """Return the version of the server at this URL: of PostgreSQL, MariaDB, MySQL, Redis, Valkey, NATS or RabbitMQ."""
    scheme = urlsplit(url).scheme
    match scheme:
        case "postgresql" | "mysql":
            return await _of_database(url, scheme)
        case "redis":
            async with Redis.from_url(url) as client:
                found = await client.info("server")
            return str(found.get("valkey_version") or found["redis_version"])
        case "nats":
            return await _of_nats(url)
        case "amqp":
            connection = await aiormq.connect(url)
            try:
                return str(connection.server_properties["version"])
            finally:
                await connection.close()
    raise ValueError(f"no server that tests use has a URL like {url!r}")


async def _of_database(url: str, scheme: str) -> str:
    engine = create_async_engine(make_url(url).set(drivername=_DRIVERS[scheme], query={}))
    try:
        async with engine.connect() as connection:
            return str((await connection.execute(text(_STATEMENTS[scheme]))).scalar_one())
    finally:
        await engine.dispose()


async def _of_nats(url: str) -> str:
    """Return the version in the line with which a server of NATS begins."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        line = await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()
    return str(msgspec.json.decode(line.removeprefix(b"INFO "))["version"])
