"""How a call of a host ends: cut off, cancelled, or in an outage. No task is left, and nothing is counted."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Endpoint, Hosted, HostedMessage
from onceonly.endpoint.host import host_of
from onceonly.errors import CommitFailed
from onceonly.runtime.environment import Environment
from onceonly.runtime.hosted.deliveries import MOST_UNKNOWN
from onceonly.runtime.observe.observer import Point
from tests.endpoint.hosted_harness import TWICE, Order, order
from tests.endpoint.test_hosted import Failing
from tests.runtime.harness import HastyTimer

MANY = 500
"""Messages of a call with several batches."""


@pytest.fixture
def shop() -> Endpoint:
    """Make an endpoint in memory, without handlers."""
    place = f"memory://{uuid4().hex}"
    return Endpoint("shop", store=place, transport=place, retry=TWICE)


async def cancelled(hosted: Hosted, message: HostedMessage, reached: asyncio.Event) -> None:
    """Cancel a call once its handler was reached."""
    call = asyncio.create_task(hosted.handle([message]))
    await reached.wait()
    reached.clear()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_delivery_without_time_counts_for_nothing(shop: Endpoint) -> None:
    """The handler fails for the first time in the fourth delivery, so it is tried again."""

    @shop.handler
    def fail(_: Order) -> None:
        raise ValueError("no stock")

    async with shop.hosted() as hosted:
        for number in range(1, 4):
            (outcome,) = await hosted.handle([order("a", number)], remaining=0.0)
            assert not outcome.is_settled
        (outcome,) = await hosted.handle([order("a", 4)])
    assert (outcome.is_settled, outcome.reason) == (False, "ValueError: no stock")


async def test_a_call_that_was_cancelled_counts_for_nothing(shop: Endpoint) -> None:
    """As at the stop of a worker."""
    reached, waits = asyncio.Event(), True

    @shop.handler
    async def fail(_: Order) -> None:
        reached.set()
        if waits:
            await asyncio.Event().wait()
        raise ValueError("no stock")

    async with shop.hosted() as hosted:
        for number in range(1, 4):
            await cancelled(hosted, order("a", number), reached)
        waits = False
        (outcome,) = await hosted.handle([order("a", 4)])
    assert (outcome.is_settled, outcome.reason) == (False, "ValueError: no stock")


async def test_a_caller_that_is_cancelled_in_each_turn_waits_for_its_unit(shop: Endpoint) -> None:
    """A cancel scope of AnyIO does that. The clean-up of the handler takes some turns."""
    reached, cleaned = asyncio.Event(), []

    @shop.handler
    async def take(order: Order) -> None:
        try:
            reached.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            cleaned.append(order.id)

    async with shop.hosted() as hosted:
        before = asyncio.all_tasks()
        call = asyncio.create_task(hosted.handle([order("a")]))
        await reached.wait()
        while not call.done():
            call.cancel()
            await asyncio.sleep(0)
        assert call.cancelled()
        assert cleaned == ["a"]
        assert not asyncio.all_tasks() - before
        await asyncio.sleep(0)
        assert not hosted._deliveries.held


async def test_a_renewal_ends_with_its_call(shop: Endpoint) -> None:
    """Otherwise it could renew the lease after the host has returned the message."""
    renewing, ended = asyncio.Event(), []

    @shop.handler
    async def take(_: Order) -> None:
        await renewing.wait()

    async def extend(_: Any) -> None:
        try:
            renewing.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async with shop.hosted() as hosted:
        before = asyncio.all_tasks()
        assert (await hosted.handle([order("a")], extend=extend, every=0.001))[0].is_settled
        assert ended == [True]
        assert not asyncio.all_tasks() - before


async def test_a_renewal_that_was_cancelled_is_repeated(shop: Endpoint) -> None:
    """A client library cancels what waits for an answer when its connection is lost."""
    renewals, again = [], asyncio.Event()

    @shop.handler
    async def take(_: Order) -> None:
        await again.wait()

    def extend(_: Any) -> None:
        renewals.append(True)
        if len(renewals) == 1:
            raise asyncio.CancelledError("connection lost")
        again.set()

    async with shop.hosted() as hosted, asyncio.timeout(30):
        assert (await hosted.handle([order("a")], extend=extend, every=0.001))[0].is_settled


async def test_an_outage_ends_a_large_call(shop: Endpoint) -> None:
    """It does not wait for each of its messages. None is settled, and each is due again soon."""

    @shop.handler
    def take(_: Order) -> None: ...

    times = 10 * MANY
    broken = Failing(Point.BEGIN, CommitFailed("away"), times)
    environment = Environment(timer=HastyTimer())
    async with host_of(shop).hosted(observer=broken, environment=environment) as hosted:
        outcomes = await hosted.handle([order(str(number)) for number in range(MANY)])
        assert times - broken.left == MOST_UNKNOWN
        assert {(each.is_settled, each.retry_after, each.reason) for each in outcomes} == {(False, 1.0, "CommitFailed: away")}
        broken.left = 0
        outcomes = await hosted.handle([order(str(number), 2) for number in range(MANY)])
    assert all(outcome.is_settled for outcome in outcomes)


async def test_messages_may_be_an_iterator(shop: Endpoint) -> None:
    """None of them is used up by a check."""
    handled = []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    def made() -> Iterator[HostedMessage]:
        yield order("a")
        yield order("b")

    async with shop.hosted() as hosted:
        assert len(await hosted.handle(made())) == 2  # type: ignore[arg-type]
    assert handled == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"remaining": float("nan")}, ValueError, "remaining must be a number of seconds, not nan"),
        ({"remaining": "20"}, TypeError, "remaining must be a number of seconds, not str"),
        ({"every": 0}, ValueError, "every must be a number of seconds above 0, not 0"),
        ({"every": float("nan")}, ValueError, "every must be a number of seconds above 0, not nan"),
        ({"every": None}, TypeError, "every must be a number of seconds, not NoneType"),
        ({"extend": 10.0}, TypeError, "extend must be a function, not float"),
    ],
)
async def test_a_time_that_is_none_is_refused(
    shop: Endpoint, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Before anything is handled. Otherwise no lease would be renewed, and only the log would show it."""
    handled = []

    @shop.handler
    def take(order: Order) -> None:
        handled.append(order.id)

    async with shop.hosted() as hosted:
        with pytest.raises(error, match=words):
            await hosted.handle([order("a")], **{"extend": lambda _: None} | options)
    assert handled == []


@pytest.mark.parametrize("wrong", [order("a"), None, 7])
async def test_what_is_no_list_of_messages_is_refused(shop: Endpoint, wrong: Any) -> None:
    """With the type that it is."""

    @shop.handler
    def take(_: Order) -> None: ...

    async with shop.hosted() as hosted:
        with pytest.raises(
            TypeError, match=r"handle takes a list of HostedMessage\(...\)(: put .* in a list|, not (NoneType|int))"
        ):
            await hosted.handle(wrong)
