"""The application's table."""

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["Base", "Order"]


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """One row for each time an order was placed or confirmed: nothing else keeps it from being there twice."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(80))
    step: Mapped[str] = mapped_column(String(20))
