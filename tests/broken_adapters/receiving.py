"""Transports that hand out what they should not, do not hand out what they should, or do not settle it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from onceonly.model.errors import CommitFailed, QueueMissing
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport
from onceonly_conformance.suite import ENDPOINT
from onceonly_conformance.transport_suite import TransportSubject
from tests.broken_adapters.wrapped_transports import WrappedTransport, WrappedTransports

AGES = 3600.0


class EndlessTransport(WrappedTransports):
    """Waits as long as it takes."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Ignore the wait."""
        return await inner.receive(limit, AGES)


class TolerantTransport(WrappedTransports):
    """Receives nothing from a queue that does not exist."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take a missing queue for an empty one."""
        with suppress(QueueMissing):
            return await inner.receive(limit, wait)
        return ()


class FillingTransport(WrappedTransports):
    """Waits until it has as many as asked for."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Collect."""
        got: tuple[Delivery, ...] = ()
        while len(got) < limit and (more := await inner.receive(limit - len(got), wait)):
            got += more
        return got


class OverfullTransport(WrappedTransports):
    """Hands out more than asked for."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take one more."""
        return await inner.receive(limit + 1, wait)


class SleepyTransport(WrappedTransports):
    """Looks, sleeps for the whole wait, and looks again."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Sleep through what comes."""
        if got := await inner.receive(limit, 0):
            return got
        await asyncio.sleep(wait)
        return await inner.receive(limit, 0)


class DroppingTransport(WrappedTransports):
    """Leases the next message to a receiver that was cancelled."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._cancelled = 0

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Serve the dead first."""
        while self._cancelled and await inner.receive(limit, 0):
            self._cancelled -= 1
        try:
            return await inner.receive(limit, wait)
        except asyncio.CancelledError:
            self._cancelled += 1
            raise


class HesitantTransport(WrappedTransports):
    """Takes a moment to hand out what it has received. A receiver that is cancelled in that moment takes it along."""

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Hesitate."""
        got = await inner.receive(limit, wait)
        await asyncio.sleep(0)
        return got


class EchoingTransport(WrappedTransports):
    """Gives a delivery to two receivers."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._last: tuple[Delivery, ...] = ()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Return again what was given last."""
        again, self._last = self._last, ()
        if again:
            return again
        self._last = await inner.receive(limit, wait)
        return self._last


class SharedQueueTransport(WrappedTransports):
    """Has one queue for all endpoints."""

    async def transport(self, endpoint: str = ENDPOINT) -> Transport:
        """Open the one queue."""
        return await super().transport()


class TrustingTransport(WrappedTransports):
    """Never suspects anything."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Clear the mark."""
        return replace(delivery, suspect=False)


class SuspiciousTransport(WrappedTransports):
    """Suspects everything."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Set the mark."""
        return replace(delivery, suspect=True)


class GrudgingTransport(WrappedTransports):
    """Suspects for ever what it suspected once."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._suspects: set[bytes] = set()

    def deliver(self, delivery: Delivery) -> Delivery:
        """Remember."""
        if delivery.suspect:
            self._suspects.add(delivery.body)
        return replace(delivery, suspect=delivery.body in self._suspects)


class BlamingTransport(WrappedTransports):
    """Suspects what somebody gave back."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._returned: set[bytes] = set()

    def deliver(self, delivery: Delivery) -> Delivery:
        """Blame it."""
        return replace(delivery, suspect=delivery.suspect or delivery.body in self._returned)

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Remember."""
        self._returned.update(delivery.body for delivery in deliveries)
        await inner.release(deliveries)


class AnonymousTransport(WrappedTransports):
    """Does not say where a delivery comes from."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Drop the queue's name."""
        return replace(delivery, queue="")


class CountingTransport(WrappedTransports):
    """Counts its own deliveries as failures of the message."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Count one."""
        return replace(delivery, attempts=delivery.attempts + 1)


class TextTransport(WrappedTransports):
    """Takes bodies for text."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Decode as well as it can."""
        return replace(delivery, body=delivery.body.decode(errors="replace").encode())


class NullTransport(WrappedTransports):
    """Takes an empty body for none."""

    def deliver(self, delivery: Delivery) -> Delivery:
        """Write null."""
        return replace(delivery, body=delivery.body or b"null")


class UnsettlingTransport(WrappedTransports):
    """Does not settle."""

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""


class LateAckTransport(WrappedTransports):
    """Settles by message: whoever acks, it is gone."""

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle it for its present holder."""
        await inner.ack(self.latest(deliveries))


class MultiAckTransport(WrappedTransports):
    """Settles everything that was handed out before, as a broker does that is asked for it."""

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle all."""
        await inner.ack(tuple(self.given.values()))


