"""Whatever arrives from a broker is a message or unreadable: headers and bodies of every transport, and CloudEvents.

A test of this kind calls what the transport calls for each message that it receives. See `tests/fuzzing.py`.
"""

import json
import struct
from base64 import b64encode
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from azure.servicebus.amqp import AmqpMessageBodyType

from onceonly import IdentityField, IdentityHeader
from onceonly.adapters.aws.sqs import wire as sqs_wire
from onceonly.adapters.azure.queue import wire as queue_wire
from onceonly.adapters.azure.servicebus import wire as servicebus_wire
from onceonly.adapters.rabbitmq import wire as rabbitmq_wire
from onceonly.adapters.rabbitmq.frames import HEAD, ConsumedMessage, read_deliver, read_properties, read_size
from onceonly.adapters.redis import entries
from onceonly.algorithms.control import control_of
from onceonly.endpoint.received_message import read
from onceonly.formats.cloudevents import PREFIXES, STRUCTURED, UNREADABLE, arrival, encode
from onceonly.formats.identity import IdentityRule
from onceonly.model.message import Delivery, Headers, Message, Send, Unreadable
from onceonly_conformance.samples import failures, rich_message
from tests.fuzzing import Inputs

EVENT = "shop.order.v1"
ATTRIBUTES = (
    *("id", "source", "type", "time", "subject", "datacontenttype", "specversion", "token", "partitionkey", "traceparent"),
    *(
        "onceonlyattempts",
        "onceonlyhistory",
        "onceonlyalone",
        "onceonlyheld",
        "onceonlyidentity",
        "onceonlyhops",
    ),
    *("expirytime", "conversationid", "causationid", "replyto", "onceonlyrequest", "onceonlyheaders", "onceonlydue"),
)
NAMES = (*(prefix + name for prefix in PREFIXES for name in ATTRIBUTES), "content-type", "Content-Type", UNREADABLE, "x")
VALUES = (
    *("1", "0", "-1", "999999999", "9" * 400, "٣", "1767225600000", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", STRUCTURED),
    *(
        "[]",
        "[{}]",
        '[{"kind":"exception","reason":"x","at":1}]',
        "[" * 5000,
        '[["a","b"]]',
        "null",
        "base64",
        "application/json",
    ),
)
RULES: tuple[IdentityRule | None, ...] = (None, IdentityField("order.id"), IdentityHeader("x"), IdentityHeader("nats-msg-id"))
EVENT_BODY = {"specversion": "1.0", "id": "1", "source": "/till", "type": EVENT, "time": "2026-01-01T00:00:00Z"}


def value(inputs: Inputs) -> str:
    """Return the value of a header."""
    return inputs.choice(VALUES) if inputs.random() < 0.5 else inputs.word()


def headers(inputs: Inputs) -> Headers:
    """Return headers, some of them known."""
    good = (("ce-id", "1"), ("ce-source", "/till"), ("ce-type", EVENT)) if inputs.random() < 0.5 else ()
    some = tuple(
        (inputs.choice(NAMES) if inputs.random() < 0.8 else inputs.word(), value(inputs)) for _ in range(inputs.randrange(5))
    )
    return (*some, *good) if inputs.random() < 0.5 else (*good, *some)


def body(inputs: Inputs) -> bytes:
    """Return a body: bytes, JSON, or a CloudEvent in JSON format with other values."""
    if inputs.random() < 0.3:
        return inputs.data()
    document = EVENT_BODY | {"data": inputs.tree(), "data_base64": inputs.choice(("YQ==", "x", 1))}
    some = {name: document[name] for name in document if inputs.random() < 0.9}
    if inputs.random() < 0.5:
        some[inputs.choice(ATTRIBUTES)] = (
            inputs.tree(2) if inputs.random() < 0.5 else value(inputs).encode(errors="replace").decode()
        )
    return inputs.document(json.dumps(some).encode())


def is_read(inputs: Inputs, found: Headers, content: bytes) -> Delivery:
    """Check that headers and a body are a delivery, and a message or unreadable."""
    assert all(type(part) is str for pair in found for part in pair)
    delivery = arrival("r", "shop", found, content, suspect=False)
    result = read(delivery, [EVENT], identity=inputs.choice(RULES), max_body=1000)
    assert isinstance(result, Message | Unreadable)
    if isinstance(result, Message):
        assert result.expires >= 0
        again, sent = encode(Send(message=result, to="shop", attempts=delivery.attempts, history=delivery.history))
        copied = read(arrival("r", "shop", again, sent, suspect=False), [EVENT], identity=None, max_body=10_000)
        assert isinstance(copied, Message)
        assert copied.identity == result.identity
    else:
        assert len(result.reason) < 10_000
    return delivery


def test_fuzz_cloudevents() -> None:
    """Headers and bodies as a transport passes them on, also control messages."""
    inputs = Inputs()
    for _ in inputs.rounds():
        delivery = is_read(inputs, headers(inputs), body(inputs))
        try:
            control_of(delivery)
        except ValueError:
            continue


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_a_message_whose_data_is_a_message_is_unreadable(mode: str) -> None:
    """Its copy would be read as the message in its data, with another identity."""
    inner = json.dumps(EVENT_BODY | {"id": "inner"}).encode()
    attributes = {**EVENT_BODY, "datacontenttype": STRUCTURED}
    if mode == "structured":
        given: Headers = (("content-type", STRUCTURED),)
        inner = json.dumps({**attributes, "data": json.loads(inner)}).encode()
    else:
        given = tuple((f"ce-{name}", each) for name, each in attributes.items())
    found = read(arrival("r", "shop", given, inner, suspect=False), [EVENT], identity=None, max_body=1000)
    assert isinstance(found, Unreadable)
    assert "datacontenttype" in found.reason


def test_a_deeply_nested_control_message_is_unreadable() -> None:
    """It becomes a dead letter, and not the end of its batch. Since Python 3.12, more levels fit on the stack than before."""
    delivery = arrival("r", "shop", (), b'{"endpoint":"a","x":' + b"[" * 500_000, suspect=False)
    with pytest.raises(ValueError, match=r"recursion|Stack overflow"):
        control_of(delivery)


def test_fuzz_messages_of_rabbitmq() -> None:
    """Frames as a server may send them: properties of every type, cut and changed."""
    inputs = Inputs()
    deliver = HEAD.pack(1, 1, 0) + b"\x00\x3c\x00\x3c\x03ctag" + struct.pack(">QB", 7, 1) + b"\x00rk\xce"
    for _ in inputs.rounds():
        frame = _frame(_flags(inputs), _properties(inputs))
        frame = inputs.changed(frame) if inputs.random() < 0.4 else frame
        properties, problem = read_properties(frame)
        message = ConsumedMessage("c", 1, False, properties, b"", frame, problem)  # noqa: FBT003 - as AMQP names it
        rabbitmq_wire.due_of(message)
        rabbitmq_wire.as_it_came(message)
        found = rabbitmq_wire.headers_of(message)
        rabbitmq_wire.type_of(found)
        is_read(inputs, found, body(inputs))
        for read_part in (read_size, read_deliver):
            try:
                read_part(inputs.changed(deliver if read_part is read_deliver else frame))
            except (ValueError, IndexError, struct.error):  # the driver gets the frame then
                continue


def _frame(flags: int, values: bytes) -> bytes:
    content = struct.pack(">HHQH", 60, 0, 5, flags) + values
    return HEAD.pack(2, 1, len(content)) + content + b"\xce"


def _flags(inputs: Inputs) -> int:
    return 1 << 13 if inputs.random() < 0.7 else inputs.randrange(1 << 16)


def _properties(inputs: Inputs) -> bytes:
    entries_ = b"".join(_short(inputs) + _amqp(inputs, 3) for _ in range(inputs.randrange(4)))
    return struct.pack(">I", len(entries_)) + entries_


def _short(inputs: Inputs) -> bytes:
    name = (inputs.choice(NAMES) if inputs.random() < 0.7 else inputs.word()).encode(errors="surrogatepass")[:200]
    return bytes((len(name),)) + name


def _amqp(inputs: Inputs, depth: int) -> bytes:
    """Return a field value with the letter of its type (section 4.2.5.5)."""
    kind = inputs.choice(b"SSSxAFtbBsuIilLfdDTV\x00?")
    if kind in b"Sx":
        text = value(inputs).encode(errors="surrogatepass")
        return bytes((kind,)) + struct.pack(">I", len(text)) + text
    if kind in b"AF":
        parts = [_amqp(inputs, depth - 1) for _ in range(inputs.randrange(3) if depth else 0)]
        inner = b"".join((_short(inputs) if kind == ord("F") else b"") + part for part in parts)
        return bytes((kind,)) + struct.pack(">I", len(inner)) + inner
    sizes = dict(zip(b"tbBsuIilLfdDTV\x00?", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0, 0, 0), strict=True))
    return bytes((kind,)) + inputs.choice((inputs.randbytes(sizes[kind]), b"\xff" * sizes[kind], bytes(sizes[kind])))


