"""Another service, which is an endpoint of onceonly: it books what was charged."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.celery_flask.lines import EVENTS, Line
from examples.hosts.program import STORE
from onceonly import Endpoint

books = Endpoint("books", store=STORE, transport=EVENTS)


@dataclass
class OrderCharged:
    """What the shop publishes."""

    order_id: str


@books.handler
async def book(charged: OrderCharged, session: AsyncSession) -> None:
    """Write the row."""
    session.add(Line(step="booked", order_id=charged.order_id))
