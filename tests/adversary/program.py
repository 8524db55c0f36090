"""The endpoint under attack. `onceonly run tests.adversary.program:shop` starts it; the environment says where it lives."""

import asyncio
import os
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Retry, WorkerSettings
from onceonly.model.identity import Identity


def tables(name: str) -> tuple[MetaData, Table, Table]:
    """Define the endpoint's tables.

    The first has one row for each time a handler's work was committed, and nothing in it prevents a second one. The other
    has rows that many messages change.
    """
    metadata = MetaData()
    effects = Table(
        name,
        metadata,
        Column("line", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("name", LargeBinary, nullable=False),
    )
    counters = Table(
        f"{name}_hot",
        metadata,
        Column("key", String(20), primary_key=True),
        Column("count", BigInteger, nullable=False),
    )
    return metadata, effects, counters


metadata, effects, counters = tables(os.environ.get("ADVERSARY_EFFECTS", "effects"))


@dataclass
class Done:
    """What every handled message announces; `name` is that of its row."""

    name: str


def name_of(identity: Identity) -> str:
    """Name a message so that no two identities share a name."""
    source, id_ = (part.encode(errors="surrogatepass").hex() for part in identity)
    return f"{source}-{id_}"


shop = Endpoint(
    "shop",
    store=os.environ.get("ADVERSARY_STORE", "sqlite:///adversary.db"),
    transport=os.environ.get("ADVERSARY_TRANSPORT", "sqlite:///adversary.db"),
    isolation=os.environ.get("ADVERSARY_ISOLATION") or None,
    metadata=metadata,
    retry=Retry(
        immediate=1, delayed=int(os.environ.get("ADVERSARY_DELAYED", "0")), first_delay=0.1, factor=1.5, max_delay=5, jitter=0.5
    ),
    timeout=float(os.environ.get("ADVERSARY_TIMEOUT", "10")),
    relay_after=1.0,
    unknown_types_wait=0,
    worker=WorkerSettings(grace=float(os.environ.get("ADVERSARY_GRACE", "10"))),
)


async def work(session: AsyncSession, context: Context) -> None:
    """Do what each message asks for: one row, one announcement."""
    name = name_of(context.message.identity)
    await session.execute(insert(effects).values(name=name.encode()))
    context.publish(Done(name))


@shop.handler(type="Order")
async def order(_body: bytes, session: AsyncSession, context: Context) -> None:
    """Handle a message whose body may be anything."""
    await work(session, context)


@shop.handler(type="Typed")
async def typed(_body: dict[str, int], session: AsyncSession, context: Context) -> None:
    """Handle a message whose body must be JSON."""
    await work(session, context)


@shop.handler(type="Slow")
async def slow(body: dict[str, float], session: AsyncSession, context: Context) -> None:
    """Take a while."""
    await asyncio.sleep(body["seconds"])
    await work(session, context)


@shop.handler(type="Hot")
async def hot(body: dict[str, list[str]], session: AsyncSession, context: Context) -> None:
    """Change rows that other messages change too, in the order of the body: that makes deadlocks."""
    for key in body["keys"]:
        await session.execute(update(counters).where(counters.c.key == key).values(count=counters.c.count + 1))
    await work(session, context)
