"""How relays share the records that wait: each takes some, and the others pass over them for a while.

A record is found by what it is: old, and taken by nobody within the lease. Rows that another relay is taking at this moment are
skipped and not waited for, and the transaction ends before anything is sent: sends may take long, and an open transaction would
keep the database from cleaning up. So a mark is all that is left. It is a courtesy: who ignores it sends the same ids again.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, not_, or_, select

from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.database_clock import StatementNow
from onceonly.sql.store.scope import StoreScope
from onceonly.sql.store.statements import record_in

_BEFORE_ALL = bytes(16)  # no key is zero


class RecordTaking:
    """Takes the records of one endpoint in the order of their keys: so the primary key finds a page, and nothing is sorted."""

    def __init__(self, scope: StoreScope) -> None:
        """Build the statements."""
        records = scope.tables.records
        self._now: ColumnElement[int] = StatementNow() if scope.clock is None else bindparam("now", type_=BigInteger())
        first = select(records.c.key).where(*self._conditions(records.c)).order_by(records.c.key).limit(bindparam("most"))
        self._scope = scope
        self._look = first
        self._take = scope.database.dialect.take(records, first, {"taken_at": self._now}, ("key",))
        taken = select(records.c.source, records.c.id, records.c.effects).order_by(records.c.key)
        self._read = taken.where(scope.database.dialect.among(records.c.key, "keys"))

    def asked(self, older_than: int, limit: int, *, lease: int, after: Identity | None) -> dict[str, Any]:
        """Give the parameters. A mark further ahead than a lease was made by a wrong clock, and counts for nothing.

        Marks follow the database's clock: those of the relays may differ.
        """
        clock = self._scope.clock
        return {
            "of": self._scope.endpoint,
            "behind": _BEFORE_ALL if after is None else claim_key(self._scope.endpoint, after),
            "than": older_than,
            "lease": lease,
            "most": limit,
            **({} if clock is None else {"now": clock.now()}),
        }

    def is_waiting(self, connection: Connection, asked: Mapping[str, Any]) -> bool:
        """Tell whether there is anything to take."""
        return connection.execute(self._look, {**asked, "most": 1}).first() is not None

    def take(self, connection: Connection, asked: Mapping[str, Any]) -> tuple[Record, ...]:
        """Take, in a writing transaction, and read what was taken."""
        keys = [key for (key,) in self._take(connection, asked)]
        rows = connection.execute(self._read, {"keys": keys}) if keys else ()
        return tuple(record_in(row) for row in rows)

    def _conditions(self, records: Any) -> tuple[ColumnElement[bool], ...]:
        lease = bindparam("lease", type_=BigInteger())
        is_leased = (records.taken_at > self._now - lease) & (records.taken_at < self._now + lease)
        return (
            records.endpoint == bindparam("of"),
            records.key > bindparam("behind"),
            records.stored_at < bindparam("than"),
            or_(records.taken_at.is_(None), not_(is_leased)),
        )
