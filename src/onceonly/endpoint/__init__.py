"""What users touch: an endpoint, its handlers and what is injected into them; implements the Handlers port."""

from typing import TYPE_CHECKING, Any

from onceonly.endpoint.context import Context
from onceonly.endpoint.endpoint import Endpoint
from onceonly.formats.bodies import message

if TYPE_CHECKING:
    from onceonly.endpoint.batch import BatchContext
    from onceonly.endpoint.enlisted_key import EnlistedKey
    from onceonly.endpoint.hosted import Hosted
    from onceonly.endpoint.sender import Outgoing
    from onceonly.endpoint.transactions import Transaction

__all__ = ["BatchContext", "Context", "Endpoint", "EnlistedKey", "Hosted", "Outgoing", "Transaction", "message"]

_LATER = {
    "BatchContext": "batch",
    "EnlistedKey": "enlisted_key",
    "Hosted": "hosted",
    "Outgoing": "sender",
    "Transaction": "transactions",
}
"""Imported on first use. No definition of an endpoint needs it."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"onceonly.endpoint.{_LATER[name]}"), name)
