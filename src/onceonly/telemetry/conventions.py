"""Names by the semantic conventions for messaging, version 1.44.0: systems, operations, destinations and attributes."""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from onceonly.config.location import system_of_scheme
from onceonly.model.destination import is_destination
from onceonly.model.message import Message
from onceonly.runtime.observe.telemetry import TelemetrySubject

Attributes = dict[str, str | int]

OPERATION, TYPE, DESTINATION = "messaging.operation.name", "messaging.operation.type", "messaging.destination.name"
MESSAGE_ID, CONVERSATION = "messaging.message.id", "messaging.message.conversation_id"
BODY_SIZE, COUNT = "messaging.message.body.size", "messaging.batch.message_count"
EVENT_SOURCE, EVENT_TYPE = "cloudevents.event_source", "cloudevents.event_type"
ERROR = "error.type"
ENDPOINT, OUTCOME, ATTEMPT = "onceonly.endpoint", "onceonly.outcome", "onceonly.attempt"
DEDUPLICATION, TASK = "onceonly.deduplication", "onceonly.task"
MOST_ERRORS = 50
"""How many values `error.type` has in one process. Further ones are `_OTHER`."""
OTHER_ERROR = "_OTHER"


class EndpointNames(NamedTuple):
    """The names of one endpoint: those of its system, its queue, and its server."""

    endpoint: str
    system: str
    queue: str
    server: Attributes
    deduplication: str
    prefix: str = ""

    @classmethod
    def of(cls, subject: TelemetrySubject) -> "EndpointNames":
        system = system_of_scheme(subject.scheme)
        prefix = _prefix(subject.transport) if system == "rabbitmq" else ""
        return cls(
            subject.endpoint, system, prefix + subject.endpoint, _server(subject.transport), subject.deduplication, prefix
        )

    def destination(self, type_: str, to: str) -> str:
        """Return the name of the place that a message is sent to. `to` is empty for an event.

        A destination that is not an endpoint has its text, such as "queue:Sales".
        """
        if self.system != "rabbitmq" or is_destination(to):
            return to or type_
        return self.prefix + to if to else _exchange(self.prefix, type_)

    def operation(self, name: str, kind: str, destination: str = "") -> Attributes:
        attributes: Attributes = {"messaging.system": self.system, OPERATION: name, TYPE: kind, **self.server}
        if destination:
            attributes[DESTINATION] = destination
        return attributes


def about(message: Message) -> Attributes:
    attributes: Attributes = {MESSAGE_ID: message.id, EVENT_SOURCE: message.source, EVENT_TYPE: message.type}
    if conversation := message.extension("conversationid"):
        attributes[CONVERSATION] = conversation
    return attributes


def _server(url: str) -> Attributes:
    """Return the host and the port of a URL. Nothing for a place in this process, or for a service that has no host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # such as several hosts
        return {}
    if not host or parts.scheme in ("memory", "sqlite", "sqs"):
        return {}
    return {"server.address": host, "server.port": port} if port else {"server.address": host}


def _prefix(url: str) -> str:
    from onceonly.adapters.rabbitmq.address import read_address  # noqa: PLC0415 - only for RabbitMQ

    return read_address(url).prefix


@lru_cache(1000)
def _exchange(prefix: str, type_: str) -> str:
    from onceonly.adapters.rabbitmq.names import RabbitMQNames  # noqa: PLC0415 - only for RabbitMQ

    return RabbitMQNames(prefix).exchange(type_)
