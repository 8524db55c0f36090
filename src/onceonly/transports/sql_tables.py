"""The tables of the queue inside a SQL database, and every statement it runs.

`visible_at` is all there is to leases and delays: nobody sees a message before that instant. `leases` counts how often it was
taken since somebody last gave it back, so a second one means that a lease ended. `receipt` names who took it last.
"""

from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    Delete,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    Update,
    bindparam,
    case,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.functions import FunctionElement

from onceonly.drivers.schema import Schema

_INSTANT = BigInteger  # milliseconds since 1970
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")  # only an INTEGER PRIMARY KEY counts up by itself there


def tables(prefix: str) -> MetaData:
    """Give the tables, named with this prefix."""
    metadata = MetaData()
    messages = Table(
        f"{prefix}messages",
        metadata,
        Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
        Column("queue", String(255), nullable=False),
        Column("visible_at", _INSTANT, nullable=False),
        Column("leases", Integer, nullable=False),
        Column("receipt", String(32), nullable=False),
        Column("headers", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        sqlite_autoincrement=True,  # a number is never used again, so an old receipt names nothing new
    )
    Index(f"{prefix}messages_next", messages.c.queue, messages.c.visible_at, messages.c.seq)
    Table(f"{prefix}queues", metadata, Column("name", String(255), primary_key=True))
    Table(
        f"{prefix}subscriptions",
        metadata,
        Column("event", String(255), primary_key=True),
        Column("queue", String(255), primary_key=True),
    )
    return metadata


SCHEMA = Schema(component="queue", version=1, tables=tables)
"""What `onceonly schema` makes for this transport."""


class Raw(FunctionElement[Any]):
    """A column as it is stored: SQLite keeps text in a column of bytes, and bytes that are no text in one of text."""

    inherit_cache = True


@compiles(Raw)
def _as_it_is(element: Raw, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(Raw, "sqlite")
def _as_bytes(element: Raw, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS BLOB)"


class Statements:
    """Every statement of the queue, each built once; the docstrings name their parameters."""

    def __init__(self, prefix: str) -> None:
        metadata = tables(prefix)
        self.messages = metadata.tables[f"{prefix}messages"]
        self.queues = metadata.tables[f"{prefix}queues"]
        self.subscriptions = metadata.tables[f"{prefix}subscriptions"]

    @cached_property
    def is_waiting(self) -> Select[Any]:
        """Look whether anything can be taken: `of` queue at `now`."""
        return self._ready().limit(1)

    @cached_property
    def take(self) -> ReturningUpdate[Any]:
        """Take at most `most` messages `of` a queue that are visible `now`, until `until`, for `by`."""
        columns = self.messages.c
        first = self._ready().order_by(columns.visible_at, columns.seq).limit(bindparam("most"))
        taken = update(self.messages).where(columns.seq.in_(first.with_for_update(skip_locked=True)))
        marks = {"visible_at": bindparam("until"), "receipt": bindparam("by"), "leases": columns.leases + 1}
        return taken.values(marks).returning(columns.seq, columns.leases, Raw(columns.headers), Raw(columns.body))

    @cached_property
    def settle(self) -> Delete:
        """Delete the messages `numbers` that `by` still holds."""
        return delete(self.messages).where(*self._held())

    @cached_property
    def give_back(self) -> Update:
        """Make the messages `numbers` that `by` still holds visible `now`, as if never taken."""
        return update(self.messages).where(*self._held()).values(visible_at=bindparam("now"), receipt="", leases=0)

    @cached_property
    def keep(self) -> Update:
        """Hold the messages `numbers` of `by` until `until`, unless their lease has ended `now`."""
        alive = self.messages.c.visible_at > bindparam("now")
        return update(self.messages).where(*self._held(), alive).values(visible_at=bindparam("until"))

    @cached_property
    def known(self) -> Select[Any]:
        """List which of the queues `names` are declared."""
        return select(self.queues.c.name).where(self.queues.c.name.in_(bindparam("names", expanding=True)))

    @cached_property
    def subscribed(self) -> Select[Any]:
        """List (event, queue) for the event types `names`."""
        columns = self.subscriptions.c
        return select(columns.event, columns.queue).where(columns.event.in_(bindparam("names", expanding=True)))

    @cached_property
    def depth(self) -> Select[Any]:
        """Count (declared, waiting, held, delayed) messages `of` a queue at `now`; looks only at what is not yet visible."""
        columns = self.messages.c
        now: BindParameter[int] = bindparam("now")
        here = columns.queue == bindparam("of")
        later = select(
            func.coalesce(func.sum(case((columns.leases > 0, 1), else_=0)), 0).label("held"),
            func.count().label("all"),
        ).where(here, columns.visible_at > now)
        soon = select(func.count()).select_from(self.messages).where(here, columns.visible_at <= now).scalar_subquery()
        declared = select(func.count()).select_from(self.queues).where(self.queues.c.name == bindparam("of")).scalar_subquery()
        rest = later.subquery()
        return select(declared, soon, rest.c.held, rest.c.all - rest.c.held)

    def _ready(self) -> Select[Any]:
        columns = self.messages.c
        return select(columns.seq).where(columns.queue == bindparam("of"), columns.visible_at <= bindparam("now"))

    def _held(self) -> tuple[Any, ...]:
        columns = self.messages.c
        return columns.seq.in_(bindparam("numbers", expanding=True)), columns.receipt == bindparam("by")
