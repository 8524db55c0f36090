"""The queue of a host: where messages go that are sent to the endpoint itself, if a host receives its messages.

A broker delays little of what goes to queues of other programs, and has no receiver there that puts a message off again. The
host's endpoint is one: such a message carries its due time, and `hosted` returns it to the host until then.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.formats.cloudevents import DUE, PREFIX
from onceonly.model.destination import Destination, write_destination
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Transport
from onceonly.queues.forwarding import ForwardingTransport

__all__ = ["HostQueueTransport"]


class HostQueueTransport(ForwardingTransport):
    """A transport that sends what is for its own endpoint to the queue from which the endpoint's host receives."""

    def __init__(self, transport: Transport, endpoint: str, destination: Destination, *, clock: Clock) -> None:
        super().__init__(transport)
        self._endpoint, self._clock = endpoint, clock
        self._to = write_destination(destination)
        rules = [rule for rule in transport.traits.destinations if rule.kind == destination.kind]
        self._longest = rules[0].longest_delay if rules else 0.0

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send these; see the port."""
        now = self._clock.now()
        addressed = [self._addressed(send, now) if send.to == self._endpoint else send for send in sends]
        answers: tuple[Answer, ...] = await self._transport.send(addressed)
        return answers

    def _addressed(self, send: Send, now: int) -> Send:
        delay = max(0, send.due - now)
        if not delay or self._longest is None:
            return replace(send, to=self._to)
        message, due = send.message, str(send.due)
        if send.formatted:
            message = replace(message, headers=(*message.headers, (PREFIX + DUE, due)))
        else:
            message = replace(message, extensions=(*message.extensions, (DUE, due)))
        kept = send.due if delay <= self._longest * 1000 else 0
        return replace(send, message=message, to=self._to, due=kept)