def test_fuzz_messages_of_sqs() -> None:
    """Attributes of both types, those of the library with other values, and messages without parts."""
    inputs = Inputs()
    own = (sqs_wire.HEADERS, sqs_wire.BODY, sqs_wire.DUE)
    for _ in inputs.rounds():
        attributes: dict[str, Any] = {}
        for _ in range(inputs.randrange(4)):
            name = inputs.choice(own) if inputs.random() < 0.5 else inputs.choice(NAMES)
            attributes[name] = inputs.choice(({"StringValue": value(inputs)}, {"BinaryValue": inputs.data()}, {}))
        if inputs.random() < 0.3:
            pairs = msgspec.json.encode([["ce-id", "1"], ["x", "y"]])
            attributes[sqs_wire.HEADERS] = {"StringValue": inputs.document(pairs).decode("utf-8", "surrogateescape")}
        system = {"ApproximateReceiveCount": "1", "MessageGroupId": inputs.word(), "MessageDeduplicationId": inputs.word()}
        message = {
            "MessageAttributes": attributes,
            "Attributes": system,
            "Body": inputs.word(),
            "ReceiptHandle": "r",
            "MessageId": "m",
        }
        got = sqs_wire.read({name: each for name, each in message.items() if inputs.random() < 0.9})
        assert got.due >= 0
        sqs_wire.group_of(got.headers)
        is_read(inputs, got.headers, got.body)


