"""Celery's messages in a transaction: taken from its own sender, with everything that kombu needs to send them later.

Routing, serializer, compression, protocol and headers are Celery's work. What is stored is what would have been published.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from kombu import Connection, Exchange, Producer, Queue, binding
from kombu.exceptions import EncodeError
from msgspec import Struct, ValidationError, json

from onceonly.model.errors import InvalidEffect, SetupError, TransactionMisused
from onceonly.model.transaction import LONGEST_KEY
from onceonly.model.wording import an

CARRIER = "celery"
"""The name of the carrier of Celery's messages."""
CONTENT_TYPE = "application/vnd.onceonly.celery+json"
PROTOCOL = 2
"""The version of Celery's message protocol."""
_ENTITY = Mapping[str, Any]
_UNOPENED: "WeakKeyDictionary[Any, Connection]" = WeakKeyDictionary()
"""A connection of each application that is never opened, because making one takes long."""
_QUEUE_ATTRIBUTES = frozenset(
    {
        "name", "exchange", "routing_key", "queue_arguments", "binding_arguments", "durable", "exclusive", "auto_delete",
        "no_declare", "expires", "message_ttl", "max_length", "max_length_bytes", "max_priority",
    }
)  # fmt: skip


class StoredTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as kombu publishes it. `declares` are the queues and exchanges that are declared before.

    `text` is the body if it is text, else `data` is, in base64.
    """

    exchange: str
    routing_key: str
    content_type: str
    content_encoding: str
    text: str = ""
    data: str = ""
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    priority: int | None = None
    delivery_mode: int | None = None
    declares: list[dict[str, Any]] = []

    @property
    def body(self) -> bytes:
        """The body as it goes to the broker."""
        return b64decode(self.data) if self.data else self.text.encode(self.content_encoding)

    @property
    def entities(self) -> list[Queue | Exchange]:
        """The queues and exchanges to declare."""
        return [_entity(each) for each in self.declares]


def read_stored(body: bytes) -> StoredTask:
    """Read what `CapturingProducer` has stored. Raises ValueError."""
    try:
        return json.decode(body, type=StoredTask)
    except ValidationError as error:
        raise ValueError(f"this is not a message of Celery: {error}") from error


class CapturingProducer(Producer):  # type: ignore[misc] # kombu has no types
    """A producer whose `publish` hands the message to a transaction. It has a connection that is never opened."""

    def __init__(self, app: Any, capture: Any) -> None:
        super().__init__(None)
        self._app = app
        self.capture = capture

    @property
    def connection(self) -> Connection:
        """A connection that translates errors, and is not connected. Raises SetupError for an unknown broker."""
        found = _UNOPENED.get(self._app)
        return found if found is not None else _UNOPENED.setdefault(self._app, _unopened(self._app))

    def publish(  # noqa: PLR0913 - the arguments of the method that it replaces
        self,
        body: Any,
        routing_key: str | None = None,
        delivery_mode: Any = None,
        *,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        serializer: str | None = None,
        headers: dict[str, Any] | None = None,
        compression: str | None = None,
        exchange: Any = None,
        declare: Iterable[Any] | None = None,
        expiration: float | None = None,
        **properties: Any,
    ) -> None:
        """Store the message. Raises InvalidEffect for one that cannot be stored, such as with unserializable arguments."""
        own = dict(headers or {})
        name, task_id = task_of(own, properties)
        if task_id is not None:
            own = {**self.capture.headers, **own}
        for option in ("mandatory", "immediate", "retry", "retry_policy", "timeout", "confirm_timeout"):
            properties.pop(option, None)
        try:
            data, kind, encoding = self._prepare(body, serializer, content_type, content_encoding, compression, own)
        except EncodeError as error:
            raise InvalidEffect(
                f"the arguments of task {name} cannot be serialized: {error}. Pass values that the task_serializer writes"
            ) from error
        exchange_name, mode = self._delivery_details(exchange or self.exchange, delivery_mode)
        if expiration is not None:
            properties["expiration"] = str(int(expiration * 1000))
        text, coded = _text_or_base64(data, encoding)
        stored = StoredTask(
            exchange=exchange_name or "",
            routing_key=routing_key or "",
            content_type=kind,
            content_encoding=encoding,
            text=text,
            data=coded,
            headers={key: _plain(value, f"header {key!r} of task {name}") for key, value in own.items()},
            properties={
                key: _plain(value, f"property {key!r} of task {name}") for key, value in properties.items() if value is not None
            },
            priority=priority,
            delivery_mode=mode,
            declares=[_described(each, name) for each in declare or ()],
        )
        self.capture.add(json.encode(stored), name, task_id)


def _unopened(app: Any) -> Connection:
    try:
        found: Connection = app.connection_for_write()
        found.get_transport_cls()
    except (KeyError, ImportError) as error:
        raise SetupError(
            f"the broker_url of the Celery application {app.main!r} is not that of a broker of Celery: {error}. Use amqp://, "
            "redis:// or another transport of kombu"
        ) from error
    return found


def task_of(headers: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return name and id of the task of a message. An event of Celery has no id."""
    if "task" not in headers:
        return "celery.event", None
    return str(headers["task"]), str(headers.get("id") or properties.get("correlation_id") or "")


