"""The queue of a host: what is sent there, when it is due, and what counts for a dead letter that comes back."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onceonly import Endpoint, Exchange, PlainJson, Queue, Retry, Stream, Subject, Tokens
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import encode
from onceonly.model.errors import SetupError
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import DestinationRule, Traits
from onceonly.queues.host_queue import HostQueueTransport
from onceonly.runtime.environment import Environment
from onceonly_conformance.clock import START, ManualClock
from tests.endpoint.hosted_harness import Order, order

AMQP = "amqp://guest:guest@127.0.0.1:1/"
DUE = "ce-onceonlydue"


class SendingTransport:
    """Remembers what it is asked to send."""

    def __init__(self, longest: float | None) -> None:
        rules = (DestinationRule(kind="queue", longest_delay=longest),)
        self.traits = Traits(lease=None, max_body=1000, destinations=rules)
        self.sent: list[Send] = []

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        self.sent += sends
        return (Answer.TAKEN,) * len(sends)


def send(to: str, **changes: Any) -> Send:
    """Make a message to an endpoint."""
    return Send(message=Message(id="m", source="web", type="Order", body=b"{}"), to=to, **changes)


@pytest.mark.parametrize(
    ("longest", "delay", "due", "carried"),
    [
        (0.0, 0, 0, False),
        (0.0, 5000, 0, True),
        (None, 5000, START + 5000, False),
        (60.0, 5000, START + 5000, True),
        (2.0, 5000, 0, True),
    ],
)
async def test_a_delay_is_the_brokers_or_is_carried(longest: float | None, delay: int, due: int, carried: bool) -> None:  # noqa: FBT001 - a case
    """What the broker does not keep for so long goes at once, and says when it is due."""
    inner = SendingTransport(longest)
    transport = HostQueueTransport(inner, "shop", Queue("orders"), clock=ManualClock())  # type: ignore[arg-type] # it only sends
    for formatted in (False, True):
        inner.sent.clear()
        await transport.send([send("shop", due=START + delay if delay else 0, formatted=formatted), send("other")])
        own, other = inner.sent
        assert (own.to, own.due, other) == ("queue:orders", due, send("other"))
        assert (dict(encode(own)[0]).get(DUE) == str(START + delay)) is carried


def shop_with(**settings: Any) -> Endpoint:
    """Make an endpoint of a host."""
    return Endpoint(**{"name": "shop", "store": "sqlite://", "transport": AMQP} | settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"receives_from": "orders"}, "must be what the host of the endpoint receives from"),
        ({"receives_from": Exchange("orders")}, "must be what the host of the endpoint receives from"),
        ({"receives_from": Stream("orders")}, r"has no stream of other programs\. Use Queue and Exchange"),
        ({"receives_from": Subject("orders.placed")}, "has no subject of other programs"),
        ({"receives_from": Queue("orders", format=PlainJson())}, "has a format, which would have no effect"),
        ({"receives_from": Queue("orders"), "transport": None}, "needs a transport, which sends to it"),
        ({"receives_from": Queue("orders"), "deduplication": Tokens()}, r"cannot be used with deduplication=Tokens"),
    ],
)
def test_what_no_host_can_receive_from_is_refused(settings: dict[str, Any], words: str) -> None:
    """When the endpoint is made."""
    with pytest.raises(SetupError, match=words):
        shop_with(**settings)


async def test_a_worker_is_refused() -> None:
    """It would receive from a queue to which nothing is sent."""
    with pytest.raises(SetupError, match=r"has no worker: its host receives from queue:orders\. Use hosted\(\)"):
        async with shop_with(receives_from=Queue("orders")).running():
            pass


async def test_a_message_is_put_off_until_it_is_due(tmp_path: Path) -> None:
    """It is not handled before, its deliveries count for nothing, and others in the same call are handled."""
    clock, runs = ManualClock(), []
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", retry=Retry(immediate=1, delayed=0))

    @shop.handler
    async def place(order: Order) -> None:
        runs.append(order.id)
        if order.id == "late" and runs.count("late") == 1:
            raise ValueError("no")

    late = dict(order("late").headers) | {DUE: str(START + 5000)}
    async with host_of(shop).hosted(environment=Environment(clock=clock)) as hosted:
        for number in range(1, 4):
            put_off, done = await hosted.handle([order("late", number, headers=late), order(f"now-{number}")])
            assert (put_off.is_settled, put_off.retry_after, put_off.reason) == (
                False,
                5.0,
                "sent with a delay, and not due yet",
            )
            assert done.is_settled
        clock.advance(5000)
        (failed,) = await hosted.handle([order("late", 4, headers=late)])
        assert not failed.is_settled  # the first attempt of two
        (done,) = await hosted.handle([order("late", 5, headers=late)])
        assert (done.is_settled, done.is_dead) == (True, False)


async def test_a_retried_dead_letter_begins_with_no_attempts(tmp_path: Path) -> None:
    """Also where this process remembers an attempt at the message that another process has given up."""
    attempts = []
    store = f"sqlite:///{tmp_path}/shop.db"
    shop = Endpoint("shop", store=store, retry=Retry(immediate=1, delayed=0))

    @shop.handler
    async def place(_: Order) -> None:
        attempts.append(1)
        raise ValueError("no")

    history = '[{"kind":"exception","reason":"no","at":1}]'
    retried = dict(order("a").headers) | {"ce-onceonlyalone": "1", "ce-onceonlyhistory": history}
    async with shop.hosted() as hosted:
        assert not (await hosted.handle([order("a")]))[0].is_settled
        outcomes = [(await hosted.handle([order("a", 1, headers=retried)]))[0].is_settled for _ in range(2)]
    assert outcomes == [False, True]
    assert len(attempts) == 3
