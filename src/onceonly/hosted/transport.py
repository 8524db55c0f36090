"""The transport of an endpoint whose host receives and acknowledges.

    receive   the deliveries that the host has handed over
    ack       a settled delivery: the host may acknowledge it
    release   the host delivers it again
    send      a retry copy is the host's redelivery, so none is sent; everything else goes to the endpoint's own transport

A retry copy is taken before its original is acknowledged. Here the host still holds the original, so the copy counts as taken,
and the ack that follows does not settle the delivery.
"""

from collections.abc import Sequence
from contextvars import ContextVar

from onceonly.formats.cloudevents import due_of
from onceonly.hosted.earlier_deliveries import DeliveryOrigin
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.transport import Depth, Topology, Transport


class HostedCall:
    """The deliveries that are in work together, and what became of each. Receipts are positions in the host's list."""

    def __init__(
        self, deliveries: Sequence[Delivery], messages: Sequence[Message | None], origins: Sequence[DeliveryOrigin]
    ) -> None:
        """Begin with deliveries, the message of each, None for one that cannot be read, and what it carried itself."""
        self.deliveries = tuple(deliveries)
        self.origins = tuple(origins)
        self.offered: tuple[Delivery, ...] = ()
        """What `receive` returns next."""
        self.messages = {message.identity: message for message in messages if message is not None}
        self.trouble = ""
        """Why what is neither settled nor has a copy is delivered again."""
        self._identities = {
            _position(delivery): message.identity
            for delivery, message in zip(deliveries, messages, strict=True)
            if message is not None
        }
        self._receipts: dict[Identity, list[int]] = {}
        for receipt, identity in self._identities.items():
            self._receipts.setdefault(identity, []).append(receipt)
        self.is_stuck: set[Identity] = set()
        """Messages whose handler did not end."""
        self.settled: dict[int, str] = {}
        """By receipt, what may be acknowledged: the reason of the dead letter, empty if it is done."""
        self.copies: dict[int, Send] = {}
        """By receipt, the retry copy that the host's redelivery stands for."""
        self.due: dict[int, int] = {}
        """By receipt, when a message is due that is not handled before, in milliseconds since 1970."""

    def put_off(self, now: int) -> None:
        """Put off what is not due at this instant."""
        due = {_position(each): due_of(each.headers) for each in self.deliveries}
        self.due = {receipt: instant for receipt, instant in due.items() if instant > now}

    def receipt(self, delivery: Delivery) -> int:
        return _position(delivery)

    def identities(self, deliveries: Sequence[Delivery]) -> tuple[Identity, ...]:
        """Return the identities of those that can be read."""
        positions = [_position(delivery) for delivery in deliveries]
        return tuple(self._identities[each] for each in positions if each in self._identities)

    def take_copy(self, send: Send) -> bool:
        """Keep a retry copy. Returns whether it is one: it brings a message of this call back to its own endpoint."""
        receipts = self._receipts.get(send.message.identity, ())
        self.copies.update(dict.fromkeys(receipts, send))
        return bool(receipts)

    def left(self, deliveries: Sequence[Delivery]) -> tuple[Delivery, ...]:
        """Return those that are neither settled nor put off."""
        return tuple(each for each in deliveries if not self._is_over(_position(each)))

    def _is_over(self, receipt: int) -> bool:
        return receipt in self.settled or receipt in self.copies or receipt in self.due

    def forget(self) -> None:
        """Drop all messages. The context of its task lives for as long as a timer of it, also a cancelled one."""
        self.deliveries = self.offered = ()
        self.messages, self.copies = {}, {}

    def acknowledge(self, deliveries: Sequence[Delivery], reason: str) -> None:
        for delivery in deliveries:
            receipt = _position(delivery)
            if receipt not in self.copies:
                self.settled[receipt] = reason


_CALL: ContextVar[HostedCall] = ContextVar("onceonly_hosted_call")
_LETTER: ContextVar[str] = ContextVar("onceonly_hosted_letter", default="")
"""Why the message was given up whose ack follows, in the same task."""


def current_call() -> HostedCall:
    """Return the call of this task. Raises LookupError outside of one."""
    return _CALL.get()


def enter_call(call: HostedCall) -> None:
    """Make it the call of this task, and of the tasks that it starts."""
    _CALL.set(call)
    _LETTER.set("")


class HostedTransport:
    """A transport that collects what became of the deliveries of each `HostedCall`, and sends with another transport."""

    def __init__(self, transport: Transport, endpoint: str) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self.traits = transport.traits

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Return the deliveries of this task's call."""
        call = _CALL.get(None)
        if call is None:
            raise SetupError(f"endpoint {self._endpoint!r} is hosted: it receives nothing itself")
        return call.offered

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take retry copies, and send the other messages."""
        call = _CALL.get(None)
        is_copy = [call is not None and send.to == self._endpoint and call.take_copy(send) for send in sends]
        others = [send for send, copied in zip(sends, is_copy, strict=True) if not copied]
        answers = iter(await self._transport.send(others) if others else ())
        return tuple(Answer.TAKEN if copied else next(answers) for copied in is_copy)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        reason = _LETTER.get()
        _LETTER.set("")
        _CALL.get().acknowledge(deliveries, reason)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: what is not settled is delivered again."""

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: the host has its own way to renew a lease."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        await self._transport.declare(topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        return await self._transport.depth(endpoint, events)


class HostedDeadLetters:
    """Dead letters that keep the reason of each for the outcome. The ack of its deliveries follows in the same task."""

    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters
        self.page, self.get, self.count, self.remove = (
            dead_letters.page,
            dead_letters.get,
            dead_letters.count,
            dead_letters.remove,
        )

    async def add(self, letter: DeadLetter) -> None:
        await self._dead_letters.add(letter)
        _LETTER.set(letter.reason or "given up")


def _position(delivery: Delivery) -> int:
    assert isinstance(delivery.receipt, int)  # noqa: S101 - as `HostedDeliveries` has made it
    return delivery.receipt
