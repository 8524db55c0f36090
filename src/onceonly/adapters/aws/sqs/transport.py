"""A transport on SQS, with SNS for events: a queue for each endpoint, a topic for each event type.

A delivery is held for the lease, its visibility time-out. After that SQS delivers it again, and counts that. A delivery with a
count above one is a suspect. So a release is a copy, sent to the own queue and confirmed, then the original is deleted: a copy
begins at one. Crash between the two: 1 copy stored, 2 original not deleted, 3 both come, the original as a suspect, 4 one
claim: handled once.

SQS accepts a late deletion. Here none is sent after the lease. One that is late on its way is harmless: it is sent when the
message was handled and its effects are dispatched.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from msgspec import Struct

from onceonly.adapters.aws.sqs import topology
from onceonly.adapters.aws.sqs.address import FIFO, MOST_BYTES, read_sqs
from onceonly.adapters.aws.sqs.batches import (
    MOST_TOPIC_BYTES,
    Result,
    SqsOutgoing,
    Target,
    on_deliveries,
    send_all,
)
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.delays import SqsDelayedMessages, delete
from onceonly.adapters.aws.sqs.inbox import SqsInbox, SqsReceipt
from onceonly.adapters.aws.sqs.wire import SqsArrival, SqsContent, write
from onceonly.formats.cloudevents import arrival
from onceonly.model.destination import Destination, Queue, Topic, is_destination, read_destination
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, RetryableError, SetupError
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.destinations import CopyOutcome, UnsubscribedEvents, combined_answer, report_unsent
from onceonly.queues.messages import write_to_fit

__all__ = ["SqsTransport"]

COUNT_SECONDS = 30.0
"""For which the number of subscriptions to an event type is believed. It is only counted with, nothing is sent by it."""
_COUNTERS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class _Route(NamedTuple):
    """How a message finds its targets: by the name of a queue, by the topic of an event type, or by who subscribes to it.

    By "destination", it is the text of one that is not an endpoint.
    """

    by: Literal["queue", "topic", "subscribers", "destination"]
    name: str
    delayed: bool = False


class _SendPlan(Struct):
    """Where a message goes: nowhere if `refused`, since it can never be stored. `error` is why it cannot be addressed."""

    targets: list[tuple[Target, SqsOutgoing]]
    refused: bool = False
    error: OnceOnlyError | None = None


class SqsTransport:
    """One endpoint's queue in SQS. Any number of processes may share it.

    `unsubscribed` counts the events sent from here that no endpoint had subscribed to.
    """

    def __init__(self, link: SqsLink, endpoint: str, *, clock: Clock) -> None:
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._clock = clock
        self._name = link.names.queue(endpoint)
        self._delays = SqsDelayedMessages(link, endpoint, clock)
        self._inbox = SqsInbox(link, self._name, clock, postpone=self._delays.postpone, give_back=self._give_back)

    @staticmethod
    async def connect(url: str, _random: RandomSource) -> SqsLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return await SqsLink.open(read_sqs(url))

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. A message that arrives before it is due is sent again with the delay that is left."""
        self._delays.mover.begin()
        try:
            taken = await self._inbox.take(limit, wait)
        finally:
            self._delays.mover.end()
        return tuple(self._delivery(message) for message in taken)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send messages, ten by each request, requests side by side; see the port.

        REFUSED: a command that cannot be routed, a body over `max_body`, a message over what SQS takes. UNKNOWN: no answer
        came, or the broker asks to try again. Raises CommitFailed or SetupError if no message can have been sent. A delayed
        message is late by up to a second, never early.
        """
        plans = await self._plan(sends)
        by_target: dict[Target, list[SqsOutgoing]] = {}
        for plan in plans:
            for target, message in plan.targets:
                by_target.setdefault(target, []).append(message)
        done = await asyncio.gather(*(send_all(self._link, target, messages) for target, messages in by_target.items()))
        outcomes = dict(zip(by_target, map(iter, done), strict=True))
        found = [[next(outcomes[target]) for target, _ in plan.targets] for plan in plans]
        answers = tuple(_answer(send, plan, results) for send, plan, results in zip(sends, plans, found, strict=True))
        failed = [
            (send, error)
            for send, plan, results in zip(sends, plans, found, strict=True)
            for error in (plan.error, *results)
            if isinstance(error, OnceOnlyError)
        ]
        if failed and Answer.TAKEN not in answers and all(isinstance(each, CommitFailed | SetupError) for _, each in failed):
            raise failed[0][1]
        for send, error in failed:
            report_unsent(self._endpoint, send.to or send.message.type, error)
        await self._count(sends, plans, found, answers)
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete deliveries; those whose lease has ended are ignored, they come again. Raises RetryableError."""
        held = self._held(deliveries)
        if not held:
            return
        error = await delete(self._link, await self._link.need(self._name), held)
        if error is not None:
            raise error
        self._inbox.leases.settle(held)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries as copies; those whose lease has ended are ignored, they come again. Raises RetryableError."""
        held = {handle: each for each in deliveries if (handle := self._inbox.holds(each.receipt))}
        await self._copy({handle: write(each.headers, each.body) for handle, each in held.items()})

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew leases; a lease that has ended is not renewed. Raises RetryableError."""
        held = self._held(deliveries)
        if held:
            error = await self._change_leases(held, self._link.address.lease)
            if error is not None:
                raise error

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues, topics and subscriptions; see the port. Raises SetupError, RetryableError."""
        await topology.declare(self._link, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. SQS counts approximately."""
        names = self._link.names
        waiting, held, delayed = await self._counted(names.queue(endpoint))
        if names.delayed(endpoint) != names.queue(endpoint):
            due, moved, later = await self._counted(names.delayed(endpoint))
            waiting, delayed = waiting + due + moved, delayed + later
        return Depth(waiting=waiting, held=held, delayed=delayed)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol. Types with very long names are left out."""
        return await topology.subscriptions(self._link, endpoint)

    async def check(self) -> BrokerReport:
        return await topology.report(self._link, self._endpoint)

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues with their messages, and the topics of their events: for demos and tests."""
        await topology.remove(self._link, topologies)

    async def close(self) -> None:
        """Wait until what was received without a receiver is released."""
        await self._inbox.close()
        await self._delays.mover.close()

    # Receiving

    def _delivery(self, message: SqsArrival) -> Delivery:
        receipt = SqsReceipt(message.handle)
        return arrival(receipt, self._endpoint, message.headers, message.body, suspect=message.count > 1)

    def _held(self, deliveries: Sequence[Delivery]) -> list[str]:
        return list(dict.fromkeys(handle for each in deliveries if (handle := self._inbox.holds(each.receipt))))

    async def _give_back(self, messages: Sequence[SqsArrival]) -> None:
        """Release what no receiver took: as copies, which are not suspects."""
        await self._copy({each.handle: write(each.headers, each.body) for each in messages})

    async def _copy(self, contents: dict[str, SqsContent]) -> None:
        """Send copies to the own queue; then delete the originals. Raises RetryableError, QueueMissing.

        What is too large when it is written anew is delivered again by SQS itself.
        """
        if not contents:
            return
        url = await self._link.need(self._name)
        large = [handle for handle, content in contents.items() if content.size > MOST_BYTES]
        copies = {handle: SqsOutgoing(content) for handle, content in contents.items() if handle not in large}
        results = await send_all(self._link, Target(url, fifo=self._link.address.fifo), list(copies.values()))
        taken = [handle for handle, result in zip(copies, results, strict=True) if result is CopyOutcome.TAKEN]
        # Crash here: 1 copy stored, 2 original not deleted, 3 both come, the original as a suspect, 4 one claim: handled once.
        error = await delete(self._link, url, taken)
        self._inbox.leases.settle(taken)
        if large:
            error = await self._change_leases(large, 0) or error
            self._inbox.leases.settle(large)
        failed = next((result for result in results if isinstance(result, OnceOnlyError)), None)
        if failed is not None:
            raise failed
        if len(taken) < len(copies):
            raise OutcomeUnknown(f"cannot requeue messages: queue {self._name!r} did not confirm every copy")
        if error is not None:
            raise error

    async def _change_leases(self, handles: Sequence[str], seconds: int) -> OnceOnlyError | None:
        url = await self._link.need(self._name)

        async def request(entries: list[dict[str, str]]) -> object:
            changed = [{**entry, "VisibilityTimeout": seconds} for entry in entries]
            return await self._link.sqs.change_message_visibility_batch(QueueUrl=url, Entries=changed)

        gone, error = await on_deliveries(handles, request, self._link, "renew leases")
        if error is None:
            self._inbox.leases.hold(handles)
        self._inbox.leases.settle(gone)
        return error

    async def _counted(self, name: str) -> tuple[int, int, int]:
        found = await self._link.attributes(await self._link.need(name), *_COUNTERS)
        waiting, held, delayed = (int(found.get(each, 0)) for each in _COUNTERS)
        return waiting, held, delayed

    # Sending

    async def _plan(self, sends: Sequence[Send]) -> list[_SendPlan]:
        """Address each message to its queue or topic, and delayed or large events to the queue of each subscriber."""
        written = [self._written(send) for send in sends]
        routes = [None if each is None else self._route(send, each) for send, each in zip(sends, written, strict=True)]
        wanted = [route for route in dict.fromkeys(routes) if route is not None]
        targets = dict(zip(wanted, await asyncio.gather(*map(self._targets_or_error, wanted)), strict=True))
        plans = []
        for send, message, route in zip(sends, written, routes, strict=True):
            if route is None:
                plans.append(_SendPlan([], refused=True))
                continue
            found = targets[route]
            if isinstance(found, OnceOnlyError):
                plans.append(_SendPlan([], error=found))
                continue
            refused = message is None or bool(send.to and not found)
            plans.append(_SendPlan([] if message is None else [(target, message) for target in found], refused=refused))
        return plans

    def _written(self, send: Send) -> SqsOutgoing | None:
        """Write a message; None for one that can never be stored."""
        if len(send.message.body) > self.traits.max_body:
            return None
        due = send.due if send.due > self._clock.now() else 0
        group = send.message.partition_key if send.formatted else ""

        def write_whole(headers: Headers, body: bytes) -> SqsContent | None:
            content = write(headers, body, due=due, formatted=send.formatted, group=group)
            return content if content.size <= MOST_BYTES else None

        content = write_to_fit(send, write_whole)
        if content is None:
            return None
        return SqsOutgoing(content, delay=self._delays.seconds_until(due), is_delayed=bool(due))

    def _route(self, send: Send, message: SqsOutgoing) -> _Route | None:
        if is_destination(send.to):
            return _Route("destination", send.to) if _can_go(send.to, message) else None
        if send.to:
            names = self._link.names
            return _Route("queue", names.delayed(send.to) if message.is_delayed else names.queue(send.to), message.is_delayed)
        if message.is_delayed or message.content.size > MOST_TOPIC_BYTES:
            return _Route("subscribers", send.message.type, message.is_delayed)
        return _Route("topic", send.message.type)

    async def _targets_or_error(self, route: _Route) -> list[Target] | OnceOnlyError:
        try:
            return await self._targets(route)
        except OnceOnlyError as error:  # costs only the messages of this route
            return error

    async def _targets(self, route: _Route) -> list[Target]:
        fifo = self._link.address.fifo
        if route.by == "destination":
            return await self._at_destination(read_destination(route.name))
        if route.by == "topic":
            return [Target(await self._link.topic(route.name), fifo=fifo)]
        if route.by == "subscribers":
            return await self._subscribed(route.name, delayed=route.delayed)
        url = await self._link.url(route.name)
        return [] if url is None else [Target(url, fifo=fifo and not route.delayed)]

    async def _at_destination(self, destination: Destination | None) -> list[Target]:
        if isinstance(destination, Topic):
            return [Target(destination.name, fifo=destination.name.endswith(FIFO))]
        if not isinstance(destination, Queue):
            return []
        is_url = "://" in destination.name
        url = destination.name if is_url else await self._link.url(destination.name)
        return [] if url is None else [Target(url, fifo=url.endswith(FIFO))]

    async def _subscribed(self, kind: str, *, delayed: bool) -> list[Target]:
        """List the queues that subscribe to an event type, or those in which its delayed messages wait."""
        names, found = self._link.names, []
        for each in await topology.subscribers(self._link, kind):
            queue = topology.read_arn(each["Endpoint"]) if each["Protocol"] == "sqs" else None
            if queue is not None:
                name = names.delayed_of(queue.name) if delayed else queue.name
                url = await self._link.url(name, queue.account)
                if url is not None:
                    found.append(Target(url, fifo=name.endswith(".fifo")))
        return found

    async def _count(
        self, sends: Sequence[Send], plans: Sequence[_SendPlan], found: Sequence[Sequence[Result]], answers: Sequence[Answer]
    ) -> None:
        """Count events that have no subscriber. A subscription that another process makes is noticed within `COUNT_SECONDS`."""
        for send, plan, results, answer in zip(sends, plans, found, answers, strict=True):
            if send.to or answer is not Answer.TAKEN:
                continue
            is_published = any(target.is_topic for target, _ in plan.targets) and CopyOutcome.TAKEN in results
            if not is_published:
                subscribed = CopyOutcome.TAKEN in results
            else:
                subscribed = await self._has_subscribers(send.message.type)
            if not subscribed:
                self.unsubscribed.add(send.message.type)

    async def _has_subscribers(self, kind: str) -> bool:
        now = asyncio.get_running_loop().time()
        until, count = self._link.counts.get(kind, (0.0, 1))
        if until <= now:
            with suppress(RetryableError, SetupError):  # nothing but a statistic depends on it
                count = len(await topology.subscribers(self._link, kind))
            self._link.counts[kind] = (now + COUNT_SECONDS, count)
        return count > 0


def _can_go(to: str, message: SqsOutgoing) -> bool:
    """Return whether a message can go to a queue or a topic of another program: a topic and a FIFO queue delay none."""
    found = read_destination(to)
    if isinstance(found, Topic):
        return not message.is_delayed and message.content.size <= MOST_TOPIC_BYTES
    return isinstance(found, Queue) and not (message.is_delayed and found.name.endswith(FIFO))


def _answer(send: Send, plan: _SendPlan, results: Sequence[Result]) -> Answer:
    if plan.refused or CopyOutcome.REFUSED in results:
        return Answer.REFUSED
    if plan.error is not None:
        return Answer.UNKNOWN
    return combined_answer(send, results)
