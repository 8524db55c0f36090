"""A host: it receives messages, hands them over, and settles or returns each by its outcome. Its broker counts deliveries.

It is under check, so that hosts that break the contract are mutants, and must be caught.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from onceonly.model.errors import RetryableError
from onceonly.model.hosted import HostedMessage, HostedOutcome
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport

Handle = Callable[[Sequence[HostedMessage]], Awaitable[tuple[HostedOutcome, ...]]]


async def serve(batch: Sequence[Delivery], handle: Handle, broker: Transport, *, again: bool) -> None:
    """Hand a batch over, then acknowledge what is settled and return the rest.

    `again` hands the rest to the same process once more before that.
    """
    settled: list[Delivery] = []
    left, earlier = list(batch), 0
    while left:
        outcomes = await handle([_message(each, earlier) for each in left])
        settled += [each for each, outcome in zip(left, outcomes, strict=True) if outcome.is_settled]
        left = [each for each, outcome in zip(left, outcomes, strict=True) if not outcome.is_settled]
        if earlier or not again:
            break
        earlier = 1
    # Crash here: 1 settled, 2 not acknowledged, 3 it comes again, 4 it is known, and settled once more.
    if settled:
        with suppress(RetryableError):
            await broker.ack(settled)
    if left:
        with suppress(RetryableError):
            await broker.release(left)


def _message(delivery: Delivery, earlier: int) -> HostedMessage:
    """Return what is handed over; `earlier` are the deliveries that only this process has counted."""
    receipt: Any = delivery.receipt
    return HostedMessage(body=delivery.body, headers=delivery.headers, deliveries=receipt.times + earlier)
