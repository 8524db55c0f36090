"""For how long the message journals of a database keep events: the longest time that any of them has promised.

All endpoints of a database share the tables, so all have to change tables at the same time. Each setting in use has a row. It
counts until the events that were written under it are old enough, also when no process uses it any more.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import Column, Connection, MetaData, Table, bindparam, delete, select, update

from onceonly.config.retention import LONGEST_KEPT, SHORTEST_KEPT
from onceonly.formats.log_events import EventLogger
from onceonly.formats.undecodable import report_undecodable
from onceonly.model.wording import in_words
from onceonly.sql.columns import INSTANT, NAME, TRANSACTIONAL
from onceonly.sql.database import Database

ANNOUNCEMENTS = 8
"""A process announces its setting again when this part of the time to keep is over."""

_SHORTEST, _LONGEST = (each // timedelta(milliseconds=1) for each in (SHORTEST_KEPT, LONGEST_KEPT))
_log = EventLogger(logging.getLogger("onceonly.journal"))


class Promise(NamedTuple):
    """The setting of an endpoint, in milliseconds, and when a process last announced it."""

    endpoint: str
    keep: int
    seen: int

    def counts(self, now: int) -> bool:
        """Return whether there may be events that have to be kept for it. Half of the time is to spare."""
        return self.seen + self.keep + self.keep // 2 >= now


def settings_table(prefix: str, metadata: MetaData) -> Table:
    return Table(
        f"{prefix}journal_settings",
        metadata,
        Column("endpoint", NAME, primary_key=True),
        Column("keep", INSTANT, primary_key=True, autoincrement=False),
        Column("seen", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )


def _is_setting(endpoint: object, keep: object, seen: object) -> bool:
    """Return whether a process can have written it. SQLite stores a value of any type in any column."""
    is_one = isinstance(endpoint, str) and isinstance(keep, int) and isinstance(seen, int) and _SHORTEST <= keep <= _LONGEST
    if not is_one:
        error = ValueError(f"keep is {keep!r:.40}, seen is {seen!r:.40}")
        report_undecodable("journal setting", endpoint, error, "ignored: delete the row")
    return is_one


class AgreedRetention:
    """The longest time to keep of all endpoints, as far as this process has read it. Begins with its own endpoint's."""

    def __init__(self, database: Database, table: Table, endpoint: str, keep: int) -> None:
        self._database, self._table = database, table
        self._endpoint, self._keep = endpoint, keep
        self._warned = self.longest = keep

    async def agree(self, now: int) -> None:
        """Announce the own setting if that is due, forget those that are over, and follow the others. Raises CommitFailed."""
        async with self._database.reading() as connection:
            promises = await connection.run_sync(self.read)
        own = next((each for each in promises if each[:2] == (self._endpoint, self._keep)), None)
        is_due = own is None or now - own.seen > self._keep // ANNOUNCEMENTS
        over = [each for each in promises if not each.counts(now) and each is not own]
        if is_due or over:
            async with self._database.writing() as connection:
                await connection.run_sync(self._write, now, over)
        self.follow(promises, now)

    def read(self, connection: Connection) -> tuple[Promise, ...]:
        """Read all settings. One that no process can have written is logged, and does not count."""
        table = self._table.c
        rows = connection.execute(select(table.endpoint, table.keep, table.seen))
        return tuple(Promise(*row) for row in rows if _is_setting(*row))

    def follow(self, promises: Sequence[Promise], now: int) -> None:
        """Take the longest one that counts, and warn if it is not the own one."""
        longest = max((each for each in promises if each.counts(now)), key=lambda each: each.keep, default=None)
        self.longest = max(self._keep, longest.keep if longest is not None else 0)
        if longest is not None and self.longest not in (self._keep, self._warned):
            _log.warning(
                "message journal keeps events for longer than this endpoint asks for",
                extra={
                    "endpoint": self._endpoint,
                    "keep": in_words(self._keep / 1000),
                    "longest": in_words(self.longest / 1000),
                    "other": longest.endpoint,
                },
            )
        self._warned = self.longest

    def _write(self, connection: Connection, now: int, over: Sequence[Promise]) -> None:
        own, table = self._table.c, self._table
        row = {"endpoint": self._endpoint, "keep": self._keep, "seen": now}
        if not self._database.dialect.insert_absent(connection, table, [row], key=["endpoint", "keep"]):
            changed = update(table).where(own.endpoint == bindparam("name"), own.keep == bindparam("time"))
            connection.execute(changed.values(seen=now), {"name": self._endpoint, "time": self._keep})
        for each in over:
            seen_then = own.seen == each.seen  # not if it was announced again
            connection.execute(delete(table).where(own.endpoint == each.endpoint, own.keep == each.keep, seen_then))
