"""Hostile messages: every AMQP property, every kind of header, every CloudEvents attribute, with every hostile value.

What is expected of each: HANDLED, once; DEAD, a dead letter with a reason; or SETTLED, one of the two, where the promise leaves
it open which, such as for a property that nobody needs to read.
"""

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tests.adversary.raw_amqp import cloud_event, field, nested, properties, table, text

HANDLED, DEAD, SETTLED = "handled", "dead letter", "handled or dead letter"


class Case(NamedTuple):
    """One message: its raw AMQP properties, its body, and what is expected."""

    name: str
    raw: bytes
    body: bytes = b"{}"
    expected: str = HANDLED


class Shared(NamedTuple):
    """One message that every transport can carry: headers as text, and a body."""

    name: str
    headers: list[tuple[str, str]]
    body: bytes = b"{}"
    expected: str = HANDLED


TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "message_type", "app_id", "cluster_id")
HOSTILE_TEXTS = {
    "empty": b"",
    "latin-1": b"M\xfcller",
    "255 bytes": b"x" * 255,
    "NUL": b"a\0b",
    "controls": b"\x1b[2J\x7f\xc2\x9b\xe2\x80\xae",
    "line feeds": b"a\r\nb: c",
    "lone surrogate": b"\xed\xa0\x80",
}
TIMES = {
    "0": 0,
    "milliseconds": 1_790_000_000_000,
    "microseconds": 1_790_000_000_000_000,
    "nanoseconds": 1_790_000_000_000_000_000,
    "2^63 - 1": 2**63 - 1,
    "2^63": 2**63,
    "2^64 - 1": 2**64 - 1,
}
VALUES = {
    "boolean": (b"t", b"\2"),
    "int8": (b"b", b"\x80"),
    "uint8": (b"B", b"\xff"),
    "int16": (b"s", b"\x80\0"),
    "uint16": (b"u", b"\xff\xff"),
    "int32": (b"I", b"\x80\0\0\0"),
    "uint32": (b"i", b"\xff\xff\xff\xff"),
    "int64": (b"l", b"\x80" + b"\0" * 7),
    "float NaN": (b"f", struct.pack(">f", float("nan"))),
    "double infinity": (b"d", struct.pack(">d", float("inf"))),
    "decimal of scale 255": (b"D", b"\xff\x7f\xff\xff\xff"),
    "decimal of scale 0": (b"D", b"\0\xff\xff\xff\xff"),
    "time in nanoseconds": (b"T", (1_790_000_000_000_000_000).to_bytes(8)),
    "time 2^64 - 1": (b"T", b"\xff" * 8),
    "void": (b"V", b""),
    "bytes": (b"x", text(b"\xff\0\xfe")),
    "text in latin-1": (b"S", text(b"M\xfcller")),
    "text of 60 KB": (b"S", text(b"x" * 60_000)),
    "empty table": (b"F", table()),
    "table nested 100 deep": (b"F", nested(100)),
    "table nested 2,000 deep": (b"F", nested(2000)),
    "array nested 2,000 deep": (b"F", nested(2000, arrays=True)),
    "array of 10,000 booleans": (b"A", text(b"t\1" * 10_000)),
}
NAMES = {
    "empty": b"",
    "latin-1": b"M\xfcller",
    "128 bytes": b"n" * 128,
    "129 bytes": b"n" * 129,
    "255 bytes": b"n" * 255,
    "NUL": b"a\0b",
    "controls": b"\x1b[2J\x7f",
    "line feed": b"a\nb",
    "ce- and nothing": b"ce-",
    "x-death": b"x-death",
    "CC": b"cC",
}
EVENT_TEXTS: dict[str, dict[str, tuple[bytes, str]]] = {
    "id": {
        "empty": (b"", DEAD),
        "latin-1 u": (b"M\xfcller", SETTLED),
        "latin-1 o": (b"M\xf6ller", SETTLED),
        "1,024 bytes": (b"i" * 1024, HANDLED),
        "1,025 bytes": (b"i" * 1025, DEAD),
        "60 KB": (b"i" * 60_000, DEAD),
        "NUL": (b"n\0ul", SETTLED),
        "lone surrogate": (b"\xed\xa0\x80", SETTLED),
        "controls": (b"\x1b[2J\x7f", SETTLED),
        "line feed": (b"a\nb", SETTLED),
        "blank": (b" ", SETTLED),
        "quotes": (b"'; DROP TABLE effects; --", HANDLED),
        "right to left": ("\u202eabc".encode(), SETTLED),
    },
    "source": {
        "empty": (b"", SETTLED),
        "latin-1": (b"M\xfcller", SETTLED),
        "1,024 bytes": (b"s" * 1024, HANDLED),
        "1,025 bytes": (b"s" * 1025, DEAD),
        "NUL": (b"n\0ul", SETTLED),
        "controls": (b"\x1b[2J\x7f", SETTLED),
        "quotes": (b"'; DROP TABLE effects; --", HANDLED),
    },
    "type": {
        "empty": (b"", DEAD),
        "unknown": (b"Nobody", DEAD),
        "latin-1": (b"M\xfcller", DEAD),
        "256 bytes": (b"t" * 256, DEAD),
        "60 KB": (b"t" * 60_000, DEAD),
        "NUL": (b"n\0ul", DEAD),
        "other case": (b"ORDER", DEAD),
    },
    "time": {
        "garbage": (b"yesterday", SETTLED),
        "year 0": (b"0000-00-00T00:00:00Z", SETTLED),
        "year 99999": (b"99999-01-01T00:00:00Z", SETTLED),
        "latin-1": (b"\xfc", SETTLED),
    },
    "subject": {"60 KB": (b"s" * 60_000, SETTLED), "NUL": (b"n\0ul", SETTLED), "latin-1": (b"\xfc", SETTLED)},
    "specversion": {"0.3": (b"0.3", SETTLED), "empty": (b"", SETTLED), "latin-1": (b"\xfc", SETTLED)},
    "datacontenttype": {"garbage": (b"//", SETTLED), "latin-1": (b"\xfc", SETTLED), "60 KB": (b"d" * 60_000, SETTLED)},
    "conversationid": {
        "1,024 bytes": (b"c" * 1024, HANDLED),
        "60 KB": (b"c" * 60_000, SETTLED),
        "latin-1": (b"\xfc", SETTLED),
        "NUL": (b"n\0ul", SETTLED),
        "controls": (b"\x1b[2J\x7f", SETTLED),
    },
    "causationid": {"60 KB": (b"c" * 60_000, SETTLED), "latin-1": (b"\xfc", SETTLED)},
    "replyto": {"garbage": (b"no endpoint!", SETTLED), "latin-1": (b"\xfc", SETTLED)},
    "traceparent": {"garbage": (b"00-zz", SETTLED), "60 KB": (b"t" * 60_000, SETTLED)},
    "token": {"garbage": (b"\x1b", SETTLED), "60 KB": (b"t" * 60_000, SETTLED)},
    "onceonlyhops": {
        "garbage": (b"many", SETTLED),
        "negative": (b"-1", SETTLED),
        "30 digits": (b"9" * 30, SETTLED),
        "empty": (b"", SETTLED),
    },
    "onceonlyattempts": {
        "999999999": (b"999999999", SETTLED),
        "negative": (b"-1", SETTLED),
        "30 digits": (b"9" * 30, SETTLED),
        "garbage": (b"\xfc", SETTLED),
    },
    "onceonlyhistory": {
        "garbage": (b"[", SETTLED),
        "30-digit time": (b'[{"kind":"exception","reason":"r","at":' + b"9" * 30 + b"}]", SETTLED),
        "negative time": (b'[{"kind":"exception","reason":"r","at":-9223372036854775808}]', SETTLED),
        "1,000 entries": (b"[" + b",".join([b'{"kind":"killed","reason":"r"}'] * 1000) + b"]", SETTLED),
        "nested": (b"[" * 5000, SETTLED),
        "reason with NUL": (b'[{"kind":"exception","reason":"a\\u0000b"}]', SETTLED),
        "lone surrogate": (b'[{"kind":"exception","reason":"\\ud800"}]', SETTLED),
    },
    "onceonlyalone": {"garbage": (b"\xfc", SETTLED), "1": (b"1", HANDLED)},
}
BODIES: dict[str, tuple[bytes, bytes, str]] = {
    "empty": (b"Order", b"", HANDLED),
    "NUL": (b"Order", b"\0" * 100, HANDLED),
    "not UTF-8": (b"Order", b"\xff" * 100, HANDLED),
    "2 MB": (b"Order", b"x" * 2_000_000, SETTLED),
    "JSON: empty": (b"Typed", b"", DEAD),
    "JSON: not UTF-8": (b"Typed", b'{"n\xff": 1}', DEAD),
    "JSON: cut off": (b"Typed", b'{"n": 1', DEAD),
    "JSON: nested 100,000 deep": (b"Typed", b"[" * 100_000, DEAD),
    "JSON: integer of 5,000 digits": (b"Typed", b'{"n": ' + b"9" * 5000 + b"}", DEAD),
    "JSON: NaN": (b"Typed", b'{"n": NaN}', DEAD),
    "JSON: lone surrogate": (b"Typed", b'{"\\ud800": 1}', DEAD),
    "JSON: byte order mark": (b"Typed", b'\xef\xbb\xbf{"n": 1}', SETTLED),
    "JSON: a key twice": (b"Typed", b'{"n": 1, "n": 2}', HANDLED),
    "JSON: another type": (b"Typed", b'{"n": "one"}', DEAD),
}
STRUCTURED: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"no", DEAD),
    "a list": (b"[]", DEAD),
    "empty": (b"", DEAD),
    "nested 100,000 deep": (b"[" * 100_000, DEAD),
    "id is null": (b'{"id":null,"source":"s","type":"Order","specversion":"1.0"}', DEAD),
    "id is an object": (b'{"id":{},"source":"s","type":"Order","specversion":"1.0"}', DEAD),
    "id is a number": (b'{"id":%d,"source":"s","type":"Order","specversion":"1.0","data":{}}', HANDLED),
    "id is a lone surrogate": (b'{"id":"\\ud800","source":"s","type":"Order","specversion":"1.0"}', SETTLED),
    "data_base64 is none": (b'{"id":"b","source":"s","type":"Order","specversion":"1.0","data_base64":"!"}', DEAD),
    "hops are a number of 30 digits": (
        b'{"id":"t%d","source":"s","type":"Order","specversion":"1.0","onceonlyhops":' + b"9" * 30 + b',"data":1}',
        SETTLED,
    ),
}