def test_fuzz_messages_of_azure_queues() -> None:
    """Texts: events, compressed ones, base64, marks."""
    inputs = Inputs()
    message = rich_message()
    plain = [
        queue_wire.write(*encode(Send(message=message, to="shop", history=failures())), due=5),
        queue_wire.write((("ce-id", "1"), ("x", "y")), bytes(30_000) + b"\xff" * 30_000),
        queue_wire.write((("ce-id", "1"), ("x", "y")), b"\0"),
    ]
    texts = [text.encode() for text in plain if text]
    assert len(texts) == len(plain)
    for _ in inputs.rounds():
        source = body(inputs) if inputs.random() < 0.5 else inputs.changed(inputs.choice(texts))
        source = b64encode(source) if inputs.random() < 0.1 else source
        text = source.decode("utf-8", inputs.choice(("replace", "surrogateescape")))
        text = (
            inputs.choice(("onceonly-zlib:", "onceonly-released:5\n", "onceonly-released:x\n")) + text
            if inputs.random() < 0.1
            else text
        )
        text, count = queue_wire.unmarked(text)
        assert count >= 0
        got = queue_wire.read(text, "id")
        assert got.due >= 0
        is_read(inputs, got.headers, got.body)


def test_fuzz_messages_of_service_bus() -> None:
    """Properties and bodies of every AMQP type."""
    inputs = Inputs()
    for _ in inputs.rounds():
        properties = {
            inputs.choice((servicebus_wire.MORE, b"cloudEvents_id", "\ud800", 5, *NAMES)): _value(inputs, 3)
            for _ in range(inputs.randrange(5))
        }
        kind = inputs.choice((*AmqpMessageBodyType, "unknown"))
        message = SimpleNamespace(
            application_properties=inputs.choice((properties, None)),
            body_type=kind,
            body=inputs.choice((None, iter([b"a", inputs.data()]), [_value(inputs, 2)], _value(inputs, 2), b"{}", "text")),
            **{
                name: inputs.choice((None, _value(inputs, 1), "onceonly-1"))
                for name in ("content_type", "message_id", "correlation_id", "reply_to", "subject", "session_id")
            },
        )
        content, problem = servicebus_wire.body_of(cast("Any", message))
        assert isinstance(content, bytes)
        assert isinstance(problem, str)
        is_read(inputs, servicebus_wire.headers_of(cast("Any", message)), content)


def _value(inputs: Inputs, depth: int) -> Any:
    """Return what the SDK reads as a value of AMQP."""
    scalars = (value(inputs), value(inputs).encode(errors="surrogatepass"), UUID(int=inputs.getrandbits(128)), Decimal("1.5"))
    if depth == 0 or inputs.random() < 0.7:
        return inputs.choice((*scalars, inputs.scalar(), bytearray(b"\xff"), memoryview(b"x")))
    parts = [_value(inputs, depth - 1) for _ in range(inputs.randrange(3))]
    return parts if inputs.random() < 0.5 else {inputs.choice(("a", b"b", 1)): part for part in parts}


def test_fuzz_messages_of_redis() -> None:
    """Fields of an entry as scripts pass them on, also bytes that are not UTF-8."""
    inputs = Inputs()
    for _ in inputs.rounds():
        fields = [
            part
            for _ in range(inputs.randrange(5))
            for part in (
                inputs.choice((b"ce-id", b"data", entries.MORE.encode(), inputs.data())),
                inputs.document(b'[["ce-type","x"],["a","b"]]') if inputs.random() < 0.5 else inputs.data(),
            )
        ]
        got = entries.from_entry(entries._pack_raw(fields))
        assert [part.encode("utf-8", "surrogateescape") for part in got] == fields
        is_read(inputs, entries.headers_of(got), body(inputs))
