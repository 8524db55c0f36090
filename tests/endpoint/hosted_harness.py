"""What the tests of hosted delivery share: an endpoint that writes a row and sends, and a host that redelivers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import String, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint, Hosted, HostedMessage, HostedOutcome, Retry
from onceonly.assembly import open_database, open_dead_letters, open_store, open_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology

ONCE = Retry(immediate=0, delayed=0, jitter=0)
"""One attempt."""
FIRST_DELAY = 5.0
TWICE = Retry(immediate=1, delayed=1, first_delay=FIRST_DELAY, jitter=0)
"""Three attempts: the second at once, the third after five seconds."""


class Base(DeclarativeBase):
    """The user's own tables."""


class Line(Base):
    """What a handler did. Nothing protects it from repetition."""

    __tablename__ = "hosted_lines"
    number: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(String(40))


@dataclass
class Order:
    """What is handed over."""

    id: str


@dataclass
class Placed:
    """What is published."""

    id: str


@dataclass
class HostQueue:
    """A host: holds messages, counts deliveries, and forgets what is settled."""

    waiting: list[HostedMessage] = field(default_factory=list)
    outcomes: list[HostedOutcome] = field(default_factory=list)

    async def deliver(self, hosted: Hosted, **options: Any) -> Sequence[HostedOutcome]:
        """Hand over everything that waits; what is not settled waits for its next delivery."""
        came = list(self.waiting)
        outcomes = await hosted.handle(came, **options)
        self.outcomes += outcomes
        self.waiting = [again(m) for m, outcome in zip(came, outcomes, strict=True) if not outcome.is_settled]
        return outcomes


def again(message: HostedMessage) -> HostedMessage:
    """Return the next delivery of a message."""
    return HostedMessage(message.body, message.headers, message.id, message.deliveries + 1, message.queue)


def order(name: str, deliveries: int = 1, **changes: Any) -> HostedMessage:
    """Make a message as a host hands it over."""
    headers = {"ce-id": name, "ce-source": "web", "ce-type": "Order", "content-type": "application/json"}
    fields = {"body": b'{"id":"%s"}' % name.encode(), "headers": headers, "deliveries": deliveries} | changes
    return HostedMessage(**fields)


def sql_shop(store: str, transport: str | None, **settings: Any) -> Endpoint:
    """Make an endpoint whose handler writes a row and publishes an event."""
    shop = Endpoint("shop", store=store, transport=transport, metadata=Base.metadata, **settings)

    @shop.handler
    async def place(order: Order, session: AsyncSession, context: Context) -> None:
        """Write and publish."""
        session.add(Line(what=order.id))
        context.publish(Placed(order.id))

    return shop


async def declare_listener(url: str) -> None:
    """Declare the queue of an endpoint that receives what `shop` publishes."""
    async with open_transport(url, "listener") as queue:
        await queue.declare([Topology(endpoint="listener", events=("Placed",))])


async def received(url: str) -> list[str]:
    """Take everything from that queue, and return the ids of the messages, sorted."""
    found: list[str] = []
    async with open_transport(url, "listener") as queue:
        while taken := await queue.receive(100, 0.05):
            found += [dict(delivery.headers)["ce-id"] for delivery in taken]
            await queue.ack(taken)
    return sorted(found)


async def rows(url: str) -> list[str]:
    """Return what handlers wrote, sorted."""
    async with open_database(url) as database, database.writing() as connection:
        return sorted((await connection.execute(select(Line.what))).scalars())


async def count(url: str, table: str) -> int:
    """Count the rows of a table."""
    async with open_database(url) as database, database.writing() as connection:
        return int((await connection.execute(select(func.count()).select_from(text(table)))).scalar_one())


async def letters(shop: Endpoint) -> list[DeadLetter]:
    """Return its dead letters."""
    async with open_dead_letters(shop.settings.store) as opened:
        return list(await opened.page(Filter(endpoint=shop.name), limit=100))


async def pending(shop: Endpoint) -> int:
    """Count the records whose messages are not sent, or that were not deleted."""
    async with open_store(shop.settings) as opened:
        assert opened.pending is not None
        return len(await opened.pending.undispatched(1 << 52, 100))
