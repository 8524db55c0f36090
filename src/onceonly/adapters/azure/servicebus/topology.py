"""The objects in Service Bus, created and read over HTTPS: a queue for each endpoint, a topic for each event type.

    topic event__shop.paid.v1 --> subscription shop  --(forward)--> queue shop
                              --> subscription audit --(forward)--> queue audit

An endpoint receives from its queue only. Objects that exist are used as they are. All of this needs the right Manage. A key or
an identity without it can send and receive, and an operator creates the objects.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties

from onceonly.adapters.azure.servicebus.address import EntityNames, ServiceBusAddress
from onceonly.adapters.azure.servicebus.link import connection_string, identity_credential
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.model.errors import CommitFailed, OnceOnlyError, SetupError
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.messages import queue_missing

MOST_DELIVERIES = 2000
"""The delivery count that new objects allow: the greatest that the service accepts."""
FEW_DELIVERIES = 50
_SHORT_LIFE = timedelta(days=365)
_AT_ONCE = 10
_BROKEN: tuple[type[Exception], ...] = (AzureError, *DRIVER_FAULTS)
_FORBIDDEN = (401, 403)


class Forbidden(SetupError):
    """The right Manage is missing."""


class _PlainTransport(AioHttpTransport):  # type: ignore[misc] # the SDK gives it by __getattr__
    """Sends the requests of the SDK, which are for HTTPS, to an emulator."""

    def __init__(self, address: ServiceBusAddress) -> None:
        super().__init__()
        self._from = f"https://{address.host}"
        self._to = f"http://{address.host.rpartition(':')[0]}:{address.management_port}"

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, or send it again."""
        if request.url.startswith(self._from):
            request.url = self._to + request.url.removeprefix(self._from)
        return await super().send(request, **options)


