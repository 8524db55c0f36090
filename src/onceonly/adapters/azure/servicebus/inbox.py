"""What one process receives from one queue, and how it settles.

The SDK receives ahead: credit that a call has left over brings messages to a process that is busy, while another is idle.
So this asks for messages on the SDK's link itself, and then drains the link (AMQP 1.0, section 2.6.7): the service delivers
what it has, and takes back the rest of the credit. The SDK documents no way to do that, so this module uses its inner objects.

Messages are settled and their locks renewed by lock token, through the management node of the queue: one request for many, with
an answer for each request, and also after the link that brought them was lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSession
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusConnectionError,
    SessionLockLostError,
)
from msgspec import Struct

from onceonly.adapters.azure.servicebus.link import LOST, ServiceBusLink, close, translated
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError
from onceonly.queues.deliveries import BackgroundCalls

_log = logging.getLogger(__name__)
STEP_SECONDS = 0.2
"""For how long a read of the connection waits."""
DRAIN_SECONDS = 5.0
MOST_TOKENS = 500
"""Messages that one request settles."""
_CREDIT = 6  # the field of a flow frame; section 2.7.4
_DELIVERY_COUNT = 5


class ServiceBusReceipt(Struct, frozen=True):
    """The lock of one delivery. `session` is the session of the message, or of the link."""

    token: UUID
    session: str = ""


Taken = tuple[ServiceBusReceivedMessage, ServiceBusReceipt, bool]
"""A message, its lock, and whether it is a suspect."""


class Stop:
    """Reports to a receiver that its caller no longer waits."""

    def __init__(self) -> None:
        self.is_set = False


class ServiceBusInbox:
    """Deliveries of one queue, for all receivers of one process."""

    def __init__(self, link: ServiceBusLink, queue: str) -> None:
        self._link = link
        self._queue = queue
        self._free: list[Puller] = []
        self._all: set[Puller] = set()
        self._settler: ServiceBusReceiver | None = None
        self._settling = asyncio.Lock()
        self._background = BackgroundCalls()

    async def take(self, limit: int, wait: float) -> list[Taken]:
        """Take what waits, at most `limit`, none after `wait` seconds. Raises RetryableError, QueueMissing.

        Cancelled, it ends in the background, and releases what has come.
        """
        stop = Stop()
        taking = asyncio.create_task(self._take(limit, wait, stop))
        try:
            taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            stop.is_set = True
            self._background.start(self._undo(taking), *LOST)
            raise
        return [(message, _receipt_of(message), bool(message.delivery_count)) for message in taken]

    async def complete(self, receipts: Sequence[ServiceBusReceipt]) -> None:
        """Delete messages; those whose lock was lost are ignored. Raises OutcomeUnknown."""
        await self._each(
            receipts, "acknowledge messages", lambda node, tokens: node._settle_message_via_mgmt_link("completed", tokens)
        )

    async def abandon(self, receipts: Sequence[ServiceBusReceipt]) -> None:
        """Unlock messages, which are delivered again as suspects; see `complete`."""
        await self._each(
            receipts, "release messages", lambda node, tokens: node._settle_message_via_mgmt_link("abandoned", tokens)
        )

    async def renew(self, receipts: Sequence[ServiceBusReceipt]) -> set[ServiceBusReceipt]:
        """Renew locks, and return those that were not lost; see `complete`."""
        kept = await self._each(receipts, "renew leases", lambda node, tokens: node._renew_locks(*tokens))
        return {receipt for receipt in receipts if receipt.token in kept}

    async def exists(self) -> None:
        """Connect to the queue. Raises QueueMissing, CommitFailed, SetupError."""
        await self._take(1, 0.0, Stop(), opens_only=True)

    async def close(self) -> None:
        """Close what is open. Wait until messages without a receiver are released."""
        await self._background.close()
        await asyncio.gather(*(puller.close() for puller in self._all))
        if self._settler is not None:
            await close(self._settler)

    async def _undo(self, taking: "asyncio.Task[list[ServiceBusReceivedMessage]]") -> None:
        """Unlock what has been taken although the caller no longer waits: it was too late to release it on its link."""
        await self.abandon([_receipt_of(message) for message in await taking])

    async def _take(self, limit: int, wait: float, stop: Stop, *, opens_only: bool = False) -> list[ServiceBusReceivedMessage]:
        puller = self._free.pop() if self._free else Puller(self._link.receiver(self._queue))
        self._all.add(puller)
        try:
            async with asyncio.timeout(self._link.address.timeout):
                await puller.open()
            return [] if opens_only else await puller.pull(limit, wait, stop)
        except LOST as error:
            await puller.close()
            raise receive_error(error, self._queue) from error
        finally:
            if puller.is_open:
                self._free.append(puller)
            else:
                self._all.discard(puller)

    async def _each(
        self,
        receipts: Sequence[ServiceBusReceipt],
        what: str,
        settle: Callable[[Any, list[UUID]], Awaitable[Any]],
    ) -> set[UUID]:
        tokens = [receipt.token for receipt in receipts]
        done: set[UUID] = set()
        if not tokens:
            return done
        async with self._settling:
            if self._settler is None:
                self._settler = self._link.receiver(self._queue)
            try:
                for start in range(0, len(tokens), MOST_TOKENS):
                    done |= await self._settle(settle, tokens[start : start + MOST_TOKENS])
            except LOST as error:
                await close(self._settler)
                self._settler = None
                found = translated(error, f"{what} of queue {self._queue!r}")
                raise (OutcomeUnknown(str(found)) if isinstance(found, CommitFailed) else found) from error
        return done

    async def _settle(self, settle: Callable[[Any, list[UUID]], Awaitable[Any]], tokens: list[UUID]) -> set[UUID]:
        """Settle many by one request; return those whose lock was not lost.

        If one was lost, the service refuses all. Then settle the halves.
        """
        try:
            async with asyncio.timeout(self._link.address.timeout):
                await settle(self._settler, tokens)
        except (MessageLockLostError, MessageNotFoundError):
            if len(tokens) == 1:
                return set()
            middle = len(tokens) // 2
            first = await self._settle(settle, tokens[:middle])
            return first | await self._settle(settle, tokens[middle:])
        return set(tokens)


class Puller:
    """One link of the SDK, with the credit that a call asks for.

    `by_token` is whether deliveries are settled by lock token, so the link does not need to remember them.
    """

    def __init__(self, receiver: ServiceBusReceiver, *, by_token: bool = True) -> None:
        self._receiver: Any = receiver
        self._by_token = by_token
        self._hooked: Any = None
        self._drained = False
        self.is_open = False

    async def open(self) -> None:
        """Open the link if it is not. Raises the SDK's errors."""
        await self._receiver.__aenter__()
        link = self._receiver._handler._link
        if link is not self._hooked:
            link._incoming_flow = self._flow  # the SDK ignores it
            self._hooked = link
        self.is_open = True

    async def pull(self, limit: int, wait: float, stop: Stop) -> list[ServiceBusReceivedMessage]:
        """Receive at most `limit`. If the caller no longer waits, release what has come. Raises the SDK's errors."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        link, queue = self._receiver._handler._link, self._receiver._handler._received_messages
        self._receiver._receive_context.set()  # else the SDK releases what comes
        try:
            await link.flow(link_credit=limit)
            while queue.empty() and not stop.is_set and (left := end - clock()) > 0:
                await self._read(link, min(STEP_SECONDS, left))
            await self._drain(link)
        except AMQPException as error:
            raise self._receiver._amqp_transport.create_servicebus_exception(_log, error) from error
        finally:
            self._receiver._receive_context.clear()
        got = []
        while not queue.empty():
            got.append(queue.get())
            queue.task_done()
        if stop.is_set:
            await self._give_back(got)
            return []
        if self._by_token:
            link._received_delivery_tags.difference_update(frame[2] for frame, _ in got)
        return [self._receiver._build_received_message(each) for each in got]

    async def settle(self, first: int, last: int, tags: Sequence[bytes], seconds: float) -> None:
        """Delete the messages of deliveries that follow each other, on this link. Raises the SDK's errors."""
        handler, link = self._receiver._handler, self._receiver._handler._link

        async def accept() -> None:
            options: dict[str, Any] = {"await_outcome": True, "outcome_timeout": seconds}
            await handler.settle_messages_async((first, last), tags[0], "accepted", **options)

        try:
            await self._receiver._do_retryable_operation(accept)
        except LOST as error:
            if "session-lock-lost" in str(link._error):
                raise SessionLockLostError from error
            raise
        link._received_delivery_tags.difference_update(tags)

    @property
    def session_id(self) -> str:
        return str(self._receiver.session.session_id)

    async def ask(self, what: Callable[[ServiceBusSession], Awaitable[Any]]) -> Any:
        """Ask the service about the session of the link. Raises the SDK's errors."""
        session = self._receiver.session
        session._locked_until_utc = None  # the SDK would compare it with the clock of this machine
        found = await what(session)
        session._locked_until_utc = None
        return found

    async def close(self) -> None:
        self.is_open = False
        await close(self._receiver)

    async def _drain(self, link: Any) -> None:
        """Make the service deliver what it has, and take back the rest of the credit."""
        if link.current_link_credit <= 0:
            return
        clock = asyncio.get_running_loop().time
        end = clock() + DRAIN_SECONDS
        self._drained = False
        await link.flow(link_credit=link.current_link_credit, drain=True)
        while not self._drained and link.current_link_credit > 0:
            if clock() > end:
                await self.close()
                raise CommitFailed("the service did not answer a request for messages")
            await self._read(link, STEP_SECONDS)

    async def _read(self, link: Any, seconds: float) -> None:
        """Read one frame, or none within this time. Raises if the link or the connection has ended."""
        connection = self._receiver._handler._connection
        await connection.listen(wait=max(seconds, 0.01))
        link.get_state()  # raises why it is detached, if it is
        if connection._error:
            raise connection._error
        if connection._transport.reader.at_eof():
            raise ServiceBusConnectionError(message="the service closed the connection")

    async def _flow(self, frame: Any) -> None:
        if frame[_CREDIT] == 0:
            self._hooked.delivery_count = frame[_DELIVERY_COUNT]
            self._hooked.current_link_credit = 0
            self._drained = True

    async def _give_back(self, got: list[Any]) -> None:
        for frame, _ in got:
            with suppress(*LOST):  # else its lock ends
                await self._receiver._handler.settle_messages_async(frame[1], frame[2], "released")


def token_of(message: ServiceBusReceivedMessage) -> UUID:
    return message.lock_token  # type: ignore[return-value] # a UUID, as it is locked


def _receipt_of(message: ServiceBusReceivedMessage) -> ServiceBusReceipt:
    return ServiceBusReceipt(token_of(message), message.session_id or "")


def delivery_of(message: ServiceBusReceivedMessage) -> tuple[int, bytes]:
    """Return the number and the tag of a delivery, which settle it on its link."""
    return message._delivery_id, message._delivery_tag


def receive_error(error: Exception, queue: str) -> OnceOnlyError:
    """Translate an error of the SDK: nothing was taken that does not come again."""
    found = translated(error, f"receive from queue {queue!r}", definite=True)
    if "amqp:not-allowed" in str(error):
        return SetupError(f"{found}. Set sessions=true in the URL if the queue has sessions, or sessions=false")
    return CommitFailed(str(found)) if isinstance(found, OutcomeUnknown) else found
