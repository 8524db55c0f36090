"""Headers, expiry, key and id of what is sent, and headers that are carried along."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from onceonly import Context, Endpoint, IdentityField, IdentityHeader, Retry, RetryLater, SetupError, Tokens, testing
from onceonly.endpoint.context import decision_of
from onceonly.endpoint.message_builder import MessageBuilder
from onceonly.errors import InvalidEffect
from onceonly.formats.cloudevents import arrival, encode
from onceonly.formats.records import decode_record, encode_record
from onceonly.model.headers import MOST_HEADER_BYTES
from onceonly.model.message import EXPIRES, FailureKind, Message, Send, expiry_text, read_expiry
from onceonly.model.record import Record
from tests.endpoint.harness import NOW, effects, endpoint, failure, incoming, read

AT = datetime.fromtimestamp(NOW / 1000, UTC)


@dataclass
class Order:
    """What comes."""

    id: str


@dataclass
class Placed:
    """What goes."""

    id: str


def context(arrived: Message | None = None, **builder: Any) -> Context:
    """Make a context without a unit."""
    return Context(MessageBuilder("shop", max_body=1000, **builder), arrived or incoming(replyto="web"), now=NOW)


def captured(act: Callable[[Context], None], arrived: Message | None = None, **builder: Any) -> Message:
    """Return the message that `act` sends, as its receiver reads it."""
    used = context(arrived, **builder)
    act(used)
    (send,) = decision_of(used).effects
    assert isinstance(send, Send)
    headers, body = encode(send)
    return read(taker(), arrival(1, "shop", headers, body, suspect=False))


def taker(**settings: Any) -> Endpoint:
    """Make an endpoint that takes orders."""
    made = endpoint(**settings)

    @made.handler
    async def take(order: Order) -> None:
        """Do nothing."""

    return made


WAYS: list[Callable[..., None]] = [
    lambda c, **options: c.send(Placed("1"), to="web", **options),
    lambda c, **options: c.publish(Placed("1"), **options),
    lambda c, **options: c.reply(Placed("1"), **options),
]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_sending_takes_headers_expiry_and_key(way: Callable[..., None]) -> None:
    """The receiver reads them. The key and the expiry are CloudEvents extension attributes."""
    sent = captured(lambda c: way(c, headers={"Tenant": "köln", "x-empty": ""}, expires=timedelta(minutes=1), key="k 1"))
    assert sent.headers == (("Tenant", "köln"), ("x-empty", ""))
    assert (sent.header("tenant"), sent.header("none", "?")) == ("köln", "?")
    assert (sent.partition_key, sent.extension("partitionkey")) == ("k 1", "k 1")
    assert (sent.expires, sent.extension(EXPIRES)) == (NOW + 60_000, "2025-06-15T15:07:40.000Z")


def test_a_record_keeps_the_options_until_they_are_sent() -> None:
    """All of them come back."""
    used = context()
    used.publish(Placed("1"), headers={"tenant": "a"}, expires=AT + timedelta(days=1), key="k")
    record = Record(incoming().identity, decision_of(used).effects)
    stored = encode_record(record)
    assert decode_record(record.identity, stored).effects == record.effects


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"headers": {"ce-id": "1"}}, "'ce-id' is reserved"),
        ({"headers": {"cloudEvents_id": "1"}}, "reserved"),
        ({"headers": {"Content-Type": "1"}}, "reserved"),
        ({"headers": {"onceonly-x": "1"}}, "reserved"),
        ({"headers": {"X-OnceOnly-Due": "1"}}, "reserved"),
        ({"headers": {"x-death": "1"}}, "reserved"),
        ({"headers": {"CC": "1"}}, "reserved"),
        ({"headers": {"": "1"}}, "cannot be the name"),
        ({"headers": {"a b": "1"}}, "cannot be the name"),
        ({"headers": {"a\n": "1"}}, "cannot be the name"),
        ({"headers": {"ä": "1"}}, "cannot be the name"),
        ({"headers": {"a" * 129: "1"}}, "128 characters"),
        ({"headers": {1: "1"}}, "a header's name is text, not 1"),
        ({"headers": {"a": 1}}, "'a' must be text, not int"),
        ({"headers": {"a": "secret\r\nb: c"}}, "control characters"),
        ({"headers": {"a": "\ud800"}}, "not valid Unicode"),
        ({"headers": {"a": "é" * 4097}}, "8,194 bytes long, and the limit is 8,192"),
        ({"headers": {"a": "x" * 8000, "b": "x" * 8000, "c": "x" * 500}}, "16,503 bytes long, and the limit is 16,384"),
        ({"headers": {"Tenant": "a", "tenant": "b"}}, "differ only in case"),
        ({"headers": ["a"]}, "must map names to texts"),
        ({"expires": 60}, "must be a timedelta or an aware datetime, not an int"),
        ({"expires": timedelta()}, "longer than 0"),
        ({"expires": AT.replace(tzinfo=None)}, "aware datetime"),
        ({"expires": timedelta(seconds=5), "delay": 5}, "expire before it is delivered"),
        ({"expires": AT, "at": AT + timedelta(seconds=1)}, "expire before it is delivered"),
        ({"delay": "5s"}, "delay= must be a timedelta or a number of seconds, not '5s'"),
        ({"delay": [5]}, r"delay= must be a timedelta or a number of seconds, not \[5\]"),
        ({"delay": True}, "delay= must be a timedelta or a number of seconds, not True"),
        ({"delay": 10**400}, "delay must be a finite number"),
        ({"delay": -1}, "delay must be 0 or more, not -1"),
        ({"at": "tomorrow"}, "at= must be an aware datetime, not 'tomorrow'"),
        ({"key": ""}, "key= must have 1 to 255 bytes"),
        ({"key": "é" * 128}, "this has 256"),
        ({"key": 7}, "key= must be text, not int"),
        ({"key": "a\0"}, "control characters"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_an_option_that_cannot_be_sent_is_refused_at_the_call(
    way: Callable[..., None], options: dict[str, Any], complaint: str
) -> None:
    """The error names the option and the limit, and never shows a header's value."""
    used = context()
    with pytest.raises(InvalidEffect, match=complaint) as caught:
        way(used, **options)
    assert "secret" not in str(caught.value)
    assert decision_of(used).effects == ()