class FirstCallTransport(WrappedTransports):
    """Settles only what the first of the calls has returned."""

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle the first."""
        await inner.ack(deliveries[:1])


class StrictTransport(WrappedTransports):
    """Complains about a delivery that is not held any more."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._over: set[int] = set()

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Look first."""
        if any(id(delivery) in self._over for delivery in deliveries):
            raise LookupError("unknown delivery tag")
        self._over.update(map(id, deliveries))
        await inner.ack(deliveries)

    async def lapse(self) -> None:
        """End what is held."""
        self._over.update(map(id, self.given.values()))
        await super().lapse()


class MultiReleaseTransport(WrappedTransports):
    """Gives back everything that was handed out."""

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Return all back."""
        await inner.release(tuple(self.given.values()))


class LateReleaseTransport(WrappedTransports):
    """Gives back by message, whoever holds it now."""

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Take it from its present holder."""
        await inner.release(self.latest(deliveries))


class LeaseOnlyTransport(WrappedTransports):
    """Cannot give back: only the end of a lease brings a delivery again."""

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""


class UnextendingTransport(WrappedTransports):
    """Does not renew leases."""

    async def extend(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""


class MultiExtendTransport(WrappedTransports):
    """Renews the leases of everything that was handed out before."""

    async def extend(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Renew all."""
        await inner.extend(tuple(self.given.values()))


class OwnClockTransport(WrappedTransports):
    """Reckons leases by the receiver's own clock."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._ahead: Transport | None = None
        self._hidden: set[object] = set()

    async def ahead(self, endpoint: str, milliseconds: int) -> Transport:
        """Know whose clock is ahead."""
        self._ahead = await self.inner.ahead(endpoint, milliseconds)
        return WrappedTransport(self, self._ahead)

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Hide from other receivers what this one holds: for them its lease lasts a day longer."""
        got = await inner.receive(limit, wait)
        if inner is self._ahead:
            self._hidden.update(_sent(each) for each in got)
            return got
        return tuple(each for each in got if _sent(each) not in self._hidden)

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Release, and show the deliveries to all receivers."""
        self._hidden.difference_update(_sent(each) for each in deliveries)
        await inner.release(deliveries)


class RevivingTransport(WrappedTransports):
    """Revives leases that have ended."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._revived: set[bytes] = set()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Keep what was revived from others."""
        return tuple(each for each in await inner.receive(limit, wait) if each.body not in self._revived)

    async def extend(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Revive."""
        self._revived.update(delivery.body for delivery in deliveries)
        await inner.extend(deliveries)


def _sent(delivery: Delivery) -> object:
    """Tell messages apart by what was sent."""
    return delivery.headers, delivery.body


class FirstRequestTransport(WrappedTransports):
    """Settles as many deliveries as one request takes."""

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle some."""
        await super().ack(inner, deliveries[:100])


class FirstReleaseTransport(WrappedTransports):
    """Gives back as many deliveries as one request takes."""

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Return back some."""
        await super().release(inner, deliveries[:100])


class PrefetchingTransport(WrappedTransports):
    """Takes two more than asked for, and keeps them for the next call."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._kept: dict[Transport, tuple[Delivery, ...]] = {}

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Return what was kept first."""
        got = self._kept.pop(inner, ()) or await inner.receive(limit + 2, wait)
        self._kept[inner] = got[limit:]
        return got[:limit]


class NarrowTransport(WrappedTransports):
    """Lets a process hold ten deliveries at most."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._held: Counter[Transport] = Counter()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Count what is held."""
        got = await inner.receive(limit, wait) if self._held[inner] < 10 else ()
        self._held[inner] += len(got)
        return got

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Count down."""
        self._held[inner] -= len(deliveries)
        await inner.ack(deliveries)


class SingleCallTransport(WrappedTransports):
    """Has one place for what the present call is about."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._named: Sequence[Delivery] = ()

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Settle what the last call named."""
        self._named = deliveries
        await asyncio.sleep(0)
        await inner.ack(self._named)

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Return back what the last call named."""
        self._named = deliveries
        await asyncio.sleep(0)
        await inner.release(self._named)


class OnceConnectedTransport(WrappedTransports):
    """Does not connect again."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._used: set[Transport] = set()
        self._lost: set[Transport] = set()

    async def lapse(self) -> None:
        """Lose the connections of all that have received."""
        self._lost |= self._used
        await super().lapse()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Fail without a connection."""
        self._used.add(inner)
        if inner in self._lost:
            raise CommitFailed("the connection was lost")
        return await inner.receive(limit, wait)


class DeafTransport(WrappedTransports):
    """Does not notice that its connection was lost while it waits."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._lapses = 0

    async def lapse(self) -> None:
        """Count."""
        self._lapses += 1
        await super().lapse()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Wait on a connection that is gone."""
        lapses = self._lapses
        got = await inner.receive(limit, wait)
        if lapses != self._lapses:
            await asyncio.sleep(wait)
        return got


class LimitedTransport(WrappedTransports):
    """Deletes a message that was delivered 20 times."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._times: Counter[bytes] = Counter()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Count."""
        got = await inner.receive(limit, wait)
        self._times.update(each.body for each in got)
        await inner.ack([each for each in got if self._times[each.body] > 20])
        return tuple(each for each in got if self._times[each.body] <= 20)
