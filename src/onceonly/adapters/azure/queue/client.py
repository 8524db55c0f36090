"""Azure Queue Storage: the requests of a transport, and what its errors mean.

Every request is sent once. What is not on the list of definite errors is OutcomeUnknown.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from azure.storage.queue import QueueMessage
from azure.storage.queue.aio import QueueClient, QueueServiceClient

from onceonly.adapters.azure.client import BROKEN, access_error, code_of, connected, outage, setup_errors
from onceonly.adapters.azure.queue.address import MOST_RECEIVED, AzureQueueAddress, QueueNames
from onceonly.model.errors import OnceOnlyError, OutcomeUnknown
from onceonly.queues.polls import Wakes

AT_ONCE = 32
"""Requests of one process that are under way at the same time."""
FOR_EVER = -1
"""The time to live of every message. By default Azure deletes a message after seven days."""
_GONE = frozenset({"PopReceiptMismatch", "MessageNotFound"})
_NO_QUEUE = frozenset({"QueueNotFound", "ResourceNotFound"})
_REFUSED = frozenset({"RequestBodyTooLarge", "MessageTooLarge", "InvalidXmlDocument"})


class QueueNotFound(Exception):
    """A queue of this name does not exist. Nothing of the request happened."""


class LeaseLost(Exception):
    """A delivery is held by another receiver, or was deleted. Nothing of the request happened."""


class MessageRefused(Exception):
    """The service can never store this message. Nothing of the request happened."""


class QueueLink:
    """One connection to the queues of an account, for all that a process has behind one URL."""

    def __init__(self, address: AzureQueueAddress) -> None:
        self.address = address
        self.names = QueueNames(address.prefix)
        self.wakes = Wakes()
        self._stack = AsyncExitStack()
        self._service: QueueServiceClient
        self._queues: dict[str, QueueClient] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def open(self) -> "QueueLink":
        """Make the client; connects at its first request. Raises SetupError, DriverMissing."""
        how = await self._stack.enter_async_context(connected(self.address.account, timeout=self.address.timeout))
        with setup_errors("Azure Queue"):
            self._service = QueueServiceClient(self.address.account.endpoint, **how)
        await self._stack.enter_async_context(self._service)
        return self

    async def close(self) -> None:
        await self._stack.aclose()

    async def put(self, queue: str, text: str, *, hidden: int = 0) -> None:
        """Add a message, which is hidden for `hidden` seconds. Raises QueueNotFound, MessageRefused, OnceOnlyError."""
        async with self._request(f"send to the queue {queue}"):
            await self._queue(queue).send_message(text, visibility_timeout=hidden or None, time_to_live=FOR_EVER)

    async def receive(self, queue: str, limit: int, lease: int) -> list[QueueMessage]:
        """Receive messages, at most `MOST_RECEIVED`, and hide them for `lease` seconds. Raises QueueNotFound, OnceOnlyError."""
        found: list[QueueMessage] = []
        async with self._request(f"receive from the queue {queue}"):
            received = self._queue(queue).receive_messages(messages_per_page=limit, visibility_timeout=lease)
            async for page in received.by_page():
                found = [message async for message in page]
                break
        return found

    async def update(self, queue: str, message_id: str, receipt: str, *, hidden: int, text: str | None = None) -> str:
        """Hide a message for `hidden` seconds from now on, and change its text. Return the new receipt.

        Raises LeaseLost, QueueNotFound, MessageRefused, OnceOnlyError.
        """
        async with self._request(f"renew a lease in the queue {queue}"):
            updated = await self._queue(queue).update_message(message_id, receipt, content=text, visibility_timeout=hidden)
        if not updated.pop_receipt:
            raise OutcomeUnknown(f"queue {queue} returned no receipt for a message, so its outcome is unknown")
        return str(updated.pop_receipt)

    async def delete(self, queue: str, message_id: str, receipt: str) -> None:
        """Delete a message. Raises LeaseLost, QueueNotFound, OnceOnlyError."""
        async with self._request(f"delete a message of the queue {queue}"):
            await self._queue(queue).delete_message(message_id, receipt)

    async def count(self, queue: str) -> tuple[int, int]:
        """Return how many messages are in a queue, and how many of them are visible: all, if `MOST_RECEIVED` or more are.

        The first is not lower than the truth, and may be higher. Raises QueueNotFound, OnceOnlyError.
        """
        async with self._request(f"count the queue {queue}"):
            visible = await self._queue(queue).peek_messages(MOST_RECEIVED)
            about = await self._queue(queue).get_queue_properties()
        total = max(int(about.approximate_message_count or 0), len(visible))
        return total, total if len(visible) == MOST_RECEIVED else len(visible)

    async def exists(self, queue: str, *, starts: bool = False) -> bool:
        """Return whether there is a queue. Raises OnceOnlyError; at a start, SetupError if this identity may not look."""
        try:
            async with self._request(f"look for the queue {queue}", starts=starts):
                await self._queue(queue).get_queue_properties()
        except QueueNotFound:
            return False
        return True

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Create a queue. Return false if there is one with other metadata. Raises OnceOnlyError."""
        try:
            async with self._request(f"create the queue {queue}", starts=True):
                await self._queue(queue).create_queue(metadata=metadata)
        except _AlreadyThere:
            return False
        return True

    async def describe(self, queue: str, metadata: dict[str, str]) -> None:
        async with self._request(f"change the metadata of the queue {queue}", starts=True):
            await self._queue(queue).set_queue_metadata(metadata)

    async def list(self, prefix: str) -> list[tuple[str, dict[str, str]]]:
        """Return names and metadata of the queues whose names begin so. Raises OnceOnlyError."""
        async with self._request(f"list the queues {prefix}*"):
            found = self._service.list_queues(name_starts_with=prefix, include_metadata=True)
            return [(str(each.name), dict(each.metadata or {})) async for each in found]

    async def drop(self, queue: str) -> None:
        """Delete a queue with its messages, if there is one. Raises OnceOnlyError."""
        with suppress(QueueNotFound):
            async with self._request(f"delete the queue {queue}"):
                await self._queue(queue).delete_queue()

    def _queue(self, name: str) -> QueueClient:
        client = self._queues.get(name)
        if client is None:
            client = self._queues[name] = self._service.get_queue_client(name)
        return client

    @asynccontextmanager
    async def _request(self, doing: str, *, starts: bool = False) -> AsyncIterator[None]:
        """Wait for a free slot, and translate what a request raises. `starts`: a person can correct what is not allowed."""
        async with self._slots:
            try:
                yield
            except BROKEN as error:
                raise _translated(error, f"{doing} at {self.address.place}", starts=starts) from error


class _AlreadyThere(Exception):
    """A queue of this name exists with other metadata."""


def _translated(error: Exception, doing: str, *, starts: bool) -> Exception:
    code = code_of(error)
    if code in _NO_QUEUE:
        return QueueNotFound(doing)
    if code in _GONE:
        return LeaseLost(doing)
    if code in _REFUSED:
        return MessageRefused(doing)
    if code == "QueueAlreadyExists":
        return _AlreadyThere(doing)
    if code == "QueueBeingDeleted":
        return OutcomeUnknown(f"cannot {doing}: Azure is deleting a queue of this name. That takes 30 seconds or longer")
    translated: OnceOnlyError = (access_error(error) if starts else None) or outage(doing, error)
    return translated
