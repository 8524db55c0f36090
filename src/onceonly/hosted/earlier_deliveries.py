"""What this process remembers of messages that their host has to deliver again.

A host's count grows with every delivery. A worker counts failures of the message only. So what was delivered again for another
reason, such as an outage, is not counted if the next delivery comes to this process. Nothing depends on it: a process that
remembers nothing takes all earlier deliveries for failed attempts.
"""

from typing import NamedTuple

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, Send

MOST_REMEMBERED = 10_000
"""Messages. Of more than these the oldest is forgotten."""


class DeliveryOrigin(NamedTuple):
    """What a message carries itself when a host delivers it. A dead letter that is retried carries something else."""

    attempts: int
    alone: bool
    history: tuple[Failure, ...]


def origin_of(delivery: Delivery) -> DeliveryOrigin:
    """Return what a message carries, of a delivery for which nothing is counted yet."""
    return DeliveryOrigin(delivery.attempts, delivery.alone, delivery.history)


class EarlierDelivery(Struct, frozen=True):
    """The last delivery to this process: the host's count of it, and what a retry copy would carry."""

    deliveries: int
    attempts: int
    history: tuple[Failure, ...]
    alone: bool
    origin: DeliveryOrigin


class EarlierDeliveries:
    """The last deliveries of messages that come again, by identity."""

    def __init__(self) -> None:
        self._known: dict[Identity, EarlierDelivery] = {}

    def find(self, identity: Identity, deliveries: int, origin: DeliveryOrigin) -> EarlierDelivery | None:
        """Return what a worker's copy would carry for this delivery. None if the last one was elsewhere, or another message.

        Deliveries to other processes in between count, and one of these processes may have died of the message.
        """
        known = self._known.get(identity)
        if known is None or known.origin != origin:
            return None
        elsewhere = max(0, deliveries - known.deliveries - 1)
        return EarlierDelivery(deliveries, known.attempts + elsewhere, known.history, known.alone or elsewhere > 0, origin)

    def note(self, identity: Identity, deliveries: int, left: Delivery | Send, origin: DeliveryOrigin) -> None:
        """Note a delivery that the host repeats: its retry copy, or itself if nothing is counted."""
        self._known.pop(identity, None)
        is_alone = isinstance(left, Send) and left.alone
        self._known[identity] = EarlierDelivery(deliveries, left.attempts, left.history, is_alone, origin)
        if len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]

    def forget(self, identity: Identity) -> None:
        self._known.pop(identity, None)
