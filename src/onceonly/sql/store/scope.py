"""Where a store reads and writes, and for whom."""

from typing import TYPE_CHECKING, NamedTuple

from onceonly.config.deduplication import ClaimMode
from onceonly.model.identity import Identity
from onceonly.model.ring import Bucketing
from onceonly.ports.environment import Clock
from onceonly.sql.database import Database
from onceonly.sql.store.tables import Tables

if TYPE_CHECKING:
    from onceonly.sql.store.message_journal import SqlMessageJournal


class StoreScope(NamedTuple):
    """A database and the tables in it, the endpoint that works there, and what is kept.

    `bucketing` is how time is cut, None until that is known: no message with an instant may be claimed before. `clock` decides
    what is forgotten instead of the database's own, if there is one. `outside` are messages that one unit claims without their
    instant: their buckets would refuse them, and a person has sent them back. `journal` is there if the endpoint has one.
    """

    database: Database
    tables: Tables
    endpoint: str
    claim_mode: ClaimMode
    bucketing: Bucketing | None = None
    clock: Clock | None = None
    outside: frozenset[Identity] = frozenset()
    journal: "SqlMessageJournal | None" = None
