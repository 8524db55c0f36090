"""Types of arguments and results of the other public names, for annotations. The library creates the objects.

Names are imported when they are first used. `Session` needs SQLAlchemy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.config.deduplication import Deduplication
    from onceonly.endpoint.blobs import Blobs
    from onceonly.endpoint.endpoint import Lifespan
    from onceonly.endpoint.http_app import HttpApp, Principal
    from onceonly.endpoint.message_builder import Delay, Expiry
    from onceonly.endpoint.middleware import CallNext
    from onceonly.endpoint.requests import Requests
    from onceonly.formats.cloudevents import Event
    from onceonly.formats.identity import IdentityRule
    from onceonly.model.identity import Identity
    from onceonly.model.message import Headers
    from onceonly.model.peer import PeerHeaders
    from onceonly.runtime.background import Background
    from onceonly.sql.store.transactions import Session

__all__ = [
    "Background",
    "Blobs",
    "CallNext",
    "Deduplication",
    "Delay",
    "Event",
    "Expiry",
    "Headers",
    "HttpApp",
    "Identity",
    "IdentityRule",
    "Lifespan",
    "PeerHeaders",
    "Principal",
    "Requests",
    "Session",
]

_HOME = {
    "Background": "onceonly.runtime.background",
    "Blobs": "onceonly.endpoint.blobs",
    "CallNext": "onceonly.endpoint.middleware",
    "Deduplication": "onceonly.config.deduplication",
    "Delay": "onceonly.endpoint.message_builder",
    "Event": "onceonly.formats.cloudevents",
    "Expiry": "onceonly.endpoint.message_builder",
    "Headers": "onceonly.model.message",
    "HttpApp": "onceonly.endpoint.http_app",
    "Identity": "onceonly.model.identity",
    "IdentityRule": "onceonly.formats.identity",
    "Lifespan": "onceonly.endpoint.endpoint",
    "PeerHeaders": "onceonly.model.peer",
    "Principal": "onceonly.endpoint.http_app",
    "Requests": "onceonly.endpoint.requests",
    "Session": "onceonly.sql.store.transactions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
