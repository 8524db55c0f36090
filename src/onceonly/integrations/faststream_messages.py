"""What FastStream publishes, as messages of a transaction, and replies as they are stored.

A captured message is encoded as FastStream would have written it: its codec or serializer makes the body and the content type,
and the headers stay. `_MAPPINGS` is the one place that decides where it goes.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Struct

from onceonly.endpoint import Transaction
from onceonly.integrations.faststream_subscribers import BROKERS, broker_of
from onceonly.model.destination import Destination, Exchange, Queue, Stream, Subject, Topic
from onceonly.model.errors import InvalidEffect, PermanentFailure
from onceonly.model.limits import type_problem

_JSON, _TEXT, _BYTES = "application/json", "text/plain", "application/octet-stream"
_UNNAMED = "message"
"""The type of a message whose body has no class, and whose destination cannot be a type."""


class OutgoingCommand(NamedTuple):
    """A command of FastStream, as the transaction sends it. `name` is the type that its publisher gave it, `id` its own id.

    `envelope` writes the headers into the body, for a broker whose messages have none.
    """

    to: Destination
    headers: Mapping[str, Any]
    name: str | None = None
    id: str | None = None
    content_type: str | None = None
    envelope: Callable[..., Awaitable[bytes]] | None = None
    key: str | None = None


async def capture(tx: Transaction, producer: Any, cmd: Any) -> None:
    """Put what a publisher sends into a transaction. Raises InvalidEffect for what the endpoint's transport cannot send."""
    for body, outgoing in [*outgoing_of(cmd)]:
        headers: Mapping[str, str] = outgoing.headers
        if outgoing.envelope is None:
            encoded, content_type = await _encoded(body, producer)
        else:
            codec, serializer = _codec_of(producer)
            encoded = await outgoing.envelope(message=body, headers=headers, codec=codec, serializer=serializer)
            headers, content_type = {}, _BYTES
        if isinstance(outgoing.to, Exchange) and hasattr(producer, "declarer"):
            await producer.declarer.declare_exchange(cmd.exchange)  # as its own publish does
        tx.send(
            encoded,
            to=outgoing.to,
            type=_type_of(outgoing, body),
            headers=headers,
            content_type=outgoing.content_type or content_type or _guessed(encoded),
            id=outgoing.id,
            key=outgoing.key,
        )


def outgoing_of(cmd: Any) -> Iterator[tuple[Any, OutgoingCommand]]:
    """Return each body of a command with where it goes. Raises InvalidEffect for what cannot be captured."""
    broker = broker_of(cmd)
    if broker not in _MAPPINGS:
        raise InvalidEffect(
            f"cannot publish to {BROKERS.get(broker, broker)} inside a transaction: no transport of onceonly sends to it."
            " Publish with tx.publish(...), or from a subscriber of the published message"
        )
    for index, body in enumerate(getattr(cmd, "batch_bodies", (cmd.body,)) or (cmd.body,)):
        outgoing = _MAPPINGS[broker](cmd, body)
        if broker == "kafka":
            outgoing = outgoing._replace(key=_kafka_key(cmd.key_for(index)))
        yield body, outgoing._replace(headers={name: _header(name, value) for name, value in outgoing.headers.items()})


async def _encoded(body: Any, producer: Any) -> tuple[bytes, str | None]:
    """Encode a body as the producer does."""
    if _is_aio_pika(body):
        return body.body, body.content_type
    codec, serializer = _codec_of(producer)
    encoded: tuple[bytes, str | None] = await codec.encode(body, serializer)
    return encoded


def _codec_of(producer: Any) -> tuple[Any, Any]:
    """Return what encodes a producer's bodies: its codec and its serializer."""
    broker = getattr(producer, "broker", None)  # of FastStream's TestBroker
    serializer = producer.serializer if broker is None else broker.config.fd_config._serializer  # noqa: SLF001 - has no public name
    return producer.codec, serializer


def _guessed(body: bytes) -> str:
    """Return the content type under which FastStream decodes bytes as it does without one."""
    try:
        json.loads(body)
    except ValueError:
        return _BYTES
    return _JSON


def _type_of(outgoing: OutgoingCommand, body: object) -> str:
    own = "" if type(body).__module__ in {"builtins", "aio_pika.message"} else type(body).__name__
    names = (outgoing.name, own, getattr(outgoing.to, "routing_key", ""), getattr(outgoing.to, "name", ""))
    return next((name for name in names if name and not type_problem(name)), _UNNAMED)


