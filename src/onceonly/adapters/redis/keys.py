"""The keys of queues.

All keys of a prefix contain it in braces, `{onceonly:}stream:shop`. Redis Cluster hashes only what is in braces, so they are
in one slot, and a script may use several of them.
"""

from msgspec import Struct

GROUP = b"onceonly"
"""The consumer group of every stream."""


class QueueKeys(Struct, frozen=True):
    """The keys of one queue."""

    stream: bytes
    delayed: bytes
    released: bytes
    wake: bytes
    subscriptions: bytes


class Keys:
    """The keys behind one prefix."""

    def __init__(self, prefix: str) -> None:
        self.start = f"{{{prefix}}}".encode()

    def queue(self, endpoint: str) -> QueueKeys:
        """Return the keys of an endpoint's queue.

        * `stream`: what waits and what is held.
        * `delayed`: a sorted set of what is not due, by the time when it is due.
        * `released`: a list of the ids of entries that were released, and not taken since.
        * `wake`: a stream of one entry. A new entry wakes receivers that wait.
        * `subscriptions`: a set of the types that the endpoint subscribes to.
        """
        parts = (b"stream:", b"delayed:", b"released:", b"wake:", b"subscriptions:")
        name = endpoint.encode()
        return QueueKeys(*(self.start + part + name for part in parts))

    def subscribers(self, kind: str) -> bytes:
        """Return the key of the set of endpoints that subscribe to a type."""
        return self.start + b"subscribers:" + kind.encode()
