"""Types of arguments and results of the other public names, for annotations. The library creates the objects.

Names are imported when they are first used. `Session` needs SQLAlchemy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.config.deduplication import Deduplication
    from onceonly.config.destinations import EventRule
    from onceonly.config.endpoint import Lifespan
    from onceonly.documents.projections import ProjectedValue
    from onceonly.endpoint.blobs import Blobs
    from onceonly.endpoint.documents import ContextDocuments, DocumentKey
    from onceonly.endpoint.http_app import HttpApp, Principal
    from onceonly.endpoint.message_builder import Delay, Expiry, OutsideSendOptions, SendOptions
    from onceonly.endpoint.middleware import CallNext
    from onceonly.endpoint.projections import HandlerProjection, Projections
    from onceonly.endpoint.requests import Requests
    from onceonly.formats.cloudevents import Event
    from onceonly.formats.identity import IdentityRule
    from onceonly.formats.message_formats import MessageFormat, MessageParts, WrittenMessage
    from onceonly.model.destination import Destination
    from onceonly.model.identity import Identity
    from onceonly.model.maintenance_journal import MaintenanceReport
    from onceonly.model.message import Headers
    from onceonly.model.remote import PeerHeaders
    from onceonly.model.third_party import ApiCall, HttpMethod, PeerLookup, PeerStyle
    from onceonly.runtime.background import Background
    from onceonly.sql.store.transactions import Session

__all__ = [
    "ApiCall",
    "Background",
    "Blobs",
    "CallNext",
    "ContextDocuments",
    "Deduplication",
    "Delay",
    "Destination",
    "DocumentKey",
    "Event",
    "EventRule",
    "Expiry",
    "HandlerProjection",
    "Headers",
    "HttpApp",
    "HttpMethod",
    "Identity",
    "IdentityRule",
    "Lifespan",
    "MaintenanceReport",
    "MessageFormat",
    "MessageParts",
    "OutsideSendOptions",
    "PeerHeaders",
    "PeerLookup",
    "PeerStyle",
    "Principal",
    "ProjectedValue",
    "Projections",
    "Requests",
    "SendOptions",
    "Session",
    "WrittenMessage",
]

_HOME = {
    "ApiCall": "onceonly.model.third_party",
    "Background": "onceonly.runtime.background",
    "Blobs": "onceonly.endpoint.blobs",
    "CallNext": "onceonly.endpoint.middleware",
    "ContextDocuments": "onceonly.endpoint.documents",
    "Deduplication": "onceonly.config.deduplication",
    "Delay": "onceonly.endpoint.message_builder",
    "Destination": "onceonly.model.destination",
    "DocumentKey": "onceonly.endpoint.documents",
    "Event": "onceonly.formats.cloudevents",
    "EventRule": "onceonly.config.destinations",
    "Expiry": "onceonly.endpoint.message_builder",
    "HandlerProjection": "onceonly.endpoint.projections",
    "Headers": "onceonly.model.message",
    "HttpApp": "onceonly.endpoint.http_app",
    "HttpMethod": "onceonly.model.third_party",
    "Identity": "onceonly.model.identity",
    "IdentityRule": "onceonly.formats.identity",
    "Lifespan": "onceonly.config.endpoint",
    "MaintenanceReport": "onceonly.model.maintenance_journal",
    "MessageFormat": "onceonly.formats.message_formats",
    "MessageParts": "onceonly.formats.message_formats",
    "OutsideSendOptions": "onceonly.endpoint.message_builder",
    "PeerHeaders": "onceonly.model.remote",
    "PeerLookup": "onceonly.model.third_party",
    "PeerStyle": "onceonly.model.third_party",
    "Principal": "onceonly.endpoint.http_app",
    "ProjectedValue": "onceonly.documents.projections",
    "Projections": "onceonly.endpoint.projections",
    "Requests": "onceonly.endpoint.requests",
    "SendOptions": "onceonly.endpoint.message_builder",
    "Session": "onceonly.sql.store.transactions",
    "WrittenMessage": "onceonly.formats.message_formats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
