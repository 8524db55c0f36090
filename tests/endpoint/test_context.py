"""What a handler captures: messages with ids, sources and instants that are the same in every dispatch."""

# ruff: noqa: ARG001 - handlers under test need not use what they ask for

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from onceonly import Context, message
from onceonly.endpoint.context import decision_of
from onceonly.endpoint.host import host_of
from onceonly.endpoint.message_builder import LATEST, MessageBuilder
from onceonly.errors import InvalidEffect
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.message import Message, Send
from tests.endpoint.harness import NOW, STILL, endpoint, incoming, resources


@dataclass
class Placed:
    """An event."""

    id: str


@message("billing.charge.v1")
@dataclass
class Charge:
    """A command with a name of its own."""

    total: int


def context(arrived: Message | None = None, *, max_body: int = 1000) -> Context:
    """Make a context that stands by itself."""
    return Context(MessageBuilder("shop", max_body=max_body), arrived or incoming(), now=NOW)


def captured(act: Callable[[Context], None], arrived: Message | None = None) -> Send:
    """Return the one effect of what `act` does."""
    used = context(arrived)
    act(used)
    (send,) = decision_of(used).effects
    assert isinstance(send, Send)
    return send


def test_an_event_goes_to_whoever_subscribed() -> None:
    """It names its sender, its cause, and nobody to answer to."""
    send = captured(lambda c: c.publish(Placed("1")))
    sent = send.message
    assert (send.to, send.due, sent.type, sent.body, sent.source) == ("", 0, "Placed", b'{"id":"1"}', "shop")
    assert sent.id == outgoing_id("shop", incoming().identity, 0, NOW)
    assert sent.time == "2025-06-15T15:06:40.000Z"
    origin = {"causationid": "m1", "conversationid": "m1", "onceonlyhops": "1"}
    assert dict(sent.extensions) == origin | {"onceonlyclass": f"{__name__}.Placed"}


def test_a_command_goes_to_one_endpoint_and_says_who_may_be_answered() -> None:
    """`replyto` is for commands only."""
    send = captured(lambda c: c.send(Charge(5), to="billing"))
    assert (send.to, send.message.type) == ("billing", "billing.charge.v1")
    assert send.message.extension("replyto") == "shop"


def test_a_conversation_and_its_trace_are_passed_on() -> None:
    """From the first message to the last."""
    sent = captured(lambda c: c.publish(Placed("1")), incoming(conversationid="first", traceparent="00-ab-cd-01")).message
    assert (sent.extension("conversationid"), sent.extension("traceparent")) == ("first", "00-ab-cd-01")


def test_a_reply_goes_to_the_asker() -> None:
    """As a command."""
    send = captured(lambda c: c.reply(Placed("1")), incoming(replyto="web"))
    assert (send.to, send.message.extension("replyto")) == ("web", "shop")


@pytest.mark.parametrize("replyto", ["", "Not A Name"])
def test_a_reply_to_nobody_is_refused(replyto: str) -> None:
    """The message came without an asker, or with one that cannot be."""
    with pytest.raises(InvalidEffect, match="cannot reply"):
        context(incoming(replyto=replyto)).reply(Placed("1"))


@pytest.mark.parametrize(
    ("options", "due"),
    [
        ({}, 0),
        ({"delay": 0}, 0),
        ({"delay": 1.5}, NOW + 1500),
        ({"delay": timedelta(minutes=1)}, NOW + 60_000),
        ({"delay": 1e300}, LATEST),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, 1_893_456_000_000),
        ({"at": datetime(1960, 1, 1, tzinfo=UTC)}, 0),
        ({"at": datetime.max.replace(tzinfo=UTC)}, LATEST),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))}, LATEST),
        ({"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=14)))}, LATEST),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, 0),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=-12)))}, 0),
    ],
)
def test_a_delay_becomes_an_absolute_instant_when_it_is_captured(options: dict[str, Any], due: int) -> None:
    """A re-dispatch must not put it off once more; the id contains the due instant."""
    for send in (
        captured(lambda c: c.publish(Placed("1"), **options)),
        captured(lambda c: c.send(Placed("1"), to="x", **options)),
        captured(lambda c: c.reply(Placed("1"), **options), incoming(replyto="x")),
    ):
        assert send.due == due
        assert send.message.instant == (due or NOW)


SENT = (
    {},
    {"delay": 90},
    {"at": datetime(2030, 1, 1, tzinfo=UTC)},
    {"at": datetime(1960, 1, 1, tzinfo=UTC)},
)


INSTANTS = (5_000_000, 5_090_000, 1_893_456_000_000, 5_000_000)


