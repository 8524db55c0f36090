"""A transport on Azure Service Bus: queues with peek-lock, topics with subscriptions that forward.

A delivery is locked for the lease. When the lock ends, the service delivers it again, and counts that. A delivery with a count
above zero is a suspect. So a release is a copy, sent to the own queue, then the original is completed: a copy begins at zero,
and releases never use up the delivery count of the queue. Crash between the two: 1 copy stored, 2 original not completed,
3 both come, the original as a suspect, 4 one claim: handled once.

Every message has a session, its key or one of a few. Only queues that require sessions use it: see `sessions`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from secrets import token_hex

from azure.servicebus import ServiceBusMessage

from onceonly.adapters.azure.servicebus.address import EntityNames, read_servicebus, session_of
from onceonly.adapters.azure.servicebus.inbox import ServiceBusInbox, ServiceBusReceipt, Taken
from onceonly.adapters.azure.servicebus.link import EntityMissing, ServiceBusLink
from onceonly.adapters.azure.servicebus.sessions import SessionInbox
from onceonly.adapters.azure.servicebus.topology import Administration, Forbidden
from onceonly.adapters.azure.servicebus.wire import PREFIX, body_of, headers_of, outgoing, to_properties
from onceonly.formats.cloudevents import UNREADABLE, arrival
from onceonly.model.destination import Queue, Topic, is_destination, read_destination
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, QueueMissing, SetupError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.destinations import UnsubscribedEvents, report_unsent
from onceonly.queues.messages import write_to_fit

__all__ = ["ServiceBusTransport"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ServiceBusTransport:
    """One endpoint's queue in a namespace. Any number of processes may share it. The clock of the service decides.

    `unsubscribed` counts the events sent from here that have no topic.
    """

    def __init__(self, link: ServiceBusLink, endpoint: str, *, clock: Clock | None = None) -> None:
        address = link.address
        self.traits = address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._names = EntityNames(address.prefix)
        self._queue = self._names.queue(endpoint)
        self._inbox = self._open_inbox(self._queue)
        self._administration = Administration(address)
        self._expected = ""

    @staticmethod
    async def connect(url: str, _random: RandomSource) -> ServiceBusLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return ServiceBusLink(read_servicebus(url))

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. Cancelled, it releases what has come."""
        return tuple([self._delivery(taken) for taken in await self._inbox.take(limit, wait)])

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send in batches, to all entities at the same time; see the port. An entity that fails costs only its messages.

        REFUSED: a queue that does not exist, a body over `max_body`, headers that are too large. UNKNOWN: no answer came.
        Raises CommitFailed when the service is away, and SetupError for a missing right, if nothing was taken.
        """
        answers: list[Answer] = [Answer.REFUSED] * len(sends)
        parts: dict[str, list[tuple[int, ServiceBusMessage]]] = {}
        for number, send in enumerate(sends):
            message, entity = self._message(send), self._entity(send)
            if message is not None and entity is not None:
                parts.setdefault(entity, []).append((number, message))
        results = await asyncio.gather(*(self._send(entity, part) for entity, part in parts.items()), return_exceptions=True)
        for part, result in zip(parts.values(), results, strict=True):
            for at, (number, _) in enumerate(part):
                if isinstance(result, EntityMissing):
                    answers[number] = self._unrouted(sends[number])
                else:
                    answers[number] = Answer.UNKNOWN if isinstance(result, BaseException) else result[at]
        failed = {
            entity: each
            for entity, each in zip(parts, results, strict=True)
            if isinstance(each, BaseException) and not isinstance(each, EntityMissing)
        }
        for entity, error in failed.items():
            if Answer.TAKEN not in answers or not isinstance(error, OnceOnlyError):
                raise error
            report_unsent(self._endpoint, entity, error)
        return tuple(answers)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Complete deliveries; those whose lock was lost are ignored, they come again. Raises OutcomeUnknown."""
        await self._inbox.complete(_receipts(deliveries))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries, as copies or by closing sessions. Raises OutcomeUnknown, CommitFailed."""
        if isinstance(self._inbox, SessionInbox):
            await self._inbox.release(_receipts(deliveries))
            return
        inbox = self._inbox
        kept = await inbox.renew(_receipts(deliveries))
        held = [each for each in deliveries if each.receipt in kept]
        copies: list[ServiceBusMessage] = []
        copied: list[Delivery] = []
        odd: list[Delivery] = []
        for each in held:
            properties = None if each.headers and each.headers[0][0] == UNREADABLE else to_properties(each.headers)
            if properties is None:
                odd.append(each)
                continue
            copies.append(outgoing(properties, each.body, message_id=token_hex(16), session=_session(each)))
            copied.append(each)
        try:
            answers = await self._link.send(self._queue, copies) if copies else []
        except EntityMissing as error:
            raise QueueMissing(f"cannot release messages: queue {self._queue!r} does not exist") from error
        # Crash here: 1 copy stored, 2 original not completed, 3 both come, the original as a suspect, 4 one claim.
        await inbox.complete(_receipts([each for each, answer in zip(copied, answers, strict=True) if answer is Answer.TAKEN]))
        refused = [each for each, answer in zip(copied, answers, strict=True) if answer is Answer.REFUSED]
        await inbox.abandon(_receipts([*odd, *refused]))
        if Answer.UNKNOWN in answers:
            raise OutcomeUnknown(f"cannot release messages: queue {self._queue!r} did not confirm every copy")

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew locks; a lock that was lost is not revived."""
        await self._inbox.renew(_receipts(deliveries))

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues, topics and subscriptions. Without the right Manage, check that the queues exist.

        Raises SetupError, which describes what an operator has to create.
        """
        try:
            await self._administration.declare(topologies)
        except Forbidden as error:
            self._expected = "; ".join(map(self._administration.expected, topologies))
            for topology in topologies:
                await self._require_queue(topology, error)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. Service Bus counts what receivers hold as waiting. Needs the right Manage."""
        return await self._administration.depth(endpoint, events)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; None without the right Manage."""
        try:
            return await self._administration.subscriptions(endpoint)
        except Forbidden:
            return None

    async def check(self) -> BrokerReport:
        """Report the settings of the queue; see the protocol. Without the right Manage, only that they were not read."""
        try:
            return await self._administration.report(self._endpoint)
        except Forbidden:
            expected = f". Expected: {self._expected}" if self._expected else ""
            warning = f"the settings of queue {self._queue!r} and its subscriptions were not checked: no right Manage{expected}"
            return BrokerReport(warnings=(warning,))

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues and the subscriptions to their events: for demos and tests."""
        await self._administration.remove(topologies)

    async def close(self) -> None:
        """Close the connections of this queue. Wait until messages without a receiver are released."""
        await self._inbox.close()

    def _delivery(self, taken: Taken) -> Delivery:
        message, receipt, suspect = taken
        headers = headers_of(message)
        body, problem = body_of(message)
        if problem and not (headers and headers[0][0] == UNREADABLE):
            headers = ((UNREADABLE, problem), *headers)
        return arrival(receipt, self._endpoint, headers, body, suspect=suspect)

    def _entity(self, send: Send) -> str | None:
        """Return the queue or topic of a message; None for a destination of another kind."""
        if not is_destination(send.to):
            return self._names.queue(send.to) if send.to else self._names.topic(send.message.type)
        found = read_destination(send.to)
        return found.name if isinstance(found, Queue | Topic) else None

    def _message(self, send: Send) -> ServiceBusMessage | None:
        """Make the message of a send; None if it can never be stored."""
        message = send.message
        if len(message.body) > self.traits.max_body:
            return None
        properties = write_to_fit(send, lambda headers, _: to_properties(headers), PREFIX)
        if properties is None:
            return None
        session = session_of(message.partition_key, message.source, message.id)  # ignored by queues without sessions
        formatted = message if send.formatted else None
        found = outgoing(properties, message.body, message_id=token_hex(16), session=session, formatted=formatted)
        if send.due:
            found.scheduled_enqueue_time_utc = _EPOCH + timedelta(milliseconds=send.due)
        return found

    async def _send(self, entity: str, part: Sequence[tuple[int, ServiceBusMessage]]) -> list[Answer]:
        return await self._link.send(entity, [message for _, message in part])

    def _unrouted(self, send: Send) -> Answer:
        if send.to:
            return Answer.REFUSED
        self.unsubscribed.add(send.message.type)
        return Answer.TAKEN

    def _open_inbox(self, queue: str) -> ServiceBusInbox | SessionInbox:
        return SessionInbox(self._link, queue) if self._link.address.sessions else ServiceBusInbox(self._link, queue)

    async def _require_queue(self, topology: Topology, error: SetupError) -> None:
        queue = self._open_inbox(self._names.queue(topology.endpoint))
        try:
            with suppress(CommitFailed):
                await queue.exists()
        except QueueMissing as missing:
            expected = self._administration.expected(topology)
            raise SetupError(f"{error}. An operator has to create: {expected}") from missing
        finally:
            await queue.close()


def _receipts(deliveries: Sequence[Delivery]) -> list[ServiceBusReceipt]:
    return [each.receipt for each in deliveries if isinstance(each.receipt, ServiceBusReceipt)]


def _session(delivery: Delivery) -> str | None:
    return (delivery.receipt.session or None) if isinstance(delivery.receipt, ServiceBusReceipt) else None
