"""What every application of these examples has: its table, the places it uses, and a report of what it handled."""

import os

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

STORE = os.environ.get("HOSTS_STORE", "")
"""The URL of the database, with its driver."""
SYNC_STORE = STORE.replace("+asyncpg", "+psycopg")
"""The same with a synchronous driver."""
BROKER = os.environ.get("HOSTS_BROKER", "")
"""The URL of the broker."""
PREFIX = os.environ.get("HOSTS_PREFIX", "")
"""What the names of queues, streams and subjects begin with. Each run has its own."""
ORDERS, PLACED = f"{PREFIX}orders", f"{PREFIX}order-placed"


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """One row for each time an order was placed: nothing else keeps it from being there twice."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(80))


def report(order_id: str) -> None:
    """Report an order that a handler has in work. The harness counts these lines, and kills."""
    os.write(1, f"{order_id}\n".encode())


ACCOUNTS = 4


def number_of(order_id: str) -> int:
    """Return the number at the end of an id."""
    return int(order_id.rpartition("-")[2])


def account_of(order_id: str) -> str:
    """Return the account of an order, which is its group in a FIFO queue."""
    return f"account-{number_of(order_id) % ACCOUNTS}"