class Administration:
    """The objects of a namespace."""

    def __init__(self, address: ServiceBusAddress) -> None:
        self._address = address
        self._names = EntityNames(address.prefix)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create what is missing, and delete subscriptions that are gone. Raises Forbidden, SetupError, CommitFailed."""
        async with self._client("declare queues") as client:
            for topology in topologies:
                await self._declare_queue(client, self._names.queue(topology.endpoint))
                for kind in topology.events:
                    await self._subscribe(client, kind, topology.endpoint)
                for kind in topology.gone:
                    with suppress(ResourceNotFoundError):
                        await client.delete_subscription(self._names.topic(kind), self._names.subscription(topology.endpoint))

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, the subscriptions to their events, and topics without subscriptions: for demos and tests."""
        async with self._client("delete queues") as client:
            for topology in topologies:
                for kind in topology.events:
                    topic = self._names.topic(kind)
                    with suppress(ResourceNotFoundError):
                        await client.delete_subscription(topic, self._names.subscription(topology.endpoint))
                        if not (await client.get_topic_runtime_properties(topic)).subscription_count:
                            await client.delete_topic(topic)
                with suppress(ResourceNotFoundError):
                    await client.delete_queue(self._names.queue(topology.endpoint))

    async def depth(self, endpoint: str, events: Sequence[str]) -> Depth:
        """Count a queue, and the delayed events of these types. Raises QueueMissing, Forbidden, CommitFailed."""
        async with self._client("count messages") as client:
            try:
                found = await client.get_queue_runtime_properties(self._names.queue(endpoint))
            except ResourceNotFoundError as error:
                raise queue_missing(f"queue {endpoint!r}") from error
            delayed = found.scheduled_message_count or 0
            for kind in events:
                with suppress(ResourceNotFoundError):
                    topic = await client.get_topic_runtime_properties(self._names.topic(kind))
                    delayed += topic.scheduled_message_count or 0
            return Depth(waiting=found.active_message_count or 0, held=0, delayed=delayed)

    async def subscriptions(self, endpoint: str) -> frozenset[str]:
        """List the event types that an endpoint subscribes to, but for those whose name is too long to be written."""
        name = self._names.subscription(endpoint)
        async with self._client("list subscriptions") as client:
            kinds = [kind async for topic in client.list_topics() if (kind := self._names.kind_of(topic.name)) is not None]
            found: set[str] = set()

            async def look(kind: str) -> None:
                with suppress(ResourceNotFoundError):
                    await client.get_subscription(self._names.topic(kind), name)
                    found.add(kind)

            for start in range(0, len(kinds), _AT_ONCE):
                await asyncio.gather(*(look(kind) for kind in kinds[start : start + _AT_ONCE]))
            return frozenset(found)

    async def report(self, endpoint: str) -> BrokerReport:
        """Read the settings of a queue. Raises SetupError if they break a promise, Forbidden, CommitFailed."""
        async with self._client("read the settings of queues") as client:
            try:
                found = await client.get_queue(self._names.queue(endpoint))
            except ResourceNotFoundError as error:
                raise queue_missing(f"queue {endpoint!r}") from error
        self._refuse(found)
        settings = {
            "lock_duration": str(found.lock_duration),
            "max_delivery_count": str(found.max_delivery_count),
            "requires_session": str(bool(found.requires_session)).lower(),
            "requires_duplicate_detection": str(bool(found.requires_duplicate_detection)).lower(),
            "max_size_in_megabytes": str(found.max_size_in_megabytes),
        }
        return BrokerReport(settings=tuple(settings.items()), warnings=tuple(_warnings(found)))

    def expected(self, topology: Topology) -> str:
        """Describe the objects that an operator has to create for an endpoint."""
        queue = self._names.queue(topology.endpoint)
        objects = [
            f"queue {queue!r} with lock duration {self._address.lease} s, max delivery count {MOST_DELIVERIES}"
            + (", sessions" if self._address.sessions else "")
        ]
        objects += [
            f"topic {self._names.topic(kind)!r} with subscription {self._names.subscription(topology.endpoint)!r},"
            f" forwarded to {queue!r}"
            for kind in topology.events
        ]
        return "; ".join(objects)

    def _refuse(self, found: QueueProperties) -> None:
        name = found.name
        if bool(found.requires_session) != self._address.sessions:
            raise SetupError(
                f"queue {name!r} {'requires' if found.requires_session else 'has no'} sessions: set sessions="
                f"{'true' if found.requires_session else 'false'} in the URL, or create the queue again"
            )
        lock = _seconds(found.lock_duration)
        if lock < self._address.lease:
            raise SetupError(
                f"queue {name!r} locks a message for {lock:g} s, and the URL has lease={self._address.lease}: messages would be"
                f" delivered twice at the same time. Set lease={int(lock)}, or raise the lock duration of the queue"
            )
        if found.forward_to:
            raise SetupError(f"queue {name!r} forwards its messages to {found.forward_to}: remove `forward to` from the queue")

    async def _declare_queue(self, client: ServiceBusAdministrationClient, name: str) -> None:
        try:
            self._refuse(await client.get_queue(name))
        except ResourceNotFoundError:
            with suppress(ResourceExistsError):
                await client.create_queue(
                    name,
                    lock_duration=timedelta(seconds=self._address.lease),
                    max_delivery_count=MOST_DELIVERIES,
                    requires_session=self._address.sessions,
                )

    async def _subscribe(self, client: ServiceBusAdministrationClient, kind: str, endpoint: str) -> None:
        topic, name, queue = self._names.topic(kind), self._names.subscription(endpoint), self._names.queue(endpoint)
        try:
            found = await client.get_subscription(topic, name)
        except ResourceNotFoundError:
            with suppress(ResourceExistsError):
                await client.create_topic(topic)
            with suppress(ResourceExistsError):
                await client.create_subscription(topic, name, forward_to=queue, max_delivery_count=MOST_DELIVERIES)
            return
        if (found.forward_to or "").rstrip("/").rpartition("/")[2].lower() != queue:
            raise SetupError(
                f"subscription {name!r} of topic {topic!r} does not forward to queue {queue!r}, so its events are not received."
                " Set `forward to` of the subscription, or delete it"
            )

    @asynccontextmanager
    async def _client(self, what: str) -> AsyncIterator[ServiceBusAdministrationClient]:
        """Open a client; it lives for one call. Raises Forbidden, CommitFailed, SetupError."""
        address = self._address
        if not address.manages:
            raise Forbidden(f"cannot {what}: the URL has manage=false")
        options: dict[str, Any] = {"retry_total": 2}
        if address.emulator:
            options["transport"] = _PlainTransport(address)
        try:
            if address.key_name:
                client = ServiceBusAdministrationClient.from_connection_string(connection_string(address), **options)
            else:
                client = ServiceBusAdministrationClient(address.host, identity_credential(address), **options)
            async with asyncio.timeout(address.timeout), client:
                yield client
        except _BROKEN as error:
            raise _translated(error, what, address) from error


def _translated(error: Exception, what: str, address: ServiceBusAddress) -> OnceOnlyError:
    text = f"cannot {what} at {address.place}: {error}"
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if isinstance(error, ClientAuthenticationError) or status in _FORBIDDEN:
        return Forbidden(f"{text}. This needs the right Manage (role Azure Service Bus Data Owner)")
    if status in (400, 409):
        return SetupError(f"{text}. Correct the object in the namespace, or set another prefix= in the URL")
    return CommitFailed(text)


def _warnings(found: QueueProperties) -> list[str]:
    name, warnings = found.name, []
    if (found.max_delivery_count or MOST_DELIVERIES) < FEW_DELIVERIES:
        warnings.append(
            f"queue {name!r} moves a message to the broker's own dead-letter queue after {found.max_delivery_count} deliveries,"
            " without a dead letter of the endpoint. Raise its max delivery count"
        )
    if _seconds(found.default_message_time_to_live) < _SHORT_LIFE.total_seconds():
        warnings.append(
            f"queue {name!r} drops messages after {found.default_message_time_to_live} (message time to live). Raise it"
        )
    if _seconds(found.auto_delete_on_idle) < _SHORT_LIFE.total_seconds():
        warnings.append(f"queue {name!r} is deleted when it is idle for {found.auto_delete_on_idle}. Disable that")
    if found.status is not None and str(getattr(found.status, "value", found.status)).lower() != "active":
        warnings.append(f"queue {name!r} is not active: its status is {found.status}. Activate it")
    return warnings


def _seconds(duration: object) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return float("inf")
