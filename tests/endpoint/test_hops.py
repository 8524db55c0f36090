"""Chains of messages: each message carries how many handlers came before it, and an endless chain ends as a dead letter."""

from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import Context, Endpoint, Retry, SetupError, testing
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.message import HOPS, FailureKind, Message, Send
from tests.endpoint.harness import STILL, effects, endpoint, failure, incoming, read, resources


@dataclass
class Ping:
    """Sent back and forth."""

    how: str


@dataclass
class Pong:
    """The answer."""

    how: str


WAYS = ("send", "publish", "reply", "delay")


def pass_on(context: Context, message: object, how: str, to: str) -> None:
    """Send a message in one of the ways that a handler has."""
    if how == "publish":
        context.publish(message)
    elif how == "reply":
        context.reply(message)
    else:
        context.send(message, to=to, delay=60 if how == "delay" else None)


def player(name: str, takes: type[Any], gives: type[Any], other: str, **settings: Any) -> Endpoint:
    """Make an endpoint that answers each message with another one."""
    made = endpoint(name=name, **settings)

    async def play(message: Any, context: Context) -> None:
        pass_on(context, gives(message.how), message.how, other)

    play.__annotations__["message"] = takes
    made.handler(play)
    return made


async def rally(first: Message, *players: Endpoint) -> tuple[int, str]:
    """Carry each message to the next endpoint as a transport would; gives how many were handled, and why the last was not."""
    message, handled = first, 0
    while True:
        turn = players[handled % 2]
        handlers = host_of(turn).handlers(STILL)
        arrived = handlers.read(arrival(1, turn.name, *encode(Send(message=message)), suspect=False))
        assert isinstance(arrived, Message)
        if arrived.hops > turn.settings.max_hops:  # type: ignore[operator] - a number here
            stopped = await failure(turn, arrived)
            assert stopped.kind is FailureKind.REJECTED
            return handled, stopped.reason
        (sent,) = await effects(turn, arrived)
        message, handled = sent.message, handled + 1


@pytest.mark.parametrize("how", WAYS)
async def test_an_endless_chain_between_two_endpoints_is_rejected_at_the_limit(how: str) -> None:
    """However its messages are sent. The reason names the limit, and the setting that raises it."""
    a = player("a", Ping, Pong, "b", max_hops=20)
    b = player("b", Pong, Ping, "a", max_hops=20)
    first = incoming({"how": how}, "Ping", replyto="b")
    handled, reason = await rally(first, a, b)
    assert handled == 21
    assert "after 21 handlers" in reason
    assert "max_hops" in reason
    assert "20" in reason


async def test_a_chain_in_a_real_unit_ends_as_one_dead_letter() -> None:
    """Nothing after it is sent, and nobody is retried for it."""
    loop = Endpoint("loop", store="memory://loop", transport="memory://loop", retry=Retry(jitter=0), max_hops=5)

    @loop.handler
    async def again(message: Ping, context: Context) -> None:
        context.send(message, to="loop")

    async with testing.run(loop) as t:
        await t.deliver(Ping("send"))
        (letter,) = t.dead_letters
        assert (letter.attempts, len(t.sent)) == (1, 6)
        assert letter.message is not None
        assert letter.message.hops == 6


async def test_retries_of_one_message_are_not_hops() -> None:
    """However often it fails, and is put off."""
    stubborn = Endpoint(
        "stubborn", store="memory://s", transport="memory://s", retry=Retry(immediate=0, delayed=8, jitter=0), max_hops=2
    )
    runs = 0

    @stubborn.handler
    async def work(message: Ping, context: Context) -> None:
        nonlocal runs
        runs += 1
        if runs < 6:
            raise ValueError("not yet")
        context.publish(Pong(message.how))

    async with testing.run(stubborn, raise_failures=False) as t:
        await t.deliver(Ping("x"))
        while runs < 6:
            t.clock.advance(3600)
            await t.settle()
        (sent,) = t.sent
        assert (t.dead_letters, sent.message.hops) == ((), 1)


async def test_a_message_of_an_older_version_begins_a_chain() -> None:
    """It carries no count. What its handler sends carries one."""
    shop = player("a", Ping, Pong, "b")
    arrived = read(shop, arrival(1, "a", *encode(Send(message=incoming({"how": "send"}, "Ping"))), suspect=False))
    assert arrived.hops == 0
    (sent,) = await effects(shop, arrived)
    assert sent.message.extension(HOPS) == "1"


@pytest.mark.parametrize("forged", ["-1", "many", "1e9", "", "٣", "9" * 30])
async def test_a_count_that_is_none_is_0(forged: str) -> None:
    """A foreign sender can write anything."""
    assert incoming(None, "Ping", onceonlyhops=forged).hops == 0


async def test_a_message_of_a_transaction_begins_a_chain() -> None:
    """Something outside of handlers caused it."""
    shop = player("a", Ping, Pong, "b")
    async with shop.running(), shop.transaction() as tx:
        tx.send(Ping("send"), to="b")
        (effect,) = tx._effects
        assert isinstance(effect, Send)
        assert effect.message.hops == 0


async def test_without_a_limit_a_chain_never_ends() -> None:
    """Such as that of a timer, whose handler sends itself the next tick."""
    ticks = player("a", Ping, Pong, "b", max_hops=None)
    (sent,) = await effects(ticks, incoming({"how": "delay"}, "Ping", onceonlyhops="999999998"))
    assert sent.message.hops == 999_999_999
    (sent,) = await effects(ticks, incoming({"how": "delay"}, "Ping", onceonlyhops="999999999"))
    assert sent.message.hops == 999_999_999


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10", True])
def test_a_limit_that_is_none_is_refused(wrong: object) -> None:
    """With what it may be."""
    with pytest.raises(SetupError, match="max_hops must be a whole number from 1"):
        endpoint(max_hops=wrong)


async def test_the_decision_is_made_once_the_store_knows_that_the_message_is_new() -> None:
    """A message that was handled under a higher limit still has its effects dispatched: reading does not judge the count."""
    strict = player("a", Ping, Pong, "b", max_hops=1)
    arrived = read(
        strict, arrival(1, "a", *encode(Send(message=incoming({"how": "x"}, "Ping", onceonlyhops="7"))), suspect=False)
    )
    assert arrived.hops == 7
    assert (await failure(strict, arrived, await resources())).kind is FailureKind.REJECTED
