"""The store, its register and tokens, the dead letters and documents in a SQL database."""

from onceonly.stores.sql.dead_letters import SqlDeadLetters
from onceonly.stores.sql.documents import SCHEMA as DOCUMENTS_SCHEMA
from onceonly.stores.sql.documents import SqlDocuments
from onceonly.stores.sql.keeping import Keeping
from onceonly.stores.sql.register import SqlRegister
from onceonly.stores.sql.store import SqlStore
from onceonly.stores.sql.tables import SCHEMA
from onceonly.stores.sql.tokens import SqlTokens

__all__ = [
    "DOCUMENTS_SCHEMA",
    "SCHEMA",
    "Keeping",
    "SqlDeadLetters",
    "SqlDocuments",
    "SqlRegister",
    "SqlStore",
    "SqlTokens",
]
