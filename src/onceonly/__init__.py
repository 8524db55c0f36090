"""Message handlers whose effects happen exactly once."""

from onceonly.endpoint import Context, Endpoint, Outgoing
from onceonly.model.entities import Deleted
from onceonly.model.errors import (
    CommitRefused,
    Conflict,
    DriverMissing,
    Failed,
    InvalidEffect,
    InvalidHandler,
    OnceOnlyError,
    QueueMissing,
    Reject,
    RetryLater,
    SchemaMissing,
    SchemaTooNew,
    SetupError,
    TryAgain,
    Unknown,
)
from onceonly.model.message import Message
from onceonly.model.retry import Retry
from onceonly.model.settings import DedupStore, History, Off, Tokens
from onceonly.runtime.settings import WorkerSettings
from onceonly.serialization.bodies import message
from onceonly.serialization.entities import entity
from onceonly.serialization.identity import Field, Header

__all__ = [
    "CommitRefused",
    "Conflict",
    "Context",
    "DedupStore",
    "Deleted",
    "DriverMissing",
    "Endpoint",
    "Failed",
    "Field",
    "Header",
    "History",
    "InvalidEffect",
    "InvalidHandler",
    "Message",
    "Off",
    "OnceOnlyError",
    "Outgoing",
    "QueueMissing",
    "Reject",
    "Retry",
    "RetryLater",
    "SchemaMissing",
    "SchemaTooNew",
    "SetupError",
    "Tokens",
    "TryAgain",
    "Unknown",
    "WorkerSettings",
    "entity",
    "message",
]
