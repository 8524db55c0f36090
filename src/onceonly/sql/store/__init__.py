"""The store, requests of other services, its register and tokens, the dead letters and documents in a SQL database."""

from onceonly.config.deduplication import ClaimMode
from onceonly.sql.store.actions import SqlActionLog
from onceonly.sql.store.attempts import SqlAttempts
from onceonly.sql.store.dead_letters import SqlDeadLetters
from onceonly.sql.store.documents import SCHEMA as DOCUMENTS_SCHEMA
from onceonly.sql.store.documents import SqlDocuments
from onceonly.sql.store.journals import SqlJournals, SqlKeys
from onceonly.sql.store.lookup import SqlLookup
from onceonly.sql.store.message_journal import SCHEMA as JOURNAL_SCHEMA
from onceonly.sql.store.message_journal import SqlMessageJournal
from onceonly.sql.store.register import SqlRegister
from onceonly.sql.store.remote_requests import SCHEMA as HTTP_SCHEMA
from onceonly.sql.store.remote_requests import SqlRemoteRequests
from onceonly.sql.store.reports import SqlEventCounts, SqlPresence
from onceonly.sql.store.retention import SqlRetention
from onceonly.sql.store.ring import SqlRing
from onceonly.sql.store.run_markers import AbandonedRunMarkers, SqlRunMarkers
from onceonly.sql.store.store import SqlStore
from onceonly.sql.store.tables import SCHEMA
from onceonly.sql.store.tokens import SqlTokens
from onceonly.sql.store.transactions import SqlTransactions

__all__ = [
    "DOCUMENTS_SCHEMA",
    "HTTP_SCHEMA",
    "JOURNAL_SCHEMA",
    "SCHEMA",
    "AbandonedRunMarkers",
    "ClaimMode",
    "SqlActionLog",
    "SqlAttempts",
    "SqlDeadLetters",
    "SqlDocuments",
    "SqlEventCounts",
    "SqlJournals",
    "SqlKeys",
    "SqlLookup",
    "SqlMessageJournal",
    "SqlPresence",
    "SqlRegister",
    "SqlRemoteRequests",
    "SqlRetention",
    "SqlRing",
    "SqlRunMarkers",
    "SqlStore",
    "SqlTokens",
    "SqlTransactions",
]