def amqp_cases() -> Iterator[Case]:
    """Return every case, each with an id of its own where the id is not what is hostile."""
    yield from _properties()
    yield from _headers()
    yield from _attributes()
    yield from _bodies()


def _properties() -> Iterator[Case]:
    for name in TEXTS:
        for what, value in HOSTILE_TEXTS.items():
            id_ = f"{name} {what}".encode()
            yield Case(f"{name}: {what}", properties(headers=cloud_event(id_), **{name: value}), expected=SETTLED)
    for what, value in TIMES.items():
        yield Case(
            f"timestamp: {what}", properties(headers=cloud_event(f"ts {what}".encode()), timestamp=value), expected=SETTLED
        )
    for mode in (0, 1, 3, 255):
        yield Case(f"delivery mode: {mode}", properties(headers=cloud_event(b"mode %d" % mode), delivery_mode=mode))
    for priority in (0, 10, 255):
        yield Case(f"priority: {priority}", properties(headers=cloud_event(b"priority %d" % priority), priority=priority))
    yield Case("no property at all", b"\0\0", b"none at all", DEAD)
    yield Case("no headers", properties(), b"no headers", DEAD)


def _headers() -> Iterator[Case]:
    for what, (kind, value) in VALUES.items():
        headers = cloud_event(f"value {what}".encode(), more=(field(b"x-odd", kind, value),))
        yield Case(f"header value: {what}", properties(headers=headers), expected=SETTLED)
        headers = table(
            *(
                field(b"ce-" + name, b"S", text(said))
                for name, said in ((b"specversion", b"1.0"), (b"source", f"id is {what}".encode()), (b"type", b"Order"))
            ),
            field(b"ce-id", kind, value),
        )
        yield Case(f"id as a header value: {what}", properties(headers=headers), expected=SETTLED)
    for what, named in NAMES.items():
        headers = cloud_event(f"name {what}".encode(), more=(field(named, b"S", text(b"x")),))
        yield Case(f"header name: {what}", properties(headers=headers), expected=SETTLED)
    many = tuple(field(b"h%d" % number, b"S", text(b"x")) for number in range(3000))
    yield Case("3,000 headers", properties(headers=cloud_event(b"many", more=many)), expected=SETTLED)
    twice = field(b"ce-id", b"S", text(b"the second id"))
    yield Case("the id twice", properties(headers=cloud_event(b"the first id", more=(twice,))), expected=SETTLED)
    upper = field(b"CE-ID", b"S", text(b"the upper id"))
    yield Case("the id in two cases", properties(headers=cloud_event(b"the lower id", more=(upper,))), expected=SETTLED)


