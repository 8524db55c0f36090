"""What observers learn of messages that a host hands over: the same outcomes as those of a worker."""

import asyncio
from uuid import uuid4

from onceonly import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeObserver
from tests.endpoint.hosted_harness import TWICE, HostQueue, Order, order


class WrittenOutcomes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.told: list[tuple[str, str, int]] = []

    def settled(self, outcome: MessageOutcome) -> None:
        """Write an outcome down."""
        self.told.append((outcome.message.id if outcome.message else "", outcome.outcome.value, outcome.attempt))

    def released(self, endpoint: str, message: Message) -> None:
        """Write a message down that comes again."""
        self.told.append((message.id, "released", 0))


async def test_outcomes_are_those_of_a_worker() -> None:
    """Handled, known, retried twice and given up; and one that was cut off is released, so that nothing of it is kept."""
    place, written, forever = f"memory://{uuid4().hex}", WrittenOutcomes(), asyncio.Event()
    shop = Endpoint("shop", store=place, transport=place, retry=TWICE)

    @shop.handler
    async def take(order: Order) -> None:
        if order.id == "bad":
            raise ValueError("no stock")
        if order.id == "slow":
            await forever.wait()

    observer = OutcomeObserver(written)
    async with host_of(shop).hosted(observer=observer) as hosted:
        host = HostQueue([order("a"), order("a"), order("bad")])
        while host.waiting:
            await host.deliver(hosted)
        await hosted.handle([order("a", 2)])
        await hosted.handle([order("slow")], remaining=0.5)
    assert sorted(written.told) == [
        ("a", "duplicate", 1),
        ("a", "duplicate", 2),
        ("a", "handled", 1),
        ("bad", "dead_letter", 3),
        ("bad", "retried", 1),
        ("bad", "retried", 2),
        ("slow", "released", 0),
    ]
    assert (observer._deliveries, observer._messages, observer._by_identity) == ({}, {}, {})
