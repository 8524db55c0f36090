"""Queues, topics and subscriptions in memory, with the rules of the service for locks, delivery counts and schedules."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from uuid import UUID, uuid4

import isodate

NEVER = "P10675199DT2H48M5.4775807S"
QUEUE_DEFAULTS = {
    "LockDuration": "PT1M",
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "RequiresSession": "false",
    "DefaultMessageTimeToLive": NEVER,
    "DeadLetteringOnMessageExpiration": "false",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "MaxDeliveryCount": "10",
    "EnableBatchedOperations": "true",
    "Status": "Active",
    "AutoDeleteOnIdle": NEVER,
}
FULL = "amqp:resource-limit-exceeded"


class Refused(Exception):
    """What the service answers with an error condition."""

    def __init__(self, condition: str, why: str) -> None:
        super().__init__(why)
        self.condition = condition
        self.why = why


@dataclass
class StoredMessage:
    """One message: its sections as they came, and what the service adds to them."""

    sections: tuple[tuple[int, bytes], ...]
    message_id: object = None
    session: str | None = None
    due: int = 0
    number: int = 0
    enqueued: int = 0
    deliveries: int = 0
    token: UUID | None = None
    until: int = 0
    holder: object = None

    def copied(self) -> "StoredMessage":
        """Copy it as it was sent."""
        return StoredMessage(self.sections, self.message_id, self.session, self.due)


@dataclass
class Entity:
    """A queue, or the store of a subscription. `limit` is how many messages it takes, for tests of full queues."""

    name: str
    settings: dict[str, str]
    now: Callable[[], int]
    numbers: Iterable[int]
    limit: int = 1_000_000
    messages: "OrderedDict[int, StoredMessage]" = field(default_factory=OrderedDict)
    dead: list[StoredMessage] = field(default_factory=list)
    seen: dict[object, int] = field(default_factory=dict)
    sessions: dict[str, object] = field(default_factory=dict)

    @property
    def lock_ms(self) -> int:
        """For how long a message is locked."""
        return milliseconds(self.settings["LockDuration"])

    @property
    def has_sessions(self) -> bool:
        """Whether each message must belong to a session."""
        return self.settings["RequiresSession"] == "true"

    def put(self, message: StoredMessage) -> None:
        """Store a message. Raises Refused."""
        if self.has_sessions and message.session is None:
            raise Refused("amqp:not-allowed", f"the entity {self.name} requires a session id")
        if len(self.messages) >= self.limit:
            raise Refused(FULL, f"the entity {self.name} is full")
        if self.settings["RequiresDuplicateDetection"] == "true" and message.message_id is not None:
            if message.message_id in self.seen:
                return
            self.seen[message.message_id] = self.now()
        message.number = next(iter(self.numbers))
        message.enqueued = max(self.now(), message.due)
        self.messages[message.number] = message

    def scheduled(self) -> int:
        """Count what is not due."""
        now = self.now()
        return sum(message.due > now for message in self.messages.values())

    def take(self, holder: object, session: str | None = None) -> StoredMessage | None:
        """Lock the first message that waits, for a holder."""
        now = self.now()
        self.end_locks(now)
        for message in self.messages.values():
            if message.token is None and message.due <= now and (session is None or message.session == session):
                message.token, message.until, message.holder = uuid4(), now + self.lock_ms, holder
                return message
        return None

    def end_locks(self, now: int, *, every: bool = False) -> None:
        """End the locks that are over, or all."""
        for message in tuple(self.messages.values()):
            if message.token is not None and (every or message.until <= now):
                self._unlock(message, counts=True)

    def held(self, token: UUID) -> StoredMessage:
        """Find a locked message. Raises Refused."""
        self.end_locks(self.now())
        found = next((message for message in self.messages.values() if message.token == token), None)
        if found is None:
            raise Refused("com.microsoft:message-lock-lost", "the lock supplied is invalid")
        return found

    def complete(self, token: UUID) -> None:
        """Delete a locked message."""
        del self.messages[self.held(token).number]

    def abandon(self, token: UUID, *, counts: bool = True) -> None:
        """Unlock a message. Released, its delivery count does not change."""
        self._unlock(self.held(token), counts=counts)

    def bury(self, token: UUID) -> None:
        """Move a locked message to the dead-letter queue."""
        message = self.held(token)
        del self.messages[message.number]
        self.dead.append(message)

    def renew(self, token: UUID) -> int:
        """Let a lock begin again."""
        message = self.held(token)
        message.until = self.now() + self.lock_ms
        return message.until

    def free_session(self, wanted: str | None) -> str | None:
        """Choose a session that has a message and that nobody holds."""
        now = self.now()
        for message in self.messages.values():
            found = message.session
            if found is None or found in self.sessions or message.due > now:
                continue
            if wanted in (None, found):
                return found
        return wanted if wanted is not None and wanted not in self.sessions else None

    def close_session(self, session: str, *, counts: bool) -> None:
        """Give a session up with all that is locked in it."""
        self.sessions.pop(session, None)
        for message in tuple(self.messages.values()):
            if message.session == session and message.token is not None:
                self._unlock(message, counts=counts)

    def _unlock(self, message: StoredMessage, *, counts: bool) -> None:
        message.token, message.holder = None, None
        message.deliveries += counts
        if message.deliveries >= int(self.settings["MaxDeliveryCount"]):
            del self.messages[message.number]
            self.dead.append(message)


@dataclass
class Topic:
    """A topic: scheduled messages wait in it, all others go to its subscriptions."""

    name: str
    settings: dict[str, str]
    subscriptions: dict[str, Entity] = field(default_factory=dict)
    waiting: list[StoredMessage] = field(default_factory=list)


class Namespace:
    """All entities. Their names are not case-sensitive."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.numbers = count(1)
        self.queues: dict[str, Entity] = {}
        self.topics: dict[str, Topic] = {}

    def entity(self, name: str, settings: dict[str, str]) -> Entity:
        """Make a queue or a subscription that nothing refers to yet."""
        return Entity(name, QUEUE_DEFAULTS | settings, self.now, self.numbers)

    def find(self, path: str) -> Entity | None:
        """Find a queue or a subscription by its path."""
        topic, _, subscription = path.lower().partition("/subscriptions/")
        if not subscription:
            return self.queues.get(topic)
        return self.topics[topic].subscriptions.get(subscription) if topic in self.topics else None

    def send(self, path: str, messages: list[StoredMessage]) -> None:
        """Store a batch in a queue or a topic: all of it, or nothing. Raises Refused."""
        name = path.lower()
        if name in self.topics:
            for message in messages:
                self._publish(self.topics[name], message)
            return
        queue = self.queues[name]
        if len(queue.messages) + len(messages) > queue.limit:
            raise Refused(FULL, f"the entity {path} is full")
        if queue.has_sessions and any(message.session is None for message in messages):
            raise Refused("amqp:not-allowed", f"the entity {path} requires a session id")
        for message in messages:
            queue.put(message)

    def move(self) -> None:
        """Hand on what is due in topics and subscriptions."""
        now = self.now()
        for topic in self.topics.values():
            due = [message for message in topic.waiting if message.due <= now]
            topic.waiting = [message for message in topic.waiting if message.due > now]
            for message in due:
                self._spread(topic, message)
            for subscription in topic.subscriptions.values():
                self._forward(subscription)

    def end_locks(self) -> None:
        """End every lock, as if its time were over."""
        for queue in self.queues.values():
            for session in tuple(queue.sessions):
                queue.close_session(session, counts=True)
            queue.end_locks(self.now(), every=True)

    def _publish(self, topic: Topic, message: StoredMessage) -> None:
        if message.due > self.now():
            topic.waiting.append(message)
        else:
            self._spread(topic, message)

    def _spread(self, topic: Topic, message: StoredMessage) -> None:
        for subscription in topic.subscriptions.values():
            subscription.put(message.copied())
            self._forward(subscription)

    def _forward(self, subscription: Entity) -> None:
        target = subscription.settings.get("ForwardTo", "").rpartition("/")[2].lower()
        if not target or target not in self.queues:
            return
        for number, message in tuple(subscription.messages.items()):
            try:
                self.queues[target].put(message.copied())
            except Refused:
                return
            del subscription.messages[number]


def milliseconds(duration: str) -> int:
    """Read a duration as the service writes it."""
    found = isodate.parse_duration(duration)
    assert isinstance(found, timedelta)
    return int(found.total_seconds() * 1000)