def _header(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidEffect(
            f"the header {name!r} is {type(value).__name__}: a message of a transaction has headers of text. Use str(...)"
        )
    return value


def _refuse(options: Mapping[str, object]) -> None:
    if given := sorted(name for name, value in options.items() if value):
        raise InvalidEffect(
            f"cannot publish with {', '.join(given)} inside a transaction: the message could not keep it. Remove it"
        )


def _rabbit(cmd: Any, body: Any) -> OutgoingCommand:
    options = {name: value for name, value in cmd.message_options.items() if name not in {"persist", "app_id", "content_type"}}
    headers, correlation_id = dict(cmd.headers or {}), cmd.correlation_id
    content_type = cmd.message_options.get("content_type")
    if _is_aio_pika(body):  # it is sent as it is, without what the command says
        options = {name: getattr(body, name) for name in ("message_id", "type", "priority", "expiration", "content_encoding")}
        options["message_type"] = options.pop("type")
        headers, correlation_id, content_type = dict(body.headers or {}), body.correlation_id, body.content_type
    name, id_ = options.pop("message_type", None), options.pop("message_id", None)
    _refuse(options | {"immediate": cmd.publish_options.get("immediate"), "reply_to": cmd.reply_to})
    if correlation_id:
        headers.setdefault("correlation-id", correlation_id)
    exchange = cmd.exchange.name
    to = Queue(cmd.destination) if exchange in {"", "default"} else Exchange(exchange, cmd.destination)
    return OutgoingCommand(to, headers, name, id_, content_type)


def _nats(cmd: Any, _body: Any) -> OutgoingCommand:
    _refuse({"schedule": cmd.schedule, "reply_to": cmd.reply_to})
    return OutgoingCommand(Subject(cmd.destination), cmd.headers_to_publish(js=True))


def _redis(cmd: Any, _body: Any) -> OutgoingCommand:
    if cmd.destination_type.name != "Stream":
        raise InvalidEffect(
            f"cannot publish to the {cmd.destination_type.value} {cmd.destination!r} of Redis inside a transaction: Redis keeps"
            " only entries of streams until they are acknowledged. Publish to a stream"
        )
    _refuse({"maxlen": cmd.maxlen, "pipeline": cmd.pipeline is not None, "reply_to": cmd.reply_to})
    id_ = _header("message_id", (cmd.headers or {}).get("message_id") or uuid4().hex)
    envelope = partial(cmd.message_format.encode, reply_to=None, correlation_id=cmd.correlation_id or "")
    to = Stream(cmd.destination, "__data__")  # the field from which FastStream reads
    return OutgoingCommand(to, {**(cmd.headers or {}), "message_id": id_}, id=id_, envelope=envelope)


def _kafka(cmd: Any, _body: Any) -> OutgoingCommand:
    _refuse({"partition": cmd.partition is not None, "timestamp_ms": cmd.timestamp_ms, "reply_to": cmd.reply_to})
    return OutgoingCommand(Topic(cmd.destination), cmd.headers_to_publish())


def _kafka_key(key: object) -> str | None:
    """Return the key of a record. Raises InvalidEffect for bytes that are not UTF-8."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    raise InvalidEffect(f"the key {key!r:.100} is not text in UTF-8: a message of a transaction has a key of text")


_MAPPINGS: dict[str, Callable[[Any, Any], OutgoingCommand]] = {
    "rabbit": _rabbit,
    "nats": _nats,
    "redis": _redis,
    "kafka": _kafka,
}
"""From a command to where it goes, by the package of FastStream that made it."""


def _is_aio_pika(body: object) -> bool:
    return type(body).__module__ == "aio_pika.message"


class StoredReply(Struct, tag_field="onceonly", tag="faststream-reply"):
    """A reply as a transaction stores it, for copies of its request. `content_type` is empty if FastStream finds it itself."""

    kind: Literal["json", "text", "bytes"]
    body: bytes
    headers: dict[str, str]
    content_type: str = ""


async def stored_reply(cmd: Any, producer: Any) -> Any:
    """Return what is stored of a reply: a value that JSON can represent."""
    body, content_type = await _encoded(cmd.body, producer)
    headers = {name: value for name, value in (cmd.headers or {}).items() if isinstance(value, str)}
    kind: Literal["json", "text", "bytes"] = "bytes"
    if content_type in {_JSON, _TEXT}:  # else a codec of the application made it
        kind, content_type = "json" if content_type == _JSON else "text", None
    chosen = getattr(cmd, "message_options", {}).get("content_type")
    return msgspec.to_builtins(StoredReply(kind, body, headers, chosen or content_type or ""))


def reply_of(stored: Any, response: Callable[..., Any]) -> Any:
    """Return the stored reply as a handler's result; None if the answer is none. Raises PermanentFailure."""
    try:
        reply = _stored(stored)
        if reply is None:
            return None
        body = reply.body
        value: Any = json.loads(body) if reply.kind == "json" else body.decode() if reply.kind == "text" else body
    except (ValueError, RecursionError) as error:
        raise PermanentFailure(f"the stored reply of this message cannot be read: {error}. Delete its key") from error
    return response(value, headers=reply.headers)


def say_again(stored: Any, cmd: Any) -> None:
    """Give the command of a stored reply the content type that the first one had, where it is not a header."""
    reply = _stored(stored)
    if reply is not None and reply.content_type and hasattr(cmd, "message_options"):
        cmd.message_options["content_type"] = reply.content_type


def _stored(stored: Any) -> StoredReply | None:
    if not isinstance(stored, dict) or stored.get("onceonly") != "faststream-reply":
        return None
    return msgspec.convert(stored, StoredReply)
