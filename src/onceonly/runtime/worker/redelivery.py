"""Giving deliveries back, even when the broker was away at the moment."""

from collections.abc import Hashable, Sequence

from onceonly.model.errors import RetryableError
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport


class PatientTransport:
    """A transport that remembers what could not be settled, so that an outage of the broker suspects no message.

    A delivery whose ack or release failed would come again as a suspect when its lease ends. Here it is kept, and
    released as soon as the broker answers. Releasing an acknowledged delivery does nothing. All other methods are the
    transport's own.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left: dict[Hashable, Delivery] = {}
        self._returning: set[Hashable] = set()
        self.traits = transport.traits
        self.receive = transport.receive
        self.send = transport.send
        self.extend = transport.extend
        self.declare = transport.declare
        self.depth = transport.depth

    @property
    def left(self) -> tuple[Delivery, ...]:
        """What is still to be released."""
        return tuple(self._left.values())

    async def give_back(self) -> None:
        """Try again to release what is left. Raises what `release` raises."""
        if self._left:
            await self.release(self.left)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle these; remember them when that fails."""
        try:
            await self._transport.ack(deliveries)
        except RetryableError:
            self._keep(deliveries)
            raise

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give these back; remember them when that fails."""
        mine = {each.receipt: each for each in deliveries if each.receipt not in self._returning}
        if not mine:
            return
        self._returning |= mine.keys()  # another task may find them among what is left meanwhile
        try:
            await self._transport.release(tuple(mine.values()))
        except RetryableError:
            self._keep(tuple(mine.values()))
            raise
        finally:
            self._returning -= mine.keys()
        for receipt in mine:
            self._left.pop(receipt, None)

    def _keep(self, deliveries: Sequence[Delivery]) -> None:
        self._left |= {delivery.receipt: delivery for delivery in deliveries}
