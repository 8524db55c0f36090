"""The tables of the applications of Celery that tests use."""

from typing import Any

from sqlalchemy import String, create_engine, make_url
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The tables of the application."""


class Line(Base):
    """What a task has done. No constraint keeps it from being there twice."""

    __tablename__ = "lines"
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(String(255))
    item: Mapped[str] = mapped_column(String(255))


class Unique(Base):
    """A row that can be there once."""

    __tablename__ = "uniques"
    item: Mapped[str] = mapped_column(String(255), primary_key=True)


def engine_of(store: str) -> Any:
    """Make a synchronous engine for the database of a store."""
    url = make_url(store)
    driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}[url.get_backend_name()]
    options: dict[str, Any] = {"connect_args": {"timeout": 20}} if driver == "sqlite" else {}
    return create_engine(url.set(drivername=driver), **options)
