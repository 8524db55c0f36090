"""Reads the messages of a host, and returns the outcome of each: settled, or when the next delivery is due."""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.algorithms.deaths import KILLED
from onceonly.formats.cloudevents import arrival
from onceonly.formats.hosted import headers_of
from onceonly.hosted.earlier_deliveries import DeliveryOrigin, EarlierDeliveries, origin_of
from onceonly.hosted.transport import HostedCall, current_call
from onceonly.model.hosted import HostedMessage, HostedOutcome
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Unreadable
from onceonly.ports.environment import Clock
from onceonly.ports.handlers import Handlers

AGAIN_SECONDS = 1.0
"""Seconds after which a message is due again that could not be settled, such as in an outage."""
CUT_OFF = "the time of the host was over before it was handled"
PUT_OFF = "put off, not counted as a failure"
NOT_DUE = "sent with a delay, and not due yet"


class HostedCalls:
    """Begins calls of one endpoint in this process, and answers for their messages."""

    def __init__(self, handlers: Handlers, endpoint: str, clock: Clock) -> None:
        self._handlers = handlers
        self._endpoint = endpoint
        self._clock = clock
        self._earlier = EarlierDeliveries()

    def begin(self, messages: Sequence[HostedMessage]) -> HostedCall:
        """Read messages. Raises TypeError, ValueError for those that no host can mean."""
        deliveries: list[Delivery] = []
        found: list[Message | None] = []
        origins: list[DeliveryOrigin] = []
        for position, message in enumerate(messages):
            arrived = self._arrival(position, message)
            origins.append(origin_of(arrived))
            delivery = counted(arrived, message.deliveries)
            read = self._handlers.read(delivery)
            known = None if isinstance(read, Unreadable) else read
            earlier = None if known is None else self._earlier.find(known.identity, message.deliveries, origins[-1])
            if earlier is not None:
                delivery = replace(delivery, attempts=earlier.attempts, history=earlier.history, alone=earlier.alone)
            deliveries.append(delivery)
            found.append(known)
        call = HostedCall(deliveries, found, origins)
        call.put_off(self._clock.now())
        return call

    def gives_up(self, identity: Identity, deaths: int) -> bool:
        """Return whether a message of this task's call is given up when one more of its runs died."""
        message = current_call().messages[identity]
        return self._handlers.decide_retry(message, KILLED, attempts=deaths, history=()).give_up

    def cut_off(self, call: HostedCall, messages: Sequence[HostedMessage]) -> tuple[HostedOutcome, ...]:
        """Return the outcomes of a call whose time is over, or whose caller is gone. What is left counts for nothing."""
        call.trouble = call.trouble or CUT_OFF
        return self.outcomes(call, messages)

    def note_stuck(self, call: HostedCall, deliveries: Sequence[Delivery]) -> None:
        """Note messages whose handler did not end. It may end its process next time, so they run alone then."""
        for identity in call.identities(call.left(deliveries)):
            self._earlier.forget(identity)
            call.is_stuck.add(identity)

    def outcomes(self, call: HostedCall, messages: Sequence[HostedMessage]) -> tuple[HostedOutcome, ...]:
        """Return what the host does with each message of a call that has ended."""
        return tuple(self._outcome(call, each, message) for each, message in zip(call.deliveries, messages, strict=True))

    def _arrival(self, position: int, message: HostedMessage) -> Delivery:
        body, count = message.body, message.deliveries
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"body must be bytes, not {type(body).__name__}: encode text with body.encode()")
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"deliveries must be a whole number, not {type(count).__name__}: use int(...)")
        if count < 1:
            raise ValueError(f"deliveries must be 1 or more, not {count}: it counts this delivery too")
        queue = message.queue or self._endpoint
        if not isinstance(queue, str):
            raise TypeError(f"queue must be text, not {type(queue).__name__}")
        return arrival(position, queue, headers_of(message), bytes(body), suspect=False)

    def _outcome(self, call: HostedCall, delivery: Delivery, message: HostedMessage) -> HostedOutcome:
        receipt = call.receipt(delivery)
        (identity,) = call.identities((delivery,)) or (None,)
        if receipt in call.settled:
            if identity is not None:
                self._earlier.forget(identity)
            reason = call.settled[receipt]
            return HostedOutcome(is_settled=True, is_dead=bool(reason), reason=reason)
        copy = call.copies.get(receipt)
        if identity is not None and identity not in call.is_stuck:
            self._earlier.note(identity, message.deliveries, copy or delivery, call.origins[receipt])
        if receipt in call.due:
            seconds = (call.due[receipt] - self._clock.now()) / 1000
            return HostedOutcome(is_settled=False, retry_after=max(0.0, seconds), reason=NOT_DUE)
        if copy is None:
            seconds = 0.0 if call.trouble == CUT_OFF else AGAIN_SECONDS
            return HostedOutcome(is_settled=False, retry_after=seconds, reason=call.trouble or CUT_OFF)
        seconds = max(0, copy.due - self._clock.now()) / 1000
        reason = copy.history[-1].reason if copy.attempts > delivery.attempts and copy.history else PUT_OFF
        return HostedOutcome(is_settled=False, retry_after=seconds, reason=reason)


def counted(delivery: Delivery, deliveries: int) -> Delivery:
    """Return a delivery that this process has not seen before. If it was delivered before, its process may have died of it."""
    return replace(delivery, attempts=delivery.attempts + deliveries - 1, alone=delivery.alone or deliveries > 1)
