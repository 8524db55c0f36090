"""The store and the dead letters in a SQL database."""

from onceonly.stores.sql.dead_letters import SqlDeadLetters
from onceonly.stores.sql.store import SqlStore
from onceonly.stores.sql.tables import SCHEMA

__all__ = ["SCHEMA", "SqlDeadLetters", "SqlStore"]
