"""The tables of the programs: what users map, and what depends on when and where a flush happens."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from sqlalchemy import JSON, Connection, Dialect, ForeignKey, ForeignKeyConstraint, String, TypeDecorator, event, insert
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, Mapper, mapped_column, relationship

CURRENT: ContextVar[str] = ContextVar("CURRENT", default="nobody")
"""The message whose handler runs. Column defaults and listeners read it."""

ACCOUNTS = ("a", "b", "c")
ORDERS = ("one", "two")
START = 10
"""The balance of every account at the start of a program."""


def current() -> str:
    """Return the message whose handler runs."""
    return CURRENT.get()


class Base(AsyncAttrs, DeclarativeBase):
    """The users' tables."""


class Account(Base):
    """A row that several messages change."""

    __tablename__ = "diff_accounts"
    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)


class Versioned(Base):
    """A row with a version counter: a stale object cannot be written."""

    __tablename__ = "diff_versioned"
    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    value: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column(nullable=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy's own form


class Order(Base):
    """A row with a generated id, a unique name, JSON, lines, and a default that depends on the context."""

    __tablename__ = "diff_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(40), unique=True)
    total: Mapped[int] = mapped_column(default=0)
    made_by: Mapped[str] = mapped_column(String(40), default=current)
    tags: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    lines: Mapped[list["Line"]] = relationship(back_populates="order", cascade="all, delete-orphan", order_by="Line.what")


class Line(Base):
    """A part of an order."""

    __tablename__ = "diff_lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("diff_orders.id"))
    what: Mapped[str] = mapped_column(String(40))
    order: Mapped[Order] = relationship(back_populates="lines")


class Stamped(TypeDecorator[str]):
    """A type that writes the message whose handler runs."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Add it."""
        return None if value is None else f"{value} of {CURRENT.get()}"


class Note(Base):
    """A row whose values depend on the context of its INSERT."""

    __tablename__ = "diff_notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(String(40))
    made_by: Mapped[str | None] = mapped_column(String(40), default=current)
    stamp: Mapped[str | None] = mapped_column(String(40).with_variant(Stamped(40), "sqlite", "postgresql", "mysql", "mariadb"))


class Branch(Base):
    """A row that refers to another one of its table."""

    __tablename__ = "diff_branches"
    id: Mapped[int] = mapped_column(primary_key=True)
    grows_on: Mapped[int | None] = mapped_column(ForeignKey("diff_branches.id", ondelete="CASCADE"))


class Audit(Base):
    """A row that a listener writes for each flush that changes an account."""

    __tablename__ = "diff_audits"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(20))
    balance: Mapped[int]
    message: Mapped[str] = mapped_column(String(40))


class Deferred(Base):
    """A row whose reference is checked at COMMIT only, where the database can do that."""

    __tablename__ = "diff_deferred"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(ForeignKey("diff_accounts.id", deferrable=True, initially="DEFERRED"))


@compiles(ForeignKeyConstraint, "mysql", "mariadb")
def _without_deferrable(constraint: ForeignKeyConstraint, compiler: Any, **options: Any) -> str:
    """Write the constraint as MariaDB understands it."""
    constraint.deferrable, constraint.initially, before = None, None, (constraint.deferrable, constraint.initially)
    try:
        written: str = compiler.visit_foreign_key_constraint(constraint, **options)
    finally:
        constraint.deferrable, constraint.initially = before
    return written


@event.listens_for(Account, "after_update")
def _audit(_mapper: Mapper[Account], connection: Connection, account: Account) -> None:
    connection.execute(insert(Audit).values(account=account.id, balance=account.balance, message=CURRENT.get()))


@event.listens_for(Line, "before_insert")
def _mark(_mapper: Mapper[Line], _connection: Connection, line: Line) -> None:
    line.what = f"{line.what} of {CURRENT.get()}"


SEED: Mapping[type[Base], list[dict[str, Any]]] = {
    Account: [{"id": each, "balance": START} for each in ACCOUNTS],
    Versioned: [{"id": "v", "value": 0, "version": 1}],
    Order: [{"id": -number, "name": each, "total": 0, "made_by": "seed", "tags": {}} for number, each in enumerate(ORDERS, 1)],
    Line: [{"id": -1, "order_id": -1, "what": "seed"}],
}
"""The rows at the start of a program. Their ids are below those that the database generates."""

QUERIES: Mapping[str, str] = {
    "accounts": "SELECT id, balance FROM diff_accounts ORDER BY id",
    "versioned": "SELECT id, value, version FROM diff_versioned ORDER BY id",
    "orders": "SELECT name, total, made_by, tags FROM diff_orders ORDER BY name",
    "lines": (
        "SELECT diff_orders.name, what FROM diff_lines LEFT JOIN diff_orders ON diff_orders.id = order_id ORDER BY name, what"
    ),
    "notes": "SELECT what, made_by, stamp FROM diff_notes ORDER BY id",
    "branches": "SELECT id, grows_on FROM diff_branches ORDER BY id",
    "audits": "SELECT account, balance, message FROM diff_audits ORDER BY account, message, balance",
    "deferred": "SELECT account FROM diff_deferred ORDER BY account",
}
"""What is compared at the end, without the ids that the database generates."""
