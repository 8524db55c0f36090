"""The names of streams and subjects in JetStream.

The queue of an endpoint `shop` is the stream `onceonly-queue-shop` with the one subject `onceonly.queue.shop`, to which other
programs publish. Two more streams belong to all endpoints behind a prefix: `onceonly-subscriptions` and `onceonly-delayed`.
"""

import re

from msgspec import Struct

from onceonly.model.limits import is_endpoint_name
from onceonly.queues.names import LETTERS, EscapedNames

CONSUMER = "onceonly"
"""The durable consumer of every queue."""
BUCKET_MS = 100
"""Delayed messages that are due within this many milliseconds share a subject."""
MINUTE = 60_000 // BUCKET_MS
LONGEST = 250
"""Characters of a written token: a server takes 4096 bytes for a line with two subjects."""
_TOKENS = EscapedNames(LETTERS | {"_"}, mark="=", hashed="=hash=")
_instant = re.compile(r"[0-9]{11}\.([0-9]{14})").fullmatch


class NatsNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""

    def queue(self, endpoint: str) -> str:
        """Name the stream of an endpoint's queue."""
        return f"{_TOKENS.write(self.prefix, LONGEST)}onceonly-queue-{_TOKENS.write(endpoint, LONGEST)}"

    def queue_subject(self, endpoint: str) -> str:
        """Name the subject of an endpoint's queue."""
        return f"{self.prefix}onceonly.queue.{endpoint}"

    @property
    def subscriptions(self) -> str:
        """Name the stream with one message for each subscription."""
        return f"{_TOKENS.write(self.prefix, LONGEST)}onceonly-subscriptions"

    @property
    def subscription_subjects(self) -> str:
        return f"{self.prefix}onceonly.subscription.*.*"

    def subscription(self, kind: str, endpoint: str) -> str:
        return f"{self.prefix}onceonly.subscription.{_TOKENS.write(kind, LONGEST)}.{_TOKENS.write(endpoint, LONGEST)}"

    def subscribers(self, kind: str) -> str:
        """Match the subjects of all subscriptions to an event type."""
        return f"{self.prefix}onceonly.subscription.{_TOKENS.write(kind, LONGEST)}.*"

    def subscribed(self, endpoint: str) -> str:
        """Match the subjects of all subscriptions of an endpoint."""
        return f"{self.prefix}onceonly.subscription.*.{_TOKENS.write(endpoint, LONGEST)}"

    @property
    def delayed(self) -> str:
        return f"{_TOKENS.write(self.prefix, LONGEST)}onceonly-delayed"

    @property
    def delayed_subjects(self) -> str:
        """Match the subjects of all delayed messages."""
        return f"{self.prefix}onceonly.delayed.>"

    def delayed_until(self, endpoint: str, due: int) -> str:
        """Name the subject of messages for an endpoint that are due by a time, in milliseconds. It begins at a later one."""
        bucket = rounded_up(due) // BUCKET_MS
        return f"{self.delayed_for(endpoint, str(bucket // MINUTE))[:-1]}{bucket:014}"

    def delayed_for(self, endpoint: str, minute: str = "*") -> str:
        """Match the subjects of delayed messages for an endpoint, also of one minute alone."""
        shown = minute if minute == "*" else minute.zfill(11)
        return f"{self.prefix}onceonly.delayed.{_TOKENS.write(endpoint, LONGEST)}.{shown}.*"

    def all_delayed_for(self, endpoint: str) -> str:
        """Match all subjects of delayed messages for an endpoint, also those that have no instant."""
        return f"{self.prefix}onceonly.delayed.{_TOKENS.write(endpoint, LONGEST)}.>"

    def due_of(self, endpoint: str, subject: str) -> int | None:
        """Return from when on the messages of a subject are due, in milliseconds; None for one that is not `delayed_until`.

        Any user with the right to publish chooses the subject. A server also stores a literal `*`, which a request would take
        for all subjects.
        """
        start = self.all_delayed_for(endpoint)[:-1]
        found = _instant(subject[len(start) :]) if subject.startswith(start) else None
        return None if found is None else int(found[1]) * BUCKET_MS


def rounded_up(due: int) -> int:
    """Return from when on a message is moved that is due at this time, in milliseconds."""
    return -(-due // BUCKET_MS) * BUCKET_MS


def subscriber_of(subject: str) -> str | None:
    """Return the endpoint of a subscription; None if its last token is not the name of one."""
    name = _TOKENS.read(subject.rpartition(".")[2], LONGEST)
    return name if is_endpoint_name(name) else None


def kind_of(subject: str) -> str | None:
    """Return the event type of a subscription; None for a hash."""
    return _TOKENS.read(subject.rpartition(".")[0].rpartition(".")[2], LONGEST)