def _attributes() -> Iterator[Case]:
    for attribute, values in EVENT_TEXTS.items():
        for what, (value, expected) in values.items():
            said = {b"id": f"{attribute} {what}".encode(), b"source": b"raw", b"type": b"Order", attribute.encode(): value}
            headers = table(*(field(b"ce-" + name, b"S", text(each)) for name, each in said.items()))
            yield Case(f"{attribute}: {what}", properties(headers=headers), b"1", expected)
    for missing in (b"id", b"source", b"type"):
        said = {b"id": b"without " + missing, b"source": b"raw", b"type": b"Order", b"specversion": b"1.0"}
        del said[missing]
        headers = table(*(field(b"ce-" + name, b"S", text(each)) for name, each in said.items()))
        expected = SETTLED if missing == b"source" else DEAD
        yield Case(f"{missing.decode()}: missing", properties(headers=headers), b"without " + missing, expected)


def _bodies() -> Iterator[Case]:
    for what, (kind, body, expected) in BODIES.items():
        headers = cloud_event(f"body {what}".encode(), type_=kind)
        yield Case(f"body: {what}", properties(headers=headers), body, expected)
    for number, (what, (body, expected)) in enumerate(STRUCTURED.items()):
        body = body.replace(b"%d", b"%d" % (7000 + number))  # noqa: PLW2901 - a number of its own
        yield Case(f"structured: {what}", properties(content_type=b"application/cloudevents+json"), body, expected)


