"""How relays share the records that wait: each takes some, and the others pass over them for a while.

A record is found by its state: old, and not taken by a relay within the lease. Rows that another relay is taking at this
moment are skipped and not waited for, and the transaction ends before anything is sent: sends may take long, and an open
transaction would keep the database from cleaning up. So a mark is all that is left. It is a courtesy: who ignores it sends
the same ids again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, not_, or_, select

from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.database_clock import StatementNow
from onceonly.sql.store.statements import StoreScope, readable_records

FEW = 1000
"""Old records of an endpoint that are found by the index on their age, and sorted here. More are read by the primary key."""

_BEFORE_ALL = bytes(16)  # no key is zero


class RecordLeases:
    """Takes the records of one endpoint in the order of their keys.

    The index on (endpoint, stored_at) answers whether any are old, without a look at records of other endpoints. A backlog of
    more than `FEW` is read page by page in the order of the primary key: nothing is sorted then.
    """

    def __init__(self, scope: StoreScope) -> None:
        records, dialect = scope.tables.records, scope.database.dialect
        self._now: ColumnElement[int] = StatementNow() if scope.clock is None else bindparam("now", type_=BigInteger())
        old = select(records.c.key).where(*self._conditions(records.c))
        few = select(records.c.key).where(dialect.among(records.c.key, "keys"), self._is_free(records.c))
        page = old.where(records.c.key > bindparam("behind")).order_by(records.c.key).limit(bindparam("most"))
        marks = {"taken_at": self._now}
        self._scope = scope
        self._old = old.order_by(records.c.stored_at).limit(FEW + 1)
        self._take_few = dialect.take(records, few, marks, ("key",))
        self._take_page = dialect.take(records, page, marks, ("key",))
        taken = select(records.c.source, records.c.id, records.c.effects).order_by(records.c.key)
        self._read = taken.where(dialect.among(records.c.key, "keys"))

    def asked(self, older_than: int, limit: int, *, lease: int, after: Identity | None) -> dict[str, Any]:
        """Return the parameters. A mark further ahead than a lease was made by a wrong clock, and counts for nothing.

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
        found = self._find(connection, asked)
        return found is None or bool(found)

    def take(self, connection: Connection, asked: Mapping[str, Any]) -> tuple[Record, ...]:
        """Take, in a writing transaction, and read what was taken."""
        found = self._find(connection, asked)
        if found is None:
            keys = [key for (key,) in self._take_page(connection, asked)]
        else:
            keys = self._take_each(connection, asked, found)
        rows = connection.execute(self._read, {"keys": keys}) if keys else ()
        return readable_records(rows)

    def _take_each(self, connection: Connection, asked: Mapping[str, Any], found: Sequence[bytes]) -> list[bytes]:
        """Take a page of these; where other relays are taking some at this moment, the page gets others."""
        taken: list[bytes] = []
        while found and (room := asked["most"] - len(taken)) > 0:
            taken += [key for (key,) in self._take_few(connection, {**asked, "keys": found[:room]})]
            found = found[room:]
        return taken

    def _find(self, connection: Connection, asked: Mapping[str, Any]) -> Sequence[bytes] | None:
        """Return the keys of what may be taken in their order; None when there are too many old records to sort."""
        keys = connection.scalars(self._old, dict(asked)).all()
        if len(keys) > FEW:
            return None
        return sorted(key for key in keys if key > asked["behind"])

    def _conditions(self, records: Any) -> tuple[ColumnElement[bool], ...]:
        return records.endpoint == bindparam("of"), records.stored_at < bindparam("than"), self._is_free(records)

    def _is_free(self, records: Any) -> ColumnElement[bool]:
        lease = bindparam("lease", type_=BigInteger())
        is_leased = (records.taken_at > self._now - lease) & (records.taken_at < self._now + lease)
        return or_(records.taken_at.is_(None), not_(is_leased))
