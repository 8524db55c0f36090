"""Formats of messages on the wire: what is written is read back equal, and what would not be is refused at the call.

`ONCEONLY_FUZZ` sets the number of generated messages for each test.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceonly import CloudEvents, Endpoint, IdentityHeader, PlainJson, Queue, SetupError, Tokens, testing
from onceonly.config.destinations import DestinationPolicy
from onceonly.endpoint.host import host_of
from onceonly.endpoint.message_builder import MessageBuilder, Origin
from onceonly.errors import InvalidEffect
from onceonly.formats.cloudevents import arrival, encode
from onceonly.formats.identity import NoIdentity
from onceonly.formats.message_formats import is_cloudevent, read_formatted, write_formatted
from onceonly.formats.records import decode_record, encode_record
from onceonly.model.identity import Identity
from onceonly.model.message import Headers, Message, Send, Unreadable
from onceonly.model.record import Record
from onceonly.ports.transport import DestinationRule
from onceonly.types import MessageFormat, MessageParts, WrittenMessage
from tests.endpoint.harness import NOW, delivery, endpoint, read, unreadable
from tests.fuzzing import inputs

ORIGIN = Origin(Identity("web", "m1"), 0)
PLAIN = PlainJson(source="x-source")


@dataclass
class Order:
    """A message."""

    id: str
    kind: str = "Order"


class Envelope:
    """A format whose message is inside the body, with everything else."""

    def read(self, headers: Headers, body: bytes) -> MessageParts:
        """Read the envelope."""
        found = msgspec.json.decode(body, type=dict[str, Any])
        return MessageParts(
            id=found["id"],
            type=found["type"],
            body=msgspec.json.decode(msgspec.json.encode(found["message"]), type=bytes),
            extensions=(("expirytime", found["expires"]),),
            headers=tuple(found["headers"].items()),
        )

    def write(self, message: Message) -> WrittenMessage:
        """Write it, with the body in base64."""
        envelope = {
            "id": message.id,
            "type": message.type,
            "message": message.body,
            "expires": message.extension("expirytime"),
            "headers": dict(message.headers),
        }
        return WrittenMessage(body=msgspec.json.encode(envelope), content_type="application/vnd.envelope+json")


@dataclass(frozen=True)
class Broken:
    """`Envelope` with one mistake, made to what is written or to what is read."""

    written: Callable[[WrittenMessage], Any] = lambda found: found
    parts: Callable[[MessageParts], Any] = lambda found: found

    def read(self, headers: Headers, body: bytes) -> Any:
        """Read wrongly."""
        return self.parts(Envelope().read(headers, body))

    def write(self, message: Message) -> Any:
        """Write wrongly."""
        return self.written(Envelope().write(message))


def built(body: object, format_: Any, to: Any = "sales", **options: Any) -> Send:
    """Return the message that an endpoint with this format sends."""
    limits = {name: options.pop(name) for name in ("max_body", "carries_headers") if name in options}
    builder = MessageBuilder("shop", **{"max_body": 100_000} | limits, format_=format_)
    return builder.build(body, to, options, ORIGIN, now=NOW, cause=(("conversationid", "c-1"), ("replyto", "shop")))


def refused(body: object, format_: Any, **options: Any) -> str:
    """Return why a message cannot be sent."""
    with pytest.raises(InvalidEffect) as caught:
        built(body, format_, **options)
    return str(caught.value)


def test_a_message_is_written_when_it_is_built() -> None:
    """The stored record has the final headers and bytes, without attributes."""
    send = built(Order("A-1"), PlainJson(), headers={"tenant": "acme"})
    record = Record(Identity("shop", "x"), (send,))
    (stored,) = decode_record(record.identity, encode_record(record)).effects
    assert stored == send
    headers, body = encode(stored)
    expected = {"content-type": "application/json", "message-id": send.message.id, "type": "Order"}
    assert dict(headers) == expected | {"correlation-id": "c-1", "tenant": "acme"}
    assert body == b'{"id":"A-1","kind":"Order"}'


def test_a_record_without_the_flag_is_a_cloudevent() -> None:
    """As earlier versions have stored it."""
    send = built(Order("A-1"), CloudEvents())
    assert send.formatted is False
    assert b"formatted" not in encode_record(Record(Identity("shop", "x"), (send,)))
    assert dict(encode(send)[0])["ce-id"] == send.message.id


def test_a_destination_has_a_format_of_its_own() -> None:
    """Which may be CloudEvents again."""
    known = MessageBuilder("shop", max_body=1000, format_=PLAIN)
    assert known._format_of(Queue("Sales", format=CloudEvents())) is None
    assert known._format_of(Queue("Sales")) is PLAIN
    assert known._format_of(Queue("Sales", format=PlainJson())) == PlainJson()
    with pytest.raises(InvalidEffect, match="cannot send to queue:Sales: format must be"):
        known._format_of(Queue("Sales", format="json"))


DESTINATIONS = DestinationPolicy(
    rules=(DestinationRule(kind="queue"),),
    events=lambda type_: Queue("billed", format=PlainJson(type="kind")) if type_ == "Billed" else None,
)


@pytest.mark.parametrize(
    ("to", "type_", "name"),
    [
        ("sales", "Order", "x-source"),
        ("", "Order", "x-source"),
        (Queue("Sales"), "Order", "x-source"),
        (Queue("Sales", format=PlainJson(type="order-type")), "Order", "order-type"),
        (Queue("Sales", format=CloudEvents()), "Order", "ce-type"),
        ("", "Billed", "kind"),
    ],
)
def test_a_message_has_the_format_of_where_it_goes(to: Any, type_: str, name: str) -> None:
    """A destination decides before the endpoint, also one that a rule for events has chosen."""
    builder = MessageBuilder("shop", max_body=1000, format_=PLAIN, destinations=DESTINATIONS)
    send = builder.build(Order("A-1"), to, {"type": type_}, ORIGIN, now=NOW)
    assert name in dict(encode(send)[0])
    assert send.formatted == (name != "ce-type")


async def test_one_id_in_one_transaction_is_one_message() -> None:
    """Whatever the envelopes say: they may have been written at two times."""
    times = iter(range(9))
    dated = Broken(written=lambda w: msgspec.structs.replace(w, body=w.body[:-1] + b',"at":%d}' % next(times)))
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://shop", format=dated)

    @shop.handler
    async def take(_order: Order) -> None:
        """Do nothing."""

    async with testing.run(shop) as t:
        async with shop.transaction() as tx:
            for _ in range(2):
                tx.send(Order("A-1"), to="shop", id="o-1")
            with pytest.raises(InvalidEffect, match="was used for another message"):
                tx.send(Order("A-2"), to="shop", id="o-1")
        report = await t.settle()
        assert (report.handled, report.known) == (1, 1)


NAMES = st.text("aZ09._-", max_size=9).map("x".__add__)
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXTS, inside, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("format_", [PlainJson(), PLAIN, Envelope()], ids=["plain", "source", "envelope"])
def test_what_is_written_reads_back_equal(format_: MessageFormat) -> None:
    """Id, type, body and headers; or the call refuses it."""
    receiver = host_of(shop(format_)).handlers()

    @settings(max_examples=max(20, inputs() // 4), database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        body=JSON_VALUES | st.binary(max_size=9) | st.builds(Order, TEXTS),
        type_=TEXTS,
        headers=st.dictionaries(NAMES, TEXTS, max_size=3),
        id_=TEXTS | st.none(),
    )
    def check(body: Any, type_: str, headers: dict[str, str], id_: str | None) -> None:
        options = {"type": type_, "headers": headers} | ({} if id_ is None else {"id": id_})
        try:
            send = built(body, format_, **options)
        except InvalidEffect:
            return
        sealed = built(body, CloudEvents(), **options).message
        found = receiver.read(arrival(1, "shop", *encode(send), suspect=False))
        assert isinstance(found, Message), found
        assert (found.id, found.type, found.body) == (sealed.id, sealed.type, sealed.body)
        assert set(sealed.headers) <= set(found.headers)
        assert found.identity.id == send.message.id

    check()


MISTAKES: dict[str, tuple[Any, str]] = {
    "another id": (Broken(parts=lambda p: msgspec.structs.replace(p, id="x")), "another id: 'x' for"),
    "another type": (Broken(parts=lambda p: msgspec.structs.replace(p, type="x")), "another type: 'x' for 'Order'"),
    "another body": (Broken(parts=lambda p: msgspec.structs.replace(p, body=b"{}")), "another body: b'{}' for"),
    "another source": (Broken(parts=lambda p: msgspec.structs.replace(p, source="x")), "another source: 'x' for 'shop'"),
    "no header": (Broken(parts=lambda p: msgspec.structs.replace(p, headers=())), "another value of header 'tenant'"),
    "no expiry": (Broken(parts=lambda p: msgspec.structs.replace(p, extensions=())), "another expiry: '' for"),
    "no id": (Broken(parts=lambda p: msgspec.structs.replace(p, id=" ")), "Broken read no id"),
    "not text": (Broken(parts=lambda p: msgspec.structs.replace(p, type=5)), "returned type=5: it must be text"),
    "no parts": (Broken(parts=lambda _: None), "returned a NoneType: return MessageParts"),
    "no pairs": (Broken(parts=lambda p: msgspec.structs.replace(p, headers=("ab",))), "pairs of texts"),
    "own extension": (
        Broken(parts=lambda p: msgspec.structs.replace(p, extensions=(("onceonlyattempts", "1"),))),
        "the extension 'onceonlyattempts'",
    ),
    "error": (Broken(parts=lambda p: p.id + 1), "Broken failed: TypeError"),
    "error when written": (Broken(written=lambda w: w.nothing), "Broken failed: AttributeError"),
    "nothing written": (Broken(written=lambda _: None), "returned a NoneType: return WrittenMessage"),
    "text as the body": (Broken(written=lambda w: msgspec.structs.replace(w, body="x")), "return WrittenMessage"),
    "reserved header": (
        Broken(written=lambda w: msgspec.structs.replace(w, headers=(("ce-id", "1"),))),
        "the header 'ce-id' is reserved",
    ),
    "header twice": (Broken(written=lambda w: msgspec.structs.replace(w, headers=(("a", "1"), ("a", "2")))), "a header twice"),
    "long header": (Broken(written=lambda w: msgspec.structs.replace(w, headers=(("a", "x" * 9000),))), "the limit is 8,192"),
    "media type": (Broken(written=lambda w: msgspec.structs.replace(w, content_type="json")), "must be a media type"),
    "structured": (
        Broken(written=lambda w: msgspec.structs.replace(w, content_type="application/cloudevents+json")),
        "a whole CloudEvent",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_broken_format_is_refused_at_the_call(mistake: str) -> None:
    """The receiver could not read it, or would take it for another message."""
    format_, words = MISTAKES[mistake]
    options = {"headers": {"tenant": "acme"}, "expires": timedelta(hours=1)}
    assert built(Order("A-1"), Envelope(), **options).formatted
    reason = refused(Order("A-1"), format_, **options)
    assert reason.startswith("cannot send Order: ")
    assert words in reason


def test_an_option_that_a_format_does_not_carry_is_refused() -> None:
    """Receivers would ignore the expiry."""
    assert "another expiry" in refused(Order("A-1"), PlainJson(), expires=timedelta(hours=1))


def test_a_written_message_has_the_limits_of_the_transport() -> None:
    """The envelope may be longer than the body, and some brokers have no headers."""
    assert "makes it 5" in refused({"a": "b" * 300}, Envelope(), type="x", max_body=400)
    assert "writes headers (message-id, type, correlation-id), and this transport has none" in refused(
        Order("A-1"), PlainJson(), carries_headers=False
    )
    fields = PlainJson(id="$.id", type="$.kind", conversation=None)
    assert built(Order("A-1"), fields, carries_headers=False, id="A-1").message.headers == ()


def test_a_field_holds_what_the_message_has() -> None:
    """Nothing is added to a body."""
    fields = PlainJson(id="$.id", type="$.kind")
    assert built(Order("A-1"), fields, id="A-1").message.body == b'{"id":"A-1","kind":"Order"}'
    assert "field 'id' holds the id of the message" in refused(Order("A-1"), fields)
    assert "field 'kind' holds the type of the message" in refused(Order("A-1", kind="x"), fields, id="A-1")
    assert "the body is not JSON" in refused(b"{", fields, id="A-1", type="Order")


def shop(format_: Any = PLAIN) -> Endpoint:
    """Make an endpoint with handlers for two types."""
    made = endpoint(format=format_)

    @made.handler(type="Order")
    @made.handler(type="Other")
    async def take(_order: Order) -> None:
        """Do nothing."""

    return made


def test_a_message_in_plain_json_is_read() -> None:
    """All headers are kept, and the properties that RabbitMQ shows count."""
    arrived = delivery(b'{"id":"1"}', Message_Id="m-1", ce_type="Order", correlation_id="c", x_source="till")
    message = read(shop(), arrived)
    assert (message.id, message.type, message.source, message.extension("conversationid")) == ("m-1", "Order", "till", "c")
    assert message.headers == (("Message-Id", "m-1"), ("correlation-id", "c"), ("x-source", "till"))
    assert read(shop(PlainJson()), arrived).source == "shop"
    assert read(shop(), delivery(message_id="1", type="Order", traceparent="t")).extension("traceparent") == "t"


@pytest.mark.parametrize(
    ("format_", "headers", "body", "reason"),
    [
        (PLAIN, {}, b"{}", "no identity: header 'message-id' is missing or empty"),
        (PLAIN, {"message_id": "1", "MESSAGE_ID": "2"}, b"{}", "cannot be read: header 'message-id' has 2 values"),
        (PlainJson(id="$.a.b"), {}, b'{"a":1}', "no identity: field 'a.b' is missing or empty"),
        (PlainJson(id="$.a"), {}, b'{"a":[]}', "cannot be read: field 'a' must be text or an integer, not a list"),
        (PlainJson(id="$.a"), {}, b"{", "cannot be read: the body is not JSON"),
        (PlainJson(id="$.a"), {}, b"[" * 100_000, "cannot be read: the body is not JSON"),
        (Envelope(), {}, b"{}", "cannot be read: Envelope failed: KeyError: 'id'"),
        (PLAIN, {"message_id": "x" * 3000}, b"{}", "is 3,000 bytes long"),
        (PLAIN, {"message_id": "\ud800"}, b"{}", "not valid UTF-8"),
    ],
)
def test_what_cannot_be_read_says_why(format_: Any, headers: dict[str, str], body: bytes, reason: str) -> None:
    """The message is a dead letter with this reason."""
    assert reason in unreadable(shop(format_), delivery(body, **headers)).reason


def test_cloudevents_are_read_with_every_format() -> None:
    """Retry copies are CloudEvents: they have the headers as they arrived, and the body that the handler gets."""
    first = read(shop(), delivery(message_id="1", type="Order", tenant="acme"))
    headers, body = encode(Send(message=first, to="shop", attempts=2))
    assert is_cloudevent(headers)
    copy = read(shop(), arrival(2, "shop", headers, body, suspect=False))
    assert (copy.identity, copy.body, copy.type, copy.headers) == (first.identity, first.body, "Order", first.headers)
    assert copy.fingerprint == first.fingerprint
    event = delivery(b'{"specversion":"1.0","id":"e","type":"Order","data":{}}', content_type="application/cloudevents+json")
    assert read(shop(), event).id == "e"


def test_only_the_message_inside_an_envelope_is_compared() -> None:
    """What else is in the envelope may differ from copy to copy."""
    first, second = (
        msgspec.json.encode(
            {"id": "1", "type": "Order", "message": b"{}", "expires": "", "headers": {}, "sentTime": at},
        )
        for at in ("a", "b")
    )
    assert first != second
    assert read(shop(Envelope()), delivery(first)).fingerprint == read(shop(Envelope()), delivery(second)).fingerprint


def test_cloudevents_are_a_format_too() -> None:
    """For formats that are built on it."""
    message = built(Order("A-1"), CloudEvents()).message
    written = CloudEvents().write(message)
    parts = CloudEvents().read((("content-type", written.content_type), *written.headers), written.body)
    assert (parts.id, parts.type, parts.source, parts.body) == (message.id, "Order", "shop", message.body)
    assert (parts.conversation, parts.extensions[0][0]) == ("c-1", "replyto")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "json"}, "format must be CloudEvents(), PlainJson(...) or an object with the methods read and write, not"),
        ({"format": PlainJson}, "format must be CloudEvents()"),
        ({"format": PLAIN, "identity": IdentityHeader("x")}, "identity cannot be used with format"),
        ({"format": PLAIN, "deduplication": Tokens("memory://t")}, "tokens are attributes of CloudEvents"),
    ],
)
def test_a_wrong_setting_is_told(given: dict[str, Any], words: str) -> None:
    """With what to write instead."""
    with pytest.raises(SetupError) as caught:
        endpoint(**given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [*({"id": wrong} for wrong in ("", None, "$", "$id", "$.a..b", "$.a[0].id")), {"type": "$."}, {"source": 5}],
)
def test_a_wrong_place_is_told(wrong: dict[str, Any]) -> None:
    """When the format is made."""
    with pytest.raises(ValueError, match="must be the name of a header, or a field"):
        PlainJson(**wrong)


def test_a_header_has_one_meaning() -> None:
    """Names of headers are the same in any case. A field can be both the id and the conversation."""
    with pytest.raises(ValueError, match="id and type are both the header 'x-ID'"):
        PlainJson(id="X-Id", type="x-ID")
    assert PlainJson(id="$.id", conversation="$.id").id == "$.id"


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_header_of_the_application_replaces_the_trace() -> None:
    """As with CloudEvents. Otherwise a handler that carries `traceparent` on would fail at each traced message."""
    message = msgspec.structs.replace(built(Order("A-1"), CloudEvents()).message, extensions=(("traceparent", TRACE),))
    assert dict(write_formatted(PlainJson(), message).headers)["traceparent"] == TRACE
    own = msgspec.structs.replace(message, headers=(("TraceParent", "mine"),))
    traces = [pair for pair in write_formatted(PlainJson(), own).headers if pair[0].lower() == "traceparent"]
    assert traces == [("TraceParent", "mine")]


def test_a_header_that_the_format_writes_too_is_named() -> None:
    """One with the same value is written once, such as an id of a conversation that a handler carries on."""
    send = built(Order("A-1"), PlainJson(), headers={"Correlation-Id": "c-1"})
    assert [value for name, value in send.message.headers if name.lower() == "correlation-id"] == ["c-1"]
    assert "the header 'correlation-id' is written by PlainJson. Remove it from headers= and carry_headers=" in refused(
        Order("A-1"), PlainJson(), headers={"Correlation-Id": "x"}
    )


def test_fuzz_formats() -> None:
    """Whatever arrives is a message, or there is a reason why not."""
    handlers = [host_of(shop(each)).handlers() for each in (PLAIN, PlainJson(id="$.id", type="$.type"), Envelope())]

    @settings(max_examples=inputs(), database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        headers=st.lists(
            st.tuples(
                st.sampled_from(["message-id", "type", "x-source", "correlation-id", "content-type", "ce-type"]) | TEXTS,
                st.text(),
            )
        ),
        body=JSON_VALUES.map(msgspec.json.encode)
        | st.binary()
        | st.fixed_dictionaries(
            {},
            optional={"id": JSON_VALUES, "type": JSON_VALUES, "message": JSON_VALUES, "headers": JSON_VALUES, "expires": TEXTS},
        ).map(msgspec.json.encode),
    )
    def check(headers: list[tuple[str, str]], body: bytes) -> None:
        for each in handlers:
            found = each.read(arrival(1, "shop", tuple(headers), body, suspect=False))
            assert isinstance(found, Message) or (isinstance(found, Unreadable) and found.reason)

    check()


def test_a_reason_is_that_of_the_format() -> None:
    """Without the class of its error."""
    with pytest.raises(NoIdentity):
        read_formatted(PLAIN, (), b"{}")
    message = built(Order("A-1"), CloudEvents()).message
    for name in ("Type", "type"):
        with pytest.raises(ValueError, match="the header 'type' is written by PlainJson"):
            write_formatted(PLAIN, msgspec.structs.replace(message, headers=((name, "x"),)))