@pytest.mark.parametrize(("options", "instant"), [*zip(SENT, INSTANTS, strict=True)])
def test_a_handler_that_may_be_committed_twice_sends_the_same_ids_whenever_it_runs(
    options: dict[str, Any], instant: int
) -> None:
    """Their instant counts from that of its message, so receivers know the second run's messages."""
    arrived = incoming(id=outgoing_id("till", Identity("", ""), 0, 5_000_000), source="till")
    ids = set()
    for now in (NOW, NOW + 7_000_000):
        used = Context(MessageBuilder("shop", max_body=1000), arrived, now=now, repeats=True)
        used.publish(Placed("1"), **options)
        (send,) = decision_of(used).effects
        ids.add(send.message.id)
        assert send.message.instant == instant
    assert len(ids) == 1


@pytest.mark.parametrize("options", SENT)
def test_without_an_instant_to_count_from_the_ids_of_such_a_handler_contain_none(options: dict[str, Any]) -> None:
    """The message of another sender has none."""
    ids = set()
    for now in (NOW, NOW + 7_000_000):
        used = Context(MessageBuilder("shop", max_body=1000), incoming(), now=now, repeats=True)
        used.publish(Placed("1"), **options)
        (send,) = decision_of(used).effects
        ids.add(send.message.id)
        assert send.message.instant == 0
    assert ids == {outgoing_id("shop", incoming().identity, 0)}


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is the point
        {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"type": ""},
        {"type": " "},
    ],
    ids=str,
)
def test_impossible_options_are_refused_at_capture(options: dict[str, Any]) -> None:
    """In words, where the handler stands."""
    with pytest.raises(InvalidEffect):
        context().publish(Placed("1"), **options)


@pytest.mark.parametrize("to", ["", "Not A Name", "x" * 64, "9lives", None, "a/b"])
def test_a_command_to_an_impossible_name_is_refused(to: Any) -> None:
    """Names become parts of queue names, so they come from an allow-list."""
    with pytest.raises(InvalidEffect, match="cannot send to"):
        context().send(Placed("1"), to=to)


@pytest.mark.parametrize("body", [float("nan"), 1j, object(), {"x": object()}, Placed])
def test_what_cannot_be_serialized_is_refused_at_capture(body: object) -> None:
    """Not when it is dispatched, long after the commit."""
    with pytest.raises(InvalidEffect):
        context().publish(body, type="x")


def test_what_is_too_large_for_the_transport_is_refused_at_capture() -> None:
    """With both numbers."""
    used = context(max_body=10)
    used.publish(b"x" * 10, type="fits")
    with pytest.raises(InvalidEffect, match="11 bytes long; the limit of this transport is 10"):
        used.publish(b"x" * 11, type="too.large")


def test_bodies_without_a_name_need_a_type() -> None:
    """A dict and bytes do not know it; any other may be sent under another."""
    with pytest.raises(InvalidEffect, match="pass type="):
        context().publish({"a": 1})
    assert captured(lambda c: c.publish({"a": 1}, type="x")).message.type == "x"
    assert captured(lambda c: c.publish(Placed("1"), type="x")).message.type == "x"
    assert captured(lambda c: c.publish(b"\xff", type="x")).message.datacontenttype == "application/octet-stream"


def test_ids_depend_on_the_incoming_message_and_the_place_in_the_handler_only() -> None:
    """So every run of the same handler names its messages the same; different ones never meet."""

    def ids(arrived: Message) -> list[str]:
        used = context(arrived)
        for number in range(3):
            used.publish(Charge(number))
        return [send.message.id for send in decision_of(used).effects]

    assert ids(incoming()) == ids(incoming())
    assert len({*ids(incoming()), *ids(incoming(id="m2")), *ids(incoming(source="other"))}) == 9


def test_a_refused_effect_leaves_no_gap() -> None:
    """A handler may catch it and send something else."""
    used = context()
    with pytest.raises(InvalidEffect):
        used.publish({"a": 1})
    used.publish(Placed("1"))
    (send,) = decision_of(used).effects
    assert send.message.id == outgoing_id("shop", incoming().identity, 0, NOW)


async def test_a_context_that_outlives_its_handler_is_an_error() -> None:
    """What it captured then would never be sent."""
    shop, kept = endpoint(), []

    @shop.handler(type="Order")
    async def place(order: dict[str, Any], context: Context) -> None:
        kept.append(context)

    await host_of(shop).handlers(STILL).handle(incoming(), await resources())
    with pytest.raises(InvalidEffect, match="after its handler ended"):
        kept[0].publish(Placed("1"))
