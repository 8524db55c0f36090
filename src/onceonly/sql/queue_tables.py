"""The tables of the queue inside a SQL database, and every statement it runs.

`visible_at` is all there is to leases and delays: a message is invisible before that instant, by the clock of the database.
`leases` counts how often it was taken since its last release, so a second one means that a lease ended. `receipt`
names who took it last.
"""

from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Delete,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Update,
    bindparam,
    case,
    delete,
    func,
    select,
    update,
)

from onceonly.sql.columns import DATA, INSTANT, LONG, NAME, SEQUENCE, TRANSACTIONAL
from onceonly.sql.database import Database
from onceonly.sql.database_clock import StatementNow
from onceonly.sql.dialect import QueueTaking
from onceonly.sql.schema import Schema

MOST_LEASES = 1_000_000
"""Leases are counted up to here. A row that another program wrote may have a number that cannot be increased."""


def tables(prefix: str, schema: str | None = None) -> MetaData:
    """Return the tables, named with this prefix, in a schema of the database."""
    metadata = MetaData(schema=schema)
    messages = Table(
        f"{prefix}messages",
        metadata,
        Column("seq", SEQUENCE, primary_key=True, autoincrement=True),
        Column("queue", NAME, nullable=False),
        Column("visible_at", INSTANT, nullable=False),
        Column("leases", Integer, nullable=False),
        Column("receipt", String(32), nullable=False),
        Column("headers", LONG, nullable=False),
        Column("body", DATA, nullable=False),
        sqlite_autoincrement=True,  # a number is never used again, so an old receipt names nothing new
        **TRANSACTIONAL,
    )
    Index(f"{prefix}messages_next", messages.c.queue, messages.c.visible_at, messages.c.seq)
    Table(f"{prefix}queues", metadata, Column("name", NAME, primary_key=True), **TRANSACTIONAL)
    Table(
        f"{prefix}subscriptions",
        metadata,
        Column("event", NAME, primary_key=True),
        Column("queue", NAME, primary_key=True),
        **TRANSACTIONAL,
    )
    return metadata


_LOSSES = {
    "messages": "messages that waited are lost",
    "subscriptions": "events do not reach a subscriber until it has started again",
}
SCHEMA = Schema(component="queue", version=1, tables=tables, losses=_LOSSES)
"""What `onceonly schema` makes for this transport."""


class Statements:
    """Every statement of the queue, each built once; the docstrings name their parameters.

    "Now" is the database's own clock, unless a test `moves_time`: then it is a parameter, `now`.
    """

    def __init__(self, database: Database, *, moves_time: bool = False) -> None:
        self._now: ColumnElement[int] = bindparam("now", type_=BigInteger()) if moves_time else StatementNow()
        self._dialect = database.dialect
        named = {table.name: table for table in tables(database.prefix, database.schema).sorted_tables}
        self.messages = named[f"{database.prefix}messages"]
        self.queues = named[f"{database.prefix}queues"]
        self.subscriptions = named[f"{database.prefix}subscriptions"]

    @cached_property
    def is_waiting(self) -> Select[Any]:
        return self._ready().limit(1)

    @cached_property
    def next_due(self) -> Select[Any]:
        """Return in how many milliseconds the next message `of` a queue becomes visible that is not; None for none."""
        columns = self.messages.c
        first = select(func.min(columns.visible_at)).where(columns.queue == bindparam("of"), columns.visible_at > self._now)
        return select(first.scalar_subquery() - self._now)

    @cached_property
    def take(self) -> QueueTaking:
        """Take at most `most` messages `of` a queue that are visible now, for `lease` milliseconds, for `by`."""
        columns = self.messages.c
        first = self._ready().order_by(columns.visible_at, columns.seq).limit(bindparam("most"))
        marks = {
            "visible_at": self._now + bindparam("lease", type_=BigInteger()),
            "receipt": bindparam("by"),
            "leases": case((columns.leases.between(0, MOST_LEASES), columns.leases + 1), else_=2),
        }
        return self._dialect.take(self.messages, first, marks, ("seq", "leases", "headers", "body"))

    @cached_property
    def settle(self) -> Delete:
        return delete(self.messages).where(*self._held())

    @cached_property
    def give_back(self) -> Update:
        """Make the messages `numbers` that `by` still holds visible now, as if never taken."""
        return update(self.messages).where(*self._held()).values(visible_at=self._now, receipt="", leases=0)

    @cached_property
    def keep(self) -> Update:
        """Hold the messages `numbers` of `by` for `lease` milliseconds from now, unless their lease has ended."""
        alive = self.messages.c.visible_at > self._now
        until = self._now + bindparam("lease", type_=BigInteger())
        return update(self.messages).where(*self._held(), alive).values(visible_at=until)

    @cached_property
    def known(self) -> Select[Any]:
        """List (queue, now) for those of the queues `names` that are declared."""
        return select(self.queues.c.name, self._now).where(self._dialect.among(self.queues.c.name, "names"))

    @cached_property
    def subscribed(self) -> Select[Any]:
        columns = self.subscriptions.c
        return select(columns.event, columns.queue, self._now).where(self._dialect.among(columns.event, "names"))

    @cached_property
    def unsubscribe(self) -> Delete:
        columns = self.subscriptions.c
        return delete(self.subscriptions).where(columns.event == bindparam("type"), columns.queue == bindparam("of"))

    @cached_property
    def depth(self) -> Select[Any]:
        """Count (declared, waiting, held, delayed) messages `of` a queue; looks only at what is not yet visible."""
        columns = self.messages.c
        now = self._now
        here = columns.queue == bindparam("of")
        later = select(
            func.coalesce(func.sum(case((columns.leases > 0, 1), else_=0)), 0).label("held"),
            func.count().label("all"),
        ).where(here, columns.visible_at > now)
        soon = select(func.count()).select_from(self.messages).where(here, columns.visible_at <= now).scalar_subquery()
        declared = select(func.count()).select_from(self.queues).where(self.queues.c.name == bindparam("of")).scalar_subquery()
        rest = later.subquery()
        return select(declared, soon, rest.c.held, rest.c.all - rest.c.held)

    @cached_property
    def sample(self) -> Select[Any]:
        """Count (declared, waiting, held, later) `of` a queue, each number up to `most`, and give now and its first instant.

        They are counted in the order of the index, so that nothing of other queues is read, whatever the statistics say.
        """
        columns = self.messages.c
        now, most = self._now, bindparam("most", type_=Integer())
        here = columns.queue == bindparam("of")
        soon = select(columns.seq).where(here, columns.visible_at <= now).order_by(columns.visible_at).limit(most).subquery()
        later = select(columns.leases).where(here, columns.visible_at > now).order_by(columns.visible_at).limit(most).subquery()
        held = select(func.coalesce(func.sum(case((later.c.leases > 0, 1), else_=0)), 0)).scalar_subquery()
        first = select(func.min(columns.visible_at)).where(here).scalar_subquery()
        declared = select(func.count()).select_from(self.queues).where(self.queues.c.name == bindparam("of")).scalar_subquery()
        return select(
            declared,
            select(func.count()).select_from(soon).scalar_subquery(),
            held,
            select(func.count()).select_from(later).scalar_subquery(),
            now,
            first,
        )

    def _ready(self) -> Select[Any]:
        columns = self.messages.c
        return select(columns.seq).where(columns.queue == bindparam("of"), columns.visible_at <= self._now)

    def _held(self) -> tuple[Any, ...]:
        columns = self.messages.c
        return self._dialect.among(columns.seq, "numbers"), columns.receipt == bindparam("by")
