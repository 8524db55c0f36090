"""An endpoint that has each order charged at somebody else's API, in a process that dies at a crash point."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import AtLeastOnce, Context, Endpoint, IdempotencyKey, Peer
from onceonly.endpoint.host import host_of
from tests.endpoint.http_services import KillAt

LEASE = "?lease=1"


@dataclass
class Order:
    """Something to be paid."""

    name: str


@dataclass
class Charged:
    """It follows the call up."""

    name: str


def shop(folder: Path, url: str, style: str) -> Endpoint:
    """Make the endpoint that calls the API."""
    peer = Peer(url, timeout=1, style=IdempotencyKey() if style == "keys" else AtLeastOnce())
    transport = f"sqlite:///{folder}/queue.db{LEASE}"
    endpoint = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", transport=transport, peers=[peer])

    @endpoint.handler
    async def order(asked: Order, session: AsyncSession, context: Context) -> None:
        await session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": asked.name})
        context.http.request("POST", f"{url}/charges", json={"name": asked.name}, then=Charged(asked.name))

    @endpoint.handler
    async def charged(done: Charged, session: AsyncSession, context: Context) -> None:
        assert context.http.response.json() == {"charged": done.name}
        await session.execute(text("INSERT INTO charged VALUES (:name)"), {"name": done.name})

    return endpoint


def prepare(folder: Path) -> None:
    """Make the tables of the application."""
    with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (name TEXT)")
        connection.execute("CREATE TABLE charged (name TEXT)")


def rows(folder: Path, table: str) -> list[str]:
    """Read one of them."""
    with closing(sqlite3.connect(folder / "shop.db", timeout=60)) as connection:
        return sorted(name for (name,) in connection.execute(f"SELECT name FROM {table}"))  # noqa: S608 - the test's own


async def main(folder: Path, url: str, style: str, point: str) -> None:
    """Handle orders, until killed."""
    async with host_of(shop(folder, url, style)).running(observer=KillAt(point) if point else None):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:5]))
