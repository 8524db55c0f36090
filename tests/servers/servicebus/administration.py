"""The administration of the stand-in: entries of Atom over HTTP."""

from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from aiohttp import web

from tests.servers.servicebus.amqp import Broker
from tests.servers.servicebus.entities import Entity, Topic

_CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_ATOM = "http://www.w3.org/2005/Atom"
_DETAILS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"


class Administration:
    """Creates, lists, reads and deletes queues, topics and subscriptions. `allowed` is whether the key has the right Manage."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._namespace = broker.namespace
        self.allowed = True

    def application(self) -> web.Application:
        """Return what serves the requests."""
        found = web.Application()
        found.router.add_route("*", "/{path:.*}", self._answer)
        return found

    async def _answer(self, request: web.Request) -> web.Response:
        if not self.allowed or "Authorization" not in request.headers:
            return web.Response(status=401, text="<Error><Code>401</Code><Detail>Manage claim is required</Detail></Error>")
        parts = [part for part in request.match_info["path"].split("/") if part]
        if request.method == "GET" and parts == ["$Resources", "topics"]:
            skip, top = int(request.query.get("$skip", 0)), int(request.query.get("$top", 100))
            topics = sorted(self._namespace.topics.values(), key=lambda topic: topic.name)[skip : skip + top]
            return _feed([_entry(topic.name, _topic(topic)) for topic in topics])
        if len(parts) == 1:
            return self._entity(request.method, parts[0], await request.read())
        if len(parts) == 3 and parts[1].lower() == "subscriptions":
            return self._subscription(request.method, parts[0], parts[2], await request.read())
        return _missing()

    def _entity(self, method: str, name: str, body: bytes) -> web.Response:
        queue, topic = self._namespace.queues.get(name.lower()), self._namespace.topics.get(name.lower())
        if method == "PUT":
            if queue is not None or topic is not None:
                return web.Response(status=409, text="<Error><Code>409</Code><Detail>it exists</Detail></Error>")
            kind, settings = _read(body)
            if kind == "TopicDescription":
                self._namespace.topics[name.lower()] = topic = Topic(name, settings)
            else:
                self._namespace.queues[name.lower()] = queue = self._namespace.entity(name, settings)
                self._broker.pump()
        elif method == "DELETE" and (queue is not None or topic is not None):
            self._namespace.queues.pop(name.lower(), None)
            self._namespace.topics.pop(name.lower(), None)
            return web.Response()
        if queue is not None:
            return _document(_entry(name, _queue(queue, "QueueDescription")))
        if topic is not None:
            return _document(_entry(name, _topic(topic)))
        return _missing()

    def _subscription(self, method: str, topic_name: str, name: str, body: bytes) -> web.Response:
        topic = self._namespace.topics.get(topic_name.lower())
        if topic is None:
            return _missing()
        found = topic.subscriptions.get(name.lower())
        if method == "PUT":
            if found is not None:
                return web.Response(status=409, text="<Error><Code>409</Code><Detail>it exists</Detail></Error>")
            _, settings = _read(body)
            target = settings.get("ForwardTo", "").rpartition("/")[2].lower()
            if target and target not in self._namespace.queues:
                return web.Response(status=400, text="<Error><Code>400</Code><Detail>ForwardTo does not exist</Detail></Error>")
            topic.subscriptions[name.lower()] = found = self._namespace.entity(name, settings)
        elif method == "DELETE" and found is not None:
            del topic.subscriptions[name.lower()]
            return web.Response()
        return _missing() if found is None else _document(_entry(name, _queue(found, "SubscriptionDescription")))


def _read(body: bytes) -> tuple[str, dict[str, str]]:
    content = ET.fromstring(body)[0]  # noqa: S314 - from a client on loopback
    description = content[0]
    settings = {child.tag.rpartition("}")[2]: child.text or "" for child in description if len(child) == 0}
    return description.tag.rpartition("}")[2], settings


def _queue(entity: Entity, kind: str) -> str:
    entity.activate()
    counted = {"ActiveMessageCount": len(entity.messages), "DeadLetterMessageCount": len(entity.dead)}
    details = counted | {
        "ScheduledMessageCount": len(entity.later),
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }
    return _description(kind, entity.settings, details, entity.size)


def _topic(topic: Topic) -> str:
    details = {"ActiveMessageCount": 0, "ScheduledMessageCount": len(topic.waiting)}
    settings = topic.settings | {"SubscriptionCount": str(len(topic.subscriptions))}
    return _description("TopicDescription", settings, details, None)


def _description(kind: str, settings: dict[str, str], details: dict[str, int], total: int | None) -> str:
    values = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in settings.items())
    counts = "".join(f'<d:{name} xmlns:d="{_DETAILS}">{value}</d:{name}>' for name, value in details.items())
    number = "" if total is None else f"<MessageCount>{total}</MessageCount><SizeInBytes>0</SizeInBytes>"
    return f'<{kind} xmlns="{_CONNECT}">{values}{number}<CountDetails>{counts}</CountDetails></{kind}>'


def _entry(name: str, description: str) -> str:
    content = f'<content type="application/xml">{description}</content>'
    return f'<entry xmlns="{_ATOM}"><title type="text">{escape(name)}</title>{content}</entry>'


def _feed(entries: list[str]) -> web.Response:
    return _document(f'<feed xmlns="{_ATOM}"><title type="text">Topics</title>{"".join(entries)}</feed>')


def _document(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/atom+xml")


def _missing() -> web.Response:
    """Answer as the service does for an entity that does not exist: an empty feed."""
    return _document(f'<feed xmlns="{_ATOM}"><title type="text">Publicly Listed Services</title></feed>')