def shared_cases() -> Iterator[Shared]:
    """Return the cases that every transport can carry."""
    for attribute, values in EVENT_TEXTS.items():
        for what, (value, expected) in values.items():
            if what in {"latin-1", "latin-1 u", "latin-1 o", "lone surrogate"} or b"\xfc" in value or len(value) > 10_000:
                continue  # text cannot hold it
            said = {"id": f"{attribute} {what}", "source": "raw", "type": "Order", attribute: value.decode()}
            yield Shared(f"{attribute}: {what}", [(f"ce-{name}", each) for name, each in said.items()], b"1", expected)
    for what, (kind, body, expected) in BODIES.items():
        said = {"id": f"body {what}", "source": "raw", "type": kind.decode()}
        yield Shared(f"body: {what}", [(f"ce-{name}", each) for name, each in said.items()], body, expected)


SHARED_ON_EVERY_SYSTEM = 3
"""Every so manyth shared case runs on the systems other than PostgreSQL with RabbitMQ."""

ODD_ROWS: dict[str, str] = {
    "no JSON": "no",
    "empty": "",
    "an object": "{}",
    "pairs of numbers": "[[1, 2]]",
    "three in a pair": '[["ce-id", "a", "b"]]',
    "nested 100,000 deep": "[" * 100_000,
    "lone surrogates": '[["ce-id", "\\ud800"]]',
    "cut off": json.dumps([["ce-id", "x"]])[:-2],
}
"""What a foreign program may write as the headers of a row: all of it becomes dead letters."""
