"""The store, what it is asked by other services, its register and tokens, the dead letters and documents in a SQL database."""

from onceonly.stores.sql.calls import SCHEMA as HTTP_SCHEMA
from onceonly.stores.sql.calls import SqlCalls
from onceonly.stores.sql.dead_letters import SqlDeadLetters
from onceonly.stores.sql.documents import SCHEMA as DOCUMENTS_SCHEMA
from onceonly.stores.sql.documents import SqlDocuments
from onceonly.stores.sql.keeping import Keeping
from onceonly.stores.sql.register import SqlRegister
from onceonly.stores.sql.ring import SqlRing
from onceonly.stores.sql.starts import SqlStarts
from onceonly.stores.sql.store import SqlStore
from onceonly.stores.sql.tables import SCHEMA
from onceonly.stores.sql.tokens import SqlTokens
from onceonly.stores.sql.transactions import SqlTransactions
from onceonly.stores.sql.upkeep import SqlJournals, SqlKeys

__all__ = [
    "DOCUMENTS_SCHEMA",
    "HTTP_SCHEMA",
    "SCHEMA",
    "Keeping",
    "SqlCalls",
    "SqlDeadLetters",
    "SqlDocuments",
    "SqlJournals",
    "SqlKeys",
    "SqlRegister",
    "SqlRing",
    "SqlStarts",
    "SqlStore",
    "SqlTokens",
    "SqlTransactions",
]
