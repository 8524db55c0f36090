"""Subscribers of FastStream: which of them can be exactly-once, and what identifies their messages.

A subscriber can be exactly-once if its broker delivers a message again until it is acknowledged, after a failure and after the
death of the process.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from onceonly.formats.cloudevents import Event, attribute_of
from onceonly.formats.identity import IdentityRule, NoIdentity, TooLong, identify
from onceonly.model.errors import InvalidKey
from onceonly.model.message import Delivery

BROKERS = {"rabbit": "RabbitMQ", "nats": "NATS", "redis": "Redis", "kafka": "Kafka"}
_NACK = "set ack_policy=AckPolicy.NACK_ON_ERROR"


def broker_of(thing: Any) -> str:
    """Return the package of FastStream that a subscriber, a message or a command belongs to, such as "rabbit"."""
    package, _, rest = type(thing).__module__.partition(".")
    return rest.partition(".")[0] if package == "faststream" else ""


def problems_of(subscriber: Any) -> Iterator[str]:
    """List why a subscriber cannot be exactly-once."""
    broker, name = broker_of(subscriber), name_of(subscriber)
    if broker not in BROKERS:
        yield f"{name}: its broker is not supported. Supported are {', '.join(BROKERS.values())}"
        return
    if "Batch" in type(subscriber).__name__:
        yield f"{name} takes batches, and a transaction is for one message. Take single messages"
    elif reason := _UNSAFE[broker](subscriber):
        yield f"{name}: {reason}"
    if len({*_handlers_of(subscriber)}) < len(subscriber.calls):
        yield f"{name}: handlers of one subscriber have keys of their own, by their names. Give each its own name"


def _rabbit(subscriber: Any) -> str:
    policy = subscriber.ack_policy.name
    if policy == "NACK_ON_ERROR" or (policy == "REJECT_ON_ERROR" and _has_dead_letters(subscriber.queue)):
        return ""
    return _unsafe_policy(policy, f"{_NACK}, or give the queue an x-dead-letter-exchange")


def _has_dead_letters(queue: Any) -> bool:
    return "x-dead-letter-exchange" in (queue.arguments or {})


def _nats(subscriber: Any) -> str:
    if getattr(subscriber, "stream", None) is None:
        return "only messages of a JetStream stream are delivered again after a crash. Set stream="
    return "" if subscriber.ack_policy.name == "NACK_ON_ERROR" else _unsafe_policy(subscriber.ack_policy.name, _NACK)


def _redis(subscriber: Any) -> str:
    stream = getattr(subscriber, "stream_sub", None)
    if stream is None or not stream.group or stream.no_ack:
        return "Redis does not deliver its messages again after a crash. Use a stream with group= and consumer=, without no_ack"
    return "" if subscriber.ack_policy.name == "NACK_ON_ERROR" else _unsafe_policy(subscriber.ack_policy.name, _NACK)


def _kafka(subscriber: Any) -> str:
    if not subscriber.group_id:
        return "without a group no offset is committed. Set group_id="
    return "" if subscriber.ack_policy.name == "NACK_ON_ERROR" else _unsafe_policy(subscriber.ack_policy.name, _NACK)


_UNSAFE: dict[str, Callable[[Any], str]] = {"rabbit": _rabbit, "nats": _nats, "redis": _redis, "kafka": _kafka}


def _unsafe_policy(policy: str, remedy: str) -> str:
    if policy == "MANUAL":
        return f"AckPolicy.MANUAL acknowledges before the commit, or never: {remedy}"
    return f"AckPolicy.{policy} loses a message whose handler fails or whose process dies: {remedy}"


def set_problems(subscribers: Sequence[Any]) -> Iterator[str]:
    """List what is wrong with the subscribers of one broker together."""
    redis = [each.stream_sub for each in subscribers if getattr(each, "stream_sub", None) is not None]
    for stream in redis:
        pending = [each for each in redis if (each.name, each.group) == (stream.name, stream.group)]
        if stream is pending[0] and not any(each.min_idle_time or each.claim_min_idle_time for each in pending):
            yield (
                f"stream {stream.name!r}: messages of a consumer that died stay pending in group {stream.group!r}. Add a second"
                f" subscriber to the same handler, with StreamSub({stream.name!r}, group={stream.group!r}, min_idle_time=...)"
            )
    seen: dict[str, Any] = {}
    for each in subscribers:
        if broker_of(each) == "nats" and not _nats_group(each):
            other = seen.setdefault(scope_of(each), each)
            if other is not each:
                yield (
                    f"{name_of(other)} and {name_of(each)} get the same messages of {_nats_subject(each)!r}, and the second to"
                    " get one would take it for a copy. Give each a name with durable="
                )


def name_of(subscriber: Any) -> str:
    """Return what messages call a subscriber."""
    return f"subscriber {', '.join(_handlers_of(subscriber)) or type(subscriber).__name__}"


def _handlers_of(subscriber: Any) -> list[str]:
    return [_name_of_handler(each.handler) for each in subscriber.calls]


def _name_of_handler(handler: Any) -> str:
    return str(handler._original_call.__qualname__)  # noqa: SLF001 - has no public name


def scope_of(subscriber: Any, handler: Any = None) -> str:
    """Return the space of a handler's keys. All processes that share its messages have the same one.

    If filters choose among several handlers of a subscriber, each handler has its own space. Their messages may have equal keys
    and bodies, such as those to place and to cancel an order, and are not copies.
    """
    space = _messages_of(subscriber)
    return space if handler is None or len(subscriber.calls) < 2 else f"{space}:{_name_of_handler(handler)}"  # noqa: PLR2004


def _messages_of(subscriber: Any) -> str:
    broker = broker_of(subscriber)
    if broker == "rabbit":
        return f"rabbit:{subscriber._outer_config.prefix}{subscriber.queue.name}"  # noqa: SLF001 - has no public name
    if broker == "nats":
        return f"nats:{subscriber.stream.name}:{_nats_group(subscriber) or _nats_subject(subscriber)}"
    if broker == "redis":
        return f"redis:{subscriber.stream_sub.name}:{subscriber.stream_sub.group}"
    topics = {getattr(each, "name", each) for each in subscriber.topics} | {each.topic for each in subscriber.partitions}
    pattern = f"{subscriber._outer_config.prefix}{subscriber._pattern}"  # noqa: SLF001 - has no public name
    return f"kafka:{subscriber.group_id}:{','.join(sorted(topics)) or pattern}"


def _nats_group(subscriber: Any) -> str:
    """Return the name under which consumers share the messages of a stream; empty if each gets all of them."""
    return str(subscriber.config.durable_name or subscriber.queue or "")


def _nats_subject(subscriber: Any) -> str:
    return str(subscriber.subject) if subscriber.subject else ",".join(subscriber.filter_subjects)


def key_of(message: Any, rule: IdentityRule | Callable[[Any], str] | None, scope: str) -> str:
    """Return the key of a message, by a rule or by its id. Raises InvalidKey."""
    if rule is not None and callable(rule):
        found = rule(message)
        if not isinstance(found, str):
            raise InvalidKey(f"key= returned {type(found).__name__}; it must return text that is the same in each copy")
        return found
    headers = tuple((str(name), _text(value)) for name, value in message.headers.items())
    if rule is None:
        return _own_id(message, headers)
    event = Event(attributes={}, headers=headers, body=bytes(message.body))
    try:
        return identify(event, Delivery(receipt="", queue=scope, headers=headers, body=event.body), rule).id
    except (NoIdentity, TooLong) as error:
        raise InvalidKey(f"{error}. Correct the sender, or set another key= on the middleware") from error


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _own_id(message: Any, headers: Sequence[tuple[str, str]]) -> str:
    """Return the id that a message has in its broker, or from its sender."""
    attributes = {attribute_of(name): value for name, value in headers}
    if attributes.get("id") and attributes.get("source"):
        return f"{attributes['source']} {attributes['id']}"
    named = {name.lower(): value for name, value in headers}
    if found := named.get("message_id") or named.get("nats-msg-id"):
        return found
    if found := _BY_BROKER[broker_of(message)](message.raw_message):
        return found
    raise InvalidKey(
        "the message has no id, so copies of it cannot be recognized: set a message_id when you publish it, or key= of"
        " ExactlyOnceMiddleware"
    )


def _nats_id(raw: Any) -> str:
    if not raw.reply:  # FastStream's TestBroker
        return str((raw.headers or {}).get("correlation_id", ""))
    return f"{raw.metadata.stream}:{raw.metadata.sequence.stream}"


_BY_BROKER: dict[str, Callable[[Any], str]] = {
    "rabbit": lambda raw: raw.message_id or "",
    "nats": _nats_id,
    "redis": lambda raw: b",".join(raw.get("message_ids", ())).decode(),
    "kafka": lambda raw: f"{raw.topic}:{raw.partition}:{raw.offset}",
}
