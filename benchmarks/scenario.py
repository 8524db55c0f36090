"""The one scenario: consume PlaceOrder, write one row, publish OrderPlaced. Its messages and its tables, for every row."""

from dataclasses import dataclass

import msgspec
from sqlalchemy import Column, DateTime, LargeBinary, MetaData, String, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

INSERT = "insert into baseline_order(order_id) values($1)"
"""The one row, as the rows without an ORM write it."""
INSERT_ALL = "insert into baseline_order(order_id) select unnest($1::text[])"
"""The rows of a batch at once."""


class PlaceOrder(msgspec.Struct):
    """What is consumed."""

    order_id: str


class OrderPlaced(msgspec.Struct):
    """What is published."""

    order_id: str


class Base(DeclarativeBase):
    """The tables of the application."""


class Order(Base):
    """The row that every message writes."""

    __tablename__ = "baseline_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(100))


@dataclass
class OrderState:
    """The entity that every message writes, where entities are kept instead of rows."""

    order_id: str
    placed: int = 0


ENTITY = "OrderState/"
"""What the keys of entities begin with."""

OUTBOX = Table(
    "baseline_outbox",
    MetaData(),
    Column("id", String(100), primary_key=True),
    Column("messages", LargeBinary),
    Column("dispatched_at", DateTime(timezone=True)),
)
"""The outbox of the rows that wrote one by hand."""

decode_order = msgspec.json.Decoder(PlaceOrder).decode
encode = msgspec.json.Encoder().encode


def order_ids(tag: str, count: int) -> list[str]:
    """Name the orders of one run: distinct, and told from those of every other run by the tag."""
    return [f"{tag}-{number}" for number in range(count)]


def sqlalchemy_url(url: str) -> str:
    """Name a PostgreSQL database for SQLAlchemy, with asyncpg."""
    return url.replace("postgresql://", "postgresql+asyncpg://", 1)
