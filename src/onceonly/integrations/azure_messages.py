"""Messages of Azure Functions' triggers, as an endpoint reads them: body, headers, the id of a foreign message, deliveries.

The host is written in .NET. Its count of deliveries is 1 for the first one, of Service Bus as of Storage queues. An event hub
has no count. Headers are named as the Service Bus transport names them, so a worker and a function read a message alike.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from azure.functions import EventHubEvent, QueueMessage, ServiceBusMessage

from onceonly.model.hosted import HostedMessage
from onceonly.queues.messages import read_structured

TriggerMessage = ServiceBusMessage | QueueMessage | EventHubEvent
"""What a trigger gives to a function; with `cardinality` many it gives a list."""

MESSAGE_ID = "azure-message-id"
"""The only header of a message in a Storage queue that is not a CloudEvent, as the transport names it."""
_MORE = "onceonly-headers"
"""The application property in which onceonly sends the headers that cannot be properties."""
_OWN = "onceonly-"
"""What the message id of a message begins with that onceonly has sent: one of the sending, not of the message."""


def trigger_messages(values: Sequence[object]) -> list[TriggerMessage]:
    """Return the messages among the arguments of a function. Raises TypeError if there are none."""
    for value in values:
        found = value if isinstance(value, list | tuple) else [value]
        if found and all(isinstance(each, TriggerMessage) for each in found):
            return list(found)
        if isinstance(value, list) and not value:
            return []
    kinds = ", ".join(type(value).__name__ for value in values) or "nothing"
    raise TypeError(
        f"handled_by takes messages of Service Bus, Storage queue and Event Hubs triggers, not {kinds}: annotate the parameter "
        "with func.ServiceBusMessage, func.QueueMessage or func.EventHubEvent, or a list of these"
    )


def hosted_messages(given: Sequence[TriggerMessage], source: str) -> list[HostedMessage]:
    """Return the messages of one invocation."""
    return [_hosted(message, place, source) for place, message in enumerate(given)]


def _hosted(message: TriggerMessage, place: int, source: str) -> HostedMessage:
    headers: Mapping[str, object] | Sequence[tuple[str, str]]
    body, count = message.get_body(), None
    if isinstance(message, ServiceBusMessage):
        headers, count = dict(_service_bus_headers(message)), message.delivery_count
        id_ = None if _is_own(message) else message.message_id
    elif isinstance(message, QueueMessage):
        id_, count = message.id, message.dequeue_count
        headers, body = _structured(body, (MESSAGE_ID, id_ or ""))
    else:
        id_, headers = _place_of(message), _properties(message, place)
        if not headers and b'"specversion"' in body:
            headers, body = _structured(body, ("sequence-number", str(message.sequence_number)))
    return HostedMessage(body, headers, id_ or None, max(1, count or 1), source, receipt=message)


def _structured(body: bytes, foreign: tuple[str, str]) -> tuple[Sequence[tuple[str, str]], bytes]:
    """Return headers and body of a CloudEvent that is the whole body; of any other message one header, and the body."""
    found = read_structured(body.decode("utf-8", "surrogateescape"), foreign)
    return found.headers, found.body


def _is_own(message: ServiceBusMessage) -> bool:
    return (message.message_id or "").startswith(_OWN)


def _service_bus_headers(message: ServiceBusMessage) -> Iterator[tuple[str, object]]:
    properties = message.application_properties or message.user_properties or {}
    if not _is_own(message):
        yield "message-id", message.message_id
        yield "correlation-id", message.correlation_id
        yield "reply-to", message.reply_to
        yield "subject", message.subject or message.label
        yield "session-id", message.session_id
    yield "content-type", message.content_type
    for name, value in properties.items():
        if name == _MORE:
            yield from _pairs(value)
        else:
            yield name, value


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    """Return the headers that are in one property. What is not such a property stays one."""
    try:
        pairs = json.loads(str(value))
        found = [(str(name), str(each)) for name, each in pairs]
    except (ValueError, TypeError):
        yield _MORE, str(value)
    else:
        yield from found


def _properties(event: EventHubEvent, place: int) -> Mapping[str, object]:
    """Return the application's properties of an event. In a batch they are in a list for all of its events."""
    metadata = event.metadata or {}
    found = metadata.get("Properties")
    many = metadata.get("PropertiesArray")
    if found is None and isinstance(many, list) and place < len(many):
        found = many[place]
    return found if isinstance(found, dict) else {}


def _place_of(event: EventHubEvent) -> str | None:
    """Return where an event is in its hub, which is its id if its sender gave none. None if that is not known."""
    context: Any = (event.metadata or {}).get("PartitionContext")
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            context = None
    if not isinstance(context, dict) or event.sequence_number is None:
        return None
    partition = context.get("PartitionId")
    hub = context.get("EventHubName") or ""
    return None if partition is None else f"{hub}:{partition}:{event.sequence_number}"