def check_task_id(task_id: object, name: str) -> None:
    """Refuse an id that cannot be a key. Raises InvalidEffect."""
    if not isinstance(task_id, str) or not task_id.strip():
        raise InvalidEffect(f"the id of task {name} must be text that is not blank, not {task_id!r:.100}")
    if (size := len(task_id.encode())) > LONGEST_KEY:
        raise InvalidEffect(f"the id of task {name} has {size} bytes; it must have 1 to {LONGEST_KEY}. Shorten it, or hash it")


def refuse_producer(name: str) -> TransactionMisused:
    """Return the error for a message that a caller would send on a connection of its own."""
    return TransactionMisused(
        f"{name} cannot be sent with a producer or a connection of its own inside a transaction, because it would be sent "
        "before the commit: remove producer= and connection="
    )


def _text_or_base64(data: Any, encoding: str) -> tuple[str, str]:
    if isinstance(data, str):
        return data, ""
    if encoding.lower() in {"utf-8", "utf8", "us-ascii"}:
        try:
            return bytes(data).decode("utf-8"), ""
        except UnicodeDecodeError:  # compressed
            pass
    return "", b64encode(bytes(data)).decode()


def _plain(value: Any, what: str) -> Any:
    """Return a value of JSON. Raises InvalidEffect for one that would not read back equal."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each, what) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, what) for key, each in value.items()}
    raise InvalidEffect(f"{what} cannot be stored: it is {an(type(value).__name__)}. Use text, numbers, lists and mappings")


def _described(entity: Any, name: str) -> dict[str, Any]:
    described = entity.as_dict(recurse=True)
    if isinstance(entity, Queue):
        described = {key: value for key, value in described.items() if key in _QUEUE_ATTRIBUTES and value is not None}
        described["bindings"] = [each.as_dict(recurse=True) for each in entity.bindings]
    described = {key: value for key, value in described.items() if value is not None}
    kind = "queue" if isinstance(entity, Queue) else "exchange"
    return {"kind": kind, **_plain(described, f"{kind} {entity.name!r} of task {name}")}


def _entity(described: _ENTITY) -> Queue | Exchange:
    arguments = {key: value for key, value in described.items() if key != "kind"}
    if described["kind"] == "exchange":
        return Exchange(**arguments)
    arguments["bindings"] = [_binding(each) for each in arguments.get("bindings", ())]
    exchange = arguments.pop("exchange", None)
    return Queue(exchange=Exchange(**exchange) if exchange else None, **arguments)


def _binding(described: _ENTITY) -> Any:
    exchange = described.get("exchange")
    rest = {key: value for key, value in described.items() if key != "exchange"}
    return binding(Exchange(**exchange) if exchange else None, **rest)
