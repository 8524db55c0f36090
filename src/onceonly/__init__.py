"""Message handlers whose effects happen exactly once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.config.deduplication import ControlMessages, DedupStore, History, Off, Shadow, Tokens
    from onceonly.config.retention import Journal
    from onceonly.config.worker import WorkerSettings
    from onceonly.endpoint import BatchContext, Context, Endpoint, EnlistedKey, Hosted, Outgoing, Transaction
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
    from onceonly.formats.identity import IdentityField, IdentityHeader
    from onceonly.formats.message_formats import CloudEvents, PlainJson
    from onceonly.model.destination import Exchange, Queue, Stream, Subject, Topic
    from onceonly.model.entities import Deleted
    from onceonly.model.hosted import HostedMessage, HostedOutcome
    from onceonly.model.message import Message
    from onceonly.model.remote import Peer, Response
    from onceonly.model.retry import Retry
    from onceonly.model.third_party import AtLeastOnce, IdempotencyKey
    from onceonly.model.wording import FOREVER

__all__ = [
    "FOREVER",
    "AtLeastOnce",
    "BatchContext",
    "CloudEvents",
    "CommitFailed",
    "ConflictError",
    "Context",
    "ControlMessages",
    "DedupStore",
    "Deleted",
    "Endpoint",
    "EnlistedKey",
    "Exchange",
    "History",
    "Hosted",
    "HostedMessage",
    "HostedOutcome",
    "IdempotencyKey",
    "IdentityField",
    "IdentityHeader",
    "Journal",
    "Message",
    "Off",
    "OnceOnlyError",
    "OutcomeUnknown",
    "Outgoing",
    "Peer",
    "PlainJson",
    "Queue",
    "Reject",
    "Response",
    "Retry",
    "RetryLater",
    "RetryableError",
    "SetupError",
    "Shadow",
    "Stream",
    "Subject",
    "Tokens",
    "Topic",
    "Transaction",
    "WorkerSettings",
    "entity",
    "message",
]

# Imported when they are first used: the command line and the parent of worker processes need few of them.
_MODULES = {
    "onceonly.config.deduplication": ("ControlMessages", "DedupStore", "History", "Off", "Shadow", "Tokens"),
    "onceonly.config.retention": ("Journal",),
    "onceonly.config.worker": ("WorkerSettings",),
    "onceonly.endpoint": ("BatchContext", "Context", "Endpoint", "EnlistedKey", "Hosted", "Outgoing", "Transaction"),
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
    "onceonly.formats.identity": ("IdentityField", "IdentityHeader"),
    "onceonly.formats.message_formats": ("CloudEvents", "PlainJson"),
    "onceonly.model.destination": ("Exchange", "Queue", "Stream", "Subject", "Topic"),
    "onceonly.model.entities": ("Deleted",),
    "onceonly.model.hosted": ("HostedMessage", "HostedOutcome"),
    "onceonly.model.message": ("Message",),
    "onceonly.model.remote": ("Peer", "Response"),
    "onceonly.model.retry": ("Retry",),
    "onceonly.model.third_party": ("AtLeastOnce", "IdempotencyKey"),
    "onceonly.model.wording": ("FOREVER",),
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
