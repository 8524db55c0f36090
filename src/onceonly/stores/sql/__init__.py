"""The store, the dead letters and documents in a SQL database."""

from onceonly.stores.sql.dead_letters import SqlDeadLetters
from onceonly.stores.sql.documents import SCHEMA as DOCUMENTS_SCHEMA
from onceonly.stores.sql.documents import SqlDocuments
from onceonly.stores.sql.store import SqlStore
from onceonly.stores.sql.tables import SCHEMA

__all__ = ["DOCUMENTS_SCHEMA", "SCHEMA", "SqlDeadLetters", "SqlDocuments", "SqlStore"]