def test_the_greatest_headers_are_sent() -> None:
    """Names and values count."""
    value = "x" * (MOST_HEADER_BYTES // 2 - 1)
    assert captured(lambda c: c.publish(Placed("1"), headers={"a": value, "b": value})).headers == (("a", value), ("b", value))


@pytest.mark.parametrize("moment", [AT - timedelta(days=1), datetime(1960, 1, 1, tzinfo=UTC)])
def test_an_expiry_in_the_past_is_sent(moment: datetime) -> None:
    """A deadline that a handler passes on may be over. The receiver stores the dead letter."""
    assert 0 < captured(lambda c: c.publish(Placed("1"), expires=moment)).expires < NOW


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2025-06-15T15:06:40.000Z", NOW),
        ("2025-06-15T17:06:40+02:00", NOW),
        ("2025-06-15T15:06:40.0009Z", NOW),
        ("1960-01-01T00:00:00Z", 1),
        ("2025-06-15T15:06:40", 0),
        ("tomorrow", 0),
        ("", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_an_expiry_is_read_as_cloudevents_writes_it(text: str, instant: int) -> None:
    """One that cannot be read never expires: losing a message is worse."""
    assert read_expiry(text) == instant
    if instant > 1:
        assert read_expiry(expiry_text(instant)) == instant


@pytest.mark.parametrize(("expires", "is_over"), [(NOW, True), (NOW - 1, True), (NOW + 1, False)])
async def test_an_expired_message_is_not_handled(expires: int, is_over: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """From the instant on. It is final: no retry helps."""
    shop, message = taker(), incoming(**{EXPIRES: expiry_text(expires)})
    if is_over:
        found = await failure(shop, message)
        assert (found.kind, found.reason.startswith(f"expired at {expiry_text(expires)}")) == (FailureKind.REJECTED, True)
    else:
        assert await effects(shop, message) == ()


async def test_a_message_that_expires_between_its_retries_becomes_one_dead_letter(tmp_path: Path) -> None:
    """The reason is the expiry, and the history what failed before. A copy in time is still recognized afterwards."""
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://x", retry=Retry(immediate=0, delayed=3, jitter=0))
    ran: list[str] = []

    @shop.handler
    async def take(order: Order) -> None:
        ran.append(order.id)
        if order.id == "bad":
            raise ValueError("no stock")
        if order.id == "later" and ran.count("later") == 1:
            raise RetryLater(5)

    async with testing.run(shop, directory=tmp_path, raise_failures=False) as t:
        soon = {EXPIRES: expiry_text(t.clock.now() + 1000)}
        bad, good = t.message(Order("bad"), **soon), t.message(Order("good"), **soon)
        for message in (bad, good, t.message(Order("later"), **soon)):
            await t.deliver(message)
        t.clock.advance(3600)
        await t.settle()
        await t.deliver(bad, copies=2)
        await t.deliver(good)
        assert ran == ["bad", "good", "later"]
        first, second = t.dead_letters
        assert [each.reason[:7] for each in t.dead_letters] == ["expired"] * 2
        assert "after 1 failed attempts" in first.reason
        assert [each.reason for each in first.history][:1] == ["ValueError: no stock"]
        assert second.message is not None
        assert second.message.header("none") == ""


async def test_what_was_handled_before_it_expired_still_sends_its_messages() -> None:
    """Its process died between commit and dispatch, and it comes again after its time."""
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://x")

    @shop.handler
    async def take(order: Order, context: Context) -> None:
        context.publish(Placed(order.id))

    async with testing.run(shop) as t:
        message = t.message(Order("1"), **{EXPIRES: expiry_text(t.clock.now() + 1000)})
        await t.deliver(message, crash_at="after-commit")
        t.clock.advance(10)
        await t.deliver(message)
        assert (t.sent, t.dead_letters, t.crashes) == ([Placed("1")], (), 1)


# Headers that are carried along


def tenant(*headers: tuple[str, str]) -> Message:
    """Make a message with these headers."""
    return replace(incoming(replyto="web"), headers=headers)


@pytest.mark.parametrize("way", WAYS)
def test_headers_are_carried_along(way: Callable[..., None]) -> None:
    """Those that are listed, whatever their case, also several of one name. What the handler gives wins."""
    arrived = tenant(("Tenant", "a"), ("locale", "de"), ("other", "x"), ("tag", "1"), ("tag", "2"))
    carry = {"carry_headers": ("tenant", "locale", "tag")}
    assert captured(way, arrived, **carry).headers == (("Tenant", "a"), ("locale", "de"), ("tag", "1"), ("tag", "2"))
    own = captured(lambda c: way(c, headers={"LOCALE": "fr"}), arrived, **carry).headers
    assert own == (("Tenant", "a"), ("tag", "1"), ("tag", "2"), ("LOCALE", "fr"))
    assert captured(way, arrived).headers == ()


@pytest.mark.parametrize("value", ["a\nb", "x" * 8193])
def test_a_carried_header_that_cannot_be_sent_fails_the_handler(value: str) -> None:
    """Without the header, its receivers might take the message for another tenant's."""
    with pytest.raises(InvalidEffect, match="carry_headers= lists it"):
        context(tenant(("tenant", value)), carry_headers=("tenant",)).publish(Placed("1"))


def test_carried_and_own_headers_have_one_limit() -> None:
    """Together."""
    arrived = tenant(("tenant", "x" * 8192))
    with pytest.raises(InvalidEffect, match="16,384"):
        context(arrived, carry_headers=("tenant",)).publish(Placed("1"), headers={"a": "x" * 8192})


@pytest.mark.parametrize(
    ("names", "complaint"),
    [("tenant", "list of names"), (["ce-id"], "reserved"), (["a b"], "cannot be"), ([1], "is text"), (1, "list")],
)
def test_wrong_names_of_carried_headers_are_refused(names: Any, complaint: str) -> None:
    """Where the endpoint is made."""
    with pytest.raises(SetupError, match=f"carry_headers: .*{complaint}"):
        endpoint(carry_headers=names)


async def test_an_endpoint_carries_its_headers_from_message_to_message() -> None:
    """The kit shows them, and the other options."""
    shop = Endpoint("shop", store="memory://x", transport="memory://x", carry_headers=["Tenant"])

    @shop.handler
    async def take(order: Order, context: Context) -> None:
        context.publish(Placed(order.id), headers={"a": "b"}, expires=timedelta(seconds=5), key="k")

    async with testing.run(shop) as t:
        await t.deliver(t.message(Order("1"), headers={"tenant": "acme"}))
        (sent,) = t.sent
        assert (sent.headers, sent.key, sent.expires) == ({"tenant": "acme", "a": "b"}, "k", t.clock.now() + 5000)
        assert "headers={'tenant': 'acme', 'a': 'b'} key='k' expires=" in repr(sent)


# Ids outside of handlers


async def test_a_message_with_an_id_of_its_own_is_handled_once_however_often_it_is_sent() -> None:
    """A client sends it again, in another transaction and at another time. Another body is a dead letter."""
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://x", identity=IdentityHeader("x-id"))
    ran: list[str] = []

    @shop.handler
    async def take(order: Order) -> None:
        ran.append(order.id)

    async with testing.run(shop) as t:
        for body in ("1", "1", "other"):
            async with shop.transaction() as tx:
                tx.send(Order(body), to="shop", id="order 1", headers={"tenant": "a"}, delay=1)
            t.clock.advance(3600)
            await t.settle()
        (sent, *_) = t.raw
        (letter,) = t.dead_letters
        assert (ran, sent.message.id, sent.message.headers) == (["1"], "order 1", (("tenant", "a"),))
        assert "another body" in letter.reason


async def test_a_message_with_an_id_of_its_own_is_claimed_in_one_place() -> None:
    """It has no instant: copies that were sent at other times would be claimed elsewhere. No identity rule overrules its id."""
    shop = taker(identity=IdentityField("id"))
    async with shop.transaction() as tx:
        tx.publish(Order("1"), id=uuid4().hex)
        (send,) = tx._effects
        assert isinstance(send, Send)
    arrived = read(shop, arrival(1, "shop", *encode(send), suspect=False))
    assert (arrived.identity, arrived.instant) == (("shop", send.message.id), 0)


@pytest.mark.parametrize(
    ("id_", "complaint"),
    [("", "1 to 255 bytes"), ("  ", "blank"), ("x" * 256, "this has 256"), (7, "must be text, not int"), ("a\n", "control")],
)
async def test_an_impossible_id_is_refused(id_: Any, complaint: str) -> None:
    """At the call."""
    async with taker().transaction() as tx:
        with pytest.raises(InvalidEffect, match=f"id= .*{complaint}"):
            tx.publish(Placed("1"), id=id_)


async def test_one_id_for_two_bodies_is_refused_in_one_transaction() -> None:
    """One body may go to several endpoints."""
    async with taker().transaction() as tx:
        tx.send(Placed("1"), to="a", id="1")
        tx.send(Placed("1"), to="b", id="1")
        with pytest.raises(InvalidEffect, match="id='1' was used for another message"):
            tx.send(Placed("2"), to="a", id="1")


async def test_an_id_is_refused_where_copies_are_recognized_by_token(tmp_path: Path) -> None:
    """Each transaction issues another token, so the second copy would be handled again."""
    shop = taker(deduplication=Tokens(subscribers={"Placed": ["shop"]}), store=f"sqlite:///{tmp_path}/shop.db")
    async with shop.transaction() as tx:
        with pytest.raises(InvalidEffect, match="idempotency_key"):
            tx.publish(Placed("1"), id="1")


def test_handlers_have_no_ids_to_give() -> None:
    """Theirs are derived, so that a second run sends the same."""
    with pytest.raises(TypeError, match="id"):
        context().publish(Placed("1"), id="1")  # type: ignore[call-arg] # what the test is about


def test_an_unknown_option_is_a_type_error_that_names_it() -> None:
    """As of any function, also where nothing else is wrong."""
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'dealy'\. Options of a message are at, content_type, delay"
    ):
        context().publish(Placed("1"), dealy=3)  # type: ignore[call-arg] # what the test is about
