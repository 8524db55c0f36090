"""Queues, topics and subscriptions in memory, with the rules of the service for locks, delivery counts and schedules."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from uuid import UUID, uuid4

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
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")
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

    def copied(self) -> "StoredMessage":
        """Copy it as it was sent."""
        return StoredMessage(self.sections, self.message_id, self.session, self.due)


@dataclass
class SessionLock:
    """Who holds a session, and until when."""

    holder: object
    until: int


@dataclass
class Entity:
    """A queue, or the store of a subscription. `limit` is how many messages it takes, for tests of full queues.

    `later` has scheduled messages. When one is due, it gets a new sequence number, as if it came then.
    """

    name: str
    settings: dict[str, str]
    now: Callable[[], int]
    numbers: Iterable[int]
    limit: int = 1_000_000
    messages: "OrderedDict[int, StoredMessage]" = field(default_factory=OrderedDict)
    later: dict[int, StoredMessage] = field(default_factory=dict)
    locked: dict[UUID, StoredMessage] = field(default_factory=dict)
    dead: list[StoredMessage] = field(default_factory=list)
    seen: dict[object, int] = field(default_factory=dict)
    sessions: dict[str, "SessionLock"] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)

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
        if self.size >= self.limit:
            raise Refused(FULL, f"the entity {self.name} is full")
        if self.settings["RequiresDuplicateDetection"] == "true" and message.message_id is not None:
            if message.message_id in self.seen:
                return
            self.seen[message.message_id] = self.now()
        message.number = next(iter(self.numbers))
        message.enqueued = max(self.now(), message.due)
        (self.later if message.due > self.now() else self.messages)[message.number] = message

    @property
    def size(self) -> int:
        """Count all messages."""
        return len(self.messages) + len(self.later)

    def activate(self) -> None:
        """Let those messages wait that are due."""
        now = self.now()
        for message in sorted((each for each in self.later.values() if each.due <= now), key=lambda each: each.due):
            del self.later[message.number]
            message.number = next(iter(self.numbers))
            self.messages[message.number] = message

    def take(self, session: str | None = None) -> StoredMessage | None:
        """Lock the first message that waits."""
        self.activate()
        self.end_locks()
        for message in self.messages.values():
            if message.token is None and (session is None or message.session == session):
                message.token, message.until = uuid4(), self.now() + self.lock_ms
                self.locked[message.token] = message
                return message
        return None

    def end_locks(self, *, every: bool = False) -> None:
        """End the locks that are over, or all. A message of a session is locked as long as its session."""
        now = self.now()
        for session, lock in tuple(self.sessions.items()):
            if every or lock.until <= now:
                self.close_session(session, counts=True)
        for message in tuple(self.locked.values()):
            if every or (message.until <= now and not self.has_sessions):
                self._unlock(message, counts=True)

    def held(self, token: UUID) -> StoredMessage:
        """Find a locked message. Raises Refused."""
        self.end_locks()
        found = self.locked.get(token)
        if found is None:
            raise Refused("com.microsoft:message-lock-lost", "the lock supplied is invalid")
        return found

    def complete(self, token: UUID) -> None:
        """Delete a locked message."""
        del self.messages[self.held(token).number]
        del self.locked[token]

    def abandon(self, token: UUID, *, counts: bool = True) -> None:
        """Unlock a message. Released, its delivery count does not change."""
        self._unlock(self.held(token), counts=counts)

    def bury(self, token: UUID) -> None:
        """Move a locked message to the dead-letter queue."""
        message = self.held(token)
        self.complete(token)
        self.dead.append(message)

    def renew(self, token: UUID) -> int:
        """Let a lock begin again."""
        message = self.held(token)
        message.until = self.now() + self.lock_ms
        return message.until

    def free_session(self, wanted: str | None) -> str | None:
        """Choose a session that has a message and that nobody holds."""
        self.activate()
        self.end_locks()
        for message in self.messages.values():
            if message.session is not None and message.session not in self.sessions and wanted in (None, message.session):
                return message.session
        return wanted if wanted is not None and wanted not in self.sessions else None

    def open_session(self, session: str, holder: object) -> int:
        """Lock a session; return until when."""
        until = self.now() + self.lock_ms
        self.sessions[session] = SessionLock(holder, until)
        return until

    def holds(self, session: str, holder: object) -> bool:
        """Tell whether a session is locked by this holder."""
        return session in self.sessions and self.sessions[session].holder is holder

    def renew_session(self, session: str) -> int:
        """Let the lock of a session begin again."""
        self.sessions[session].until = self.now() + self.lock_ms
        return self.sessions[session].until

    def close_session(self, session: str, *, counts: bool) -> None:
        """Return a session up with all that is locked in it."""
        self.sessions.pop(session, None)
        for message in tuple(self.locked.values()):
            if message.session == session:
                self._unlock(message, counts=counts)

    def _unlock(self, message: StoredMessage, *, counts: bool) -> None:
        assert message.token is not None
        del self.locked[message.token]
        message.token = None
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
        if queue.size + len(messages) > queue.limit:
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
            queue.end_locks(every=True)

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
    """Read a duration as the service writes it: days, hours, minutes and seconds."""
    found = _DURATION.fullmatch(duration)
    assert found is not None, duration
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
