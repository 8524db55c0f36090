"""Sends to topics of Kafka. It has no queues: a log has no acknowledgement of one message, no delays and no copies.

Crash while sending: 1 record stored by the broker, 2 confirmation lost, 3 dispatched again by a copy or a relay, with the same
id: receivers know it.
"""

from collections.abc import Sequence

from onceonly.adapters.kafka.address import HEADER_BYTES, read_address
from onceonly.adapters.kafka.link import KafkaLink
from onceonly.adapters.kafka.wire import KafkaRecord, write_record
from onceonly.model.destination import Topic, read_destination
from onceonly.model.errors import OnceOnlyError, QueueMissing, SetupError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Depth, Topology
from onceonly.queues.destinations import CopyOutcome, combined_answer, report_unsent

RECEIVE_PROBLEM = (
    "Kafka has no queues for endpoints, so none can receive from it: hand the messages of your consumer over with hosted(), "
    "or use another transport"
)


class KafkaTransport:
    """Sends what one endpoint has for topics."""

    def __init__(self, link: KafkaLink, endpoint: str, *, clock: Clock) -> None:
        self._link = link
        self._endpoint = endpoint
        self._clock = clock
        self.traits = link.address.traits

    @staticmethod
    async def connect(url: str, random: RandomSource, /) -> KafkaLink:
        """Read the URL. It connects at the first call."""
        return KafkaLink(read_address(url), random)

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Raise SetupError."""
        raise SetupError(RECEIVE_PROBLEM)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send messages to topics, all at once. Raises CommitFailed when the brokers are away, SetupError when one refuses.

        Each call first asks which of its topics exist, because a broker may create one that is missing.
        """
        now = self._clock.now()
        records = [self._record(send, now) for send in sends]
        topics = {record.topic for record in records if record is not None}
        if not topics:
            return (Answer.REFUSED,) * len(sends)
        connection = await self._link.connection()
        found = await connection.find(topics)
        known = [record for record in records if record is not None and found.get(record.topic) is True]
        produced = dict(zip(map(id, known), await connection.produce(known), strict=True))
        answers = []
        for send, record in zip(sends, records, strict=True):
            outcome: CopyOutcome | OnceOnlyError = CopyOutcome.REFUSED
            if record is not None:
                existence = found.get(record.topic, False)
                missing = CopyOutcome.MISSING if existence is False else existence
                outcome = produced.get(id(record), missing if not isinstance(missing, bool) else CopyOutcome.UNKNOWN)
            if isinstance(outcome, OnceOnlyError):
                report_unsent(self._endpoint, send.to, outcome)
            answers.append(combined_answer(send, [outcome]))
        return tuple(answers)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: it delivers nothing."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Connect. Raises SetupError if a queue is to be declared, CommitFailed when the brokers are away."""
        if topologies:
            raise SetupError(RECEIVE_PROBLEM)
        await self._link.connection()

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Raise QueueMissing."""
        raise QueueMissing(f"endpoint {endpoint!r} has no queue: Kafka has none")

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Do nothing: it creates nothing."""

    async def close(self) -> None:
        """Do nothing: nothing runs in the background, and the connection is shared."""

    def _record(self, send: Send, now: int) -> KafkaRecord | None:
        """Return the record of a message; None for one that can never be stored."""
        to = read_destination(send.to)
        if not isinstance(to, Topic) or send.due > now or len(send.message.body) > self.traits.max_body:
            return None
        return write_record(send, to.name, most=self.traits.max_body + HEADER_BYTES)
