"""The protocol of brokers: a queue of messages for each endpoint."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer

__all__ = [
    "Answer",
    "BrokerReport",
    "ChecksBroker",
    "CollectsUnsubscribed",
    "Depth",
    "DestinationRule",
    "FanOut",
    "ListsSubscriptions",
    "Topology",
    "Traits",
    "Transport",
]


class FanOut(StrEnum):
    """What copies an event to the queues of its subscribers."""

    BROKER = "broker"
    """The sender sends an event once."""
    SENDER = "sender"
    """The sender sends a copy to each subscriber. Events with many subscribers take more requests."""


class DestinationRule(Struct, frozen=True, kw_only=True):
    """A kind of destinations that are not endpoints, and that a transport sends to; see `onceonly.model.destination`.

    * `kind`: the kind, such as "queue". Of several rules for one, the first whose `names` match holds.
    * `longest_delay`: seconds for which the broker itself keeps a message for such a destination until it is due. None: no
      limit. 0: it delays nothing. No process of this library receives from there, so none can put a message off again.
    * `names`: a regular expression that a whole name matches. Empty: any name. `name_rule`: in words, what such a name is.
    """

    kind: str
    longest_delay: float | None = 0.0
    names: str = ""
    name_rule: str = ""


class Traits(Struct, frozen=True, kw_only=True):
    """What a broker does with the queues of a URL. It is the same for all endpoints, and known before anything is opened.

    The defaults promise nothing.

    * `lease`: seconds for which a received delivery is kept from other receivers. None: until the connection ends.
    * `max_body`: the longest body, in bytes. `Transport.send` refuses longer ones.
    * `orders_keys`: whether messages with the same partition key are received in the order in which they were sent, and by one
      receiver at a time. Delays, releases, retries and ended leases change the order. False: the key is delivered, and
      changes nothing.
    * `longest_delay`: seconds for which the broker itself keeps a message until it is due. The transport takes care of longer
      delays: receivers of the endpoint put the message off again. None: no limit. 0: the broker delays nothing.
    * `most_received`, `most_sent`: messages in one request to the broker. The transport makes as many requests as a call needs.
      None: no limit.
    * `fan_out`: what copies events. None: unknown.
    * `late_subscribers`: whether a delayed event goes to the endpoints that subscribe when it is due. False: to those that
      subscribe when it is sent.
    * `destinations`: the kinds of destinations that are not endpoints. Empty: it sends to endpoints only.
    * `carries_headers`: whether a message has headers of its own. False: only CloudEvents attributes.
    * `has_queues`: whether endpoints have queues there. False: it only sends, to `destinations`, and a host receives.
    """

    lease: float | None
    max_body: int
    orders_keys: bool = False
    longest_delay: float | None = 0.0
    most_received: int | None = None
    most_sent: int | None = None
    fan_out: FanOut | None = None
    late_subscribers: bool = False
    destinations: tuple[DestinationRule, ...] = ()
    carries_headers: bool = True
    has_queues: bool = True


class Topology(Struct, frozen=True, kw_only=True):
    """The input queue of an endpoint. `events` are types that it subscribes to, `gone` are types that it unsubscribes from.

    `commands` are types that are sent to it and never published. Subscriptions to other types, and to commands, do not change:
    another version of the endpoint, which runs at the same time, may need them.
    """

    endpoint: str
    events: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class Depth(Struct, frozen=True, kw_only=True):
    """How many messages of a queue wait, are held by receivers, and are delayed."""

    waiting: int
    held: int
    delayed: int


class BrokerReport(Struct, frozen=True, kw_only=True):
    """What a broker reported about the queue of an endpoint.

    `settings` are those that decide what a crash can lose, by the broker's own names. `warnings` are for people. A worker
    checks `again_after` this many seconds. None: only at the start.
    """

    settings: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    again_after: float | None = None


@runtime_checkable
class ChecksBroker(Protocol):
    """A transport that can check how its broker stores the queue of an endpoint: at start, and as often as its report asks."""

    async def check(self) -> BrokerReport:
        """Read the settings of the declared queue. Raises RetryableError, and SetupError if they break a promise.

        At the start SetupError ends the endpoint. Later the endpoint receives nothing until a check succeeds. Check what is
        allowed, so that a setting of a newer broker is noticed.
        """


@runtime_checkable
class ListsSubscriptions(Protocol):
    """A transport that can list the subscriptions of an endpoint, also those that it no longer wants."""

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; None if the broker does not list them."""


@runtime_checkable
class CollectsUnsubscribed(Protocol):
    """A transport whose broker puts aside delayed events that had no subscriber when they were due."""

    async def collect_unsubscribed(self) -> None:
        """Count those that this endpoint published, with the events that it counts when they are sent.

        After an error some may be counted twice. Raises RetryableError, SetupError.
        """


class Transport(Protocol):
    """The queue of one endpoint, and the way to others. No method is part of a transaction of the store."""

    traits: Traits

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Return deliveries that wait, `limit` at most. Do not wait for more than one. Return none after `wait` seconds.

        A delivery is kept from other receivers until it is acked or released. When its lease or the connection ends before,
        it is delivered again and marked as `suspect`. A cancelled call loses nothing. A message that cannot be decoded is a
        delivery too, with its raw bytes. Raises RetryableError if the broker does not answer, and SetupError without the queue:
        at the first call, and within a minute after the queue was deleted.
        """

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send messages. Return an answer for each, in order.

        TAKEN means that the broker has confirmed durable storage. A command that cannot be routed is REFUSED. An event without
        a subscriber is TAKEN. A message with a `due` is not delivered before. Every send is delivered, also with an id that
        was sent before, and one that has expired. Headers of 16 KiB are delivered unchanged. A broker with groups or
        partitions may use the message's `partition_key`. The call is not atomic: after an exception, some messages may have
        been sent.

        `Send.to` may be the text of a destination that is not an endpoint. Its name is used as it is, and nothing is created. A
        message to a missing one is REFUSED, and one to a kind that is not in `traits.destinations`.
        """

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete these deliveries from the queue. One whose lease has ended may be ignored. Not atomic."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return these deliveries to the queue. They are delivered again at once, not marked as `suspect`. Not atomic."""

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew the leases. A lease that has ended is not revived."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues and subscriptions that are missing, and delete the subscriptions to types that are `gone`."""

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count the messages in the queue of an endpoint. Raises QueueMissing if it was never declared.

        `delayed` counts no message of another endpoint. A broker that chooses the queues of a delayed event when it is due
        counts those of the types `events`, which the endpoint subscribes to.
        """
