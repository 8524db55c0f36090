"""Queues and subscriptions in an Azure storage account: creating, listing, counting and deleting them.

Each subscription is a queue of its own, so processes that declare at the same time change different objects.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from onceonly.adapters.azure.queue.address import GONE, SUBSCRIBED, read_subscription, subscription_metadata
from onceonly.adapters.azure.queue.client import QueueLink, QueueNotFound
from onceonly.model.errors import OutcomeUnknown
from onceonly.ports.transport import Depth, Topology
from onceonly.queues.messages import queue_missing

__all__ = ["declare", "depth", "remove", "subscribers", "subscriptions"]


async def declare(link: QueueLink, topologies: Sequence[Topology]) -> None:
    """Create queues and subscriptions, and end those that are gone. Raises SetupError, RetryableError."""
    for topology in topologies:
        await link.create(link.names.queue(topology.endpoint))
        await link.create(link.names.delayed(topology.endpoint))
        for kind in topology.events:
            await _subscribe(link, kind, topology.endpoint)
        for kind in topology.gone:
            with suppress(QueueNotFound):  # it was never subscribed
                ended = subscription_metadata(kind, topology.endpoint, GONE)
                await link.describe(link.names.subscription(kind, topology.endpoint), ended)


async def subscribers(link: QueueLink, kinds: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the endpoints that subscribe to each of these types. Raises CommitFailed, OutcomeUnknown."""
    wanted = tuple(dict.fromkeys(kinds))
    found = await asyncio.gather(*(_listed(link, link.names.subscribers(kind)) for kind in wanted))
    return {
        kind: tuple(sorted(endpoint for each, endpoint in pairs if each == kind))
        for kind, pairs in zip(wanted, found, strict=True)
    }


async def subscriptions(link: QueueLink, endpoint: str) -> frozenset[str]:
    """Return the types that an endpoint subscribes to. Raises CommitFailed, OutcomeUnknown."""
    return frozenset(kind for kind, each in await _listed(link, link.names.subscriptions) if each == endpoint)


async def depth(link: QueueLink, endpoint: str) -> Depth:
    """Count the messages of an endpoint. Raises QueueMissing, CommitFailed, OutcomeUnknown.

    A message that is moved from one queue to the other meanwhile is counted at least once. Azure tells apart only the first 32
    visible messages: with more, all of the queue count as visible.
    """
    queue = link.names.queue(endpoint)
    try:
        total, waiting = await link.count(queue)
        delayed, due = await _count_delayed(link, link.names.delayed(endpoint))
        if not total and not delayed:
            total, waiting = await link.count(queue)
    except QueueNotFound as error:
        raise queue_missing(f"queue {queue} of endpoint {endpoint!r}", link.address.place) from error
    return Depth(waiting=waiting + due, held=total - waiting, delayed=delayed - due)


async def remove(link: QueueLink, topologies: Sequence[Topology]) -> None:
    """Delete the queues and subscriptions of these endpoints, with all messages. For demos and tests."""
    endpoints = {topology.endpoint for topology in topologies}
    gone = [queue(endpoint) for endpoint in endpoints for queue in (link.names.queue, link.names.delayed)]
    kinds = {kind for topology in topologies for kind in (*topology.events, *topology.gone)}
    gone += [link.names.subscription(kind, endpoint) for kind in kinds for endpoint in endpoints]
    listed = await _listed(link, link.names.subscriptions)
    gone += [link.names.subscription(kind, endpoint) for kind, endpoint in listed if endpoint in endpoints]
    for queue in dict.fromkeys(gone):
        await link.drop(queue)


async def _subscribe(link: QueueLink, kind: str, endpoint: str) -> None:
    queue, metadata = link.names.subscription(kind, endpoint), subscription_metadata(kind, endpoint, SUBSCRIBED)
    if not await link.create(queue, metadata):
        try:
            await link.describe(queue, metadata)
        except QueueNotFound as error:
            raise OutcomeUnknown(f"the queue {queue} was deleted while it was declared: declare it again") from error


async def _listed(link: QueueLink, prefix: str) -> list[tuple[str, str]]:
    found = [read_subscription(metadata) for _, metadata in await link.list(prefix)]
    return [each for each in found if each is not None]


async def _count_delayed(link: QueueLink, queue: str) -> tuple[int, int]:
    try:
        return await link.count(queue)
    except QueueNotFound:
        return 0, 0
