"""Message handlers whose effects happen exactly once."""

from typing import TYPE_CHECKING, Any

from onceonly.config.deduplication import ControlMessages, DedupStore, History, Off, Tokens
from onceonly.config.journal import Journal
from onceonly.config.worker import WorkerSettings
from onceonly.endpoint import Context, Endpoint
from onceonly.errors import (
    CommitFailed,
    ConflictError,
    OnceOnlyError,
    OutcomeUnknown,
    Reject,
    RetryableError,
    RetryLater,
    SetupError,
)
from onceonly.formats.bodies import message
from onceonly.formats.entities import entity
from onceonly.formats.identity import Field, Header
from onceonly.model.entities import Deleted
from onceonly.model.message import Message
from onceonly.model.peer import Peer
from onceonly.model.remote import Response
from onceonly.model.retry import Retry

if TYPE_CHECKING:
    from onceonly.endpoint import Outgoing, Transaction

__all__ = [
    "CommitFailed",
    "ConflictError",
    "Context",
    "ControlMessages",
    "DedupStore",
    "Deleted",
    "Endpoint",
    "Field",
    "Header",
    "History",
    "Journal",
    "Message",
    "Off",
    "OnceOnlyError",
    "OutcomeUnknown",
    "Outgoing",
    "Peer",
    "Reject",
    "Response",
    "Retry",
    "RetryLater",
    "RetryableError",
    "SetupError",
    "Tokens",
    "Transaction",
    "WorkerSettings",
    "entity",
    "message",
]


def __getattr__(name: str) -> Any:
    if name not in {"Outgoing", "Transaction"}:  # imported when they are asked for: nobody needs them to define an endpoint
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onceonly import endpoint  # noqa: PLC0415 - see above

    return getattr(endpoint, name)
