"""Message handlers whose effects happen exactly once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.config.deduplication import ControlMessages, DedupStore, History, Off, Tokens
    from onceonly.config.journal import Journal
    from onceonly.config.worker import WorkerSettings
    from onceonly.endpoint import BatchContext, Context, Endpoint, Outgoing, Transaction
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

__all__ = [
    "BatchContext",
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

# Imported when they are first used: the command line and the parent of worker processes need few of them.
_MODULES = {
    "onceonly.config.deduplication": ("ControlMessages", "DedupStore", "History", "Off", "Tokens"),
    "onceonly.config.journal": ("Journal",),
    "onceonly.config.worker": ("WorkerSettings",),
    "onceonly.endpoint": ("BatchContext", "Context", "Endpoint", "Outgoing", "Transaction"),
    "onceonly.errors": (
        "CommitFailed",
        "ConflictError",
        "OnceOnlyError",
        "OutcomeUnknown",
        "Reject",
        "RetryableError",
        "RetryLater",
        "SetupError",
    ),
    "onceonly.formats.bodies": ("message",),
    "onceonly.formats.entities": ("entity",),
    "onceonly.formats.identity": ("Field", "Header"),
    "onceonly.model.entities": ("Deleted",),
    "onceonly.model.message": ("Message",),
    "onceonly.model.peer": ("Peer",),
    "onceonly.model.remote": ("Response",),
    "onceonly.model.retry": ("Retry",),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":  # a public module, which `import onceonly` alone makes available
        return import_module("onceonly.errors")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
