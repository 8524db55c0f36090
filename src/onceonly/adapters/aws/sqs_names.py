"""The names of queues and topics.

The queue of an endpoint `shop` is `onceonly-queue-shop`. The topic of an event type `shop.order.v1` is
`onceonly-event-shop_2eorder_2ev1`. With `fifo=true` all names but those of queues for delayed messages end in `.fifo`.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct

FIFO = ".fifo"
LONGEST_QUEUE, LONGEST_TOPIC = 80, 256
"""Characters of a name, with the prefix and the suffix."""
_QUEUE, _DELAYED, _EVENT = "onceonly-queue-", "onceonly-delayed-", "onceonly-event-"
_HASH = "_hash_"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_ESCAPED = re.compile(r"(?:_[0-9a-f]{2})+")


class SqsNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""
    fifo: bool = False

    def queue(self, endpoint: str) -> str:
        """Name the queue of an endpoint."""
        return f"{self.prefix}{_QUEUE}{self._queue_word(endpoint)}{self._suffix}"

    def delayed(self, endpoint: str) -> str:
        """Name the queue for delayed messages: a FIFO queue delays no single message."""
        return f"{self.prefix}{_DELAYED}{self._queue_word(endpoint)}" if self.fifo else self.queue(endpoint)

    def delayed_of(self, queue: str) -> str:
        """Name the queue for delayed messages of a queue. It is that queue itself unless it is a FIFO queue of an endpoint."""
        start = f"{self.prefix}{_QUEUE}"
        if not queue.endswith(FIFO) or not queue.startswith(start):
            return queue
        return f"{self.prefix}{_DELAYED}{queue.removeprefix(start).removesuffix(FIFO)}"

    def topic(self, kind: str) -> str:
        """Name the topic of an event type."""
        start = f"{self.prefix}{_EVENT}"
        return f"{start}{_written(kind, LONGEST_TOPIC - len(start) - len(FIFO))}{self._suffix}"

    def topics(self) -> str:
        """Match the names of all topics."""
        return f"{self.prefix}{_EVENT}*"

    def kind_of(self, topic: str) -> str | None:
        """Return the event type of a topic; None for a hash, and for a topic of others."""
        start = f"{self.prefix}{_EVENT}"
        kind = _read(topic.removeprefix(start).removesuffix(self._suffix))
        return kind if kind is not None and self.topic(kind) == topic else None

    @property
    def _suffix(self) -> str:
        return FIFO if self.fifo else ""

    def _queue_word(self, endpoint: str) -> str:
        return _written(endpoint, LONGEST_QUEUE - len(self.prefix) - len(_DELAYED) - len(FIFO))


@lru_cache(10_000)
def _written(name: str, longest: int) -> str:
    """Write a name: every other byte is an underscore and two digits. No two names become one."""
    word = "".join(letter if letter in _PLAIN else "".join(f"_{byte:02x}" for byte in letter.encode()) for letter in name)
    return word if len(word) <= longest else _HASH + blake2b(name.encode(), digest_size=10).hexdigest()


def _read(word: str) -> str | None:
    try:
        return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("_", "")).decode(), word)
    except UnicodeDecodeError:
        return None
