"""The names of objects in Service Bus, which does not distinguish upper and lower case.

The queue of an endpoint `shop` is `shop`. Events of the type `shop.paid.v1` go to the topic `event__shop.paid.v1`, where each
endpoint that subscribes has a subscription of its name. Every character but a-z, 0-9, '.' and '-' is written as `_` and two
digits for each byte, so no two names become one.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

from msgspec import Struct

from onceonly.model.escaped import is_utf8, raw

LONGEST, LONGEST_SUBSCRIPTION, LONGEST_SESSION = 200, 50, 128
OWN_SESSION = "onceonly-"
SHARED_SESSIONS = 16
"""Sessions among which messages without a key are divided: a session of its own for each would take a connection for each."""
_TOPIC = "event__"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789.-")
_ESCAPED = re.compile(rb"_([0-9a-f]{2})")


class EntityNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""

    def queue(self, endpoint: str) -> str:
        """Name the queue of an endpoint."""
        return self.prefix + _short(_written(endpoint), LONGEST)

    def topic(self, kind: str) -> str:
        """Name the topic of an event type."""
        return f"{self.prefix}{_TOPIC}{_short(_written(kind), LONGEST)}"

    def subscription(self, endpoint: str) -> str:
        """Name the subscription of an endpoint."""
        return _short(_written(endpoint), LONGEST_SUBSCRIPTION)

    def kind_of(self, topic: str) -> str | None:
        """Return the event type of a topic; None for other topics, and for a hash."""
        start = self.prefix + _TOPIC
        if not topic.startswith(start):
            return None
        written = topic.removeprefix(start)
        try:
            kind = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), written.encode()).decode()
        except UnicodeDecodeError:
            return None
        return kind if self.topic(kind) == topic else None


def session_of(key: str, source: str, id_: str) -> str:
    """Choose the session of a message, the same for all its copies: its key, or a hash of a key that the service does not take.

    A message without a key is in one of a few sessions, whose order has no meaning.
    """
    if key and len(key) <= LONGEST_SESSION and is_utf8(key) and not key.startswith(OWN_SESSION):
        return key
    if key:
        return f"{OWN_SESSION}key-{blake2b(raw(key), digest_size=16).hexdigest()}"
    return f"{OWN_SESSION}{crc32(raw(source + id_)) % SHARED_SESSIONS}"  # ids that count up are spread evenly


def is_shared_session(session: str) -> bool:
    """Return whether the messages of a session have no key."""
    return session.startswith(OWN_SESSION) and session.removeprefix(OWN_SESSION).isdigit()


@lru_cache(10_000)
def _written(name: str) -> str:
    letters = name.encode()
    last = len(letters) - 1
    return "".join(
        chr(byte) if byte in _PLAIN and not (at in (0, last) and byte in b".-") else f"_{byte:02x}"
        for at, byte in enumerate(letters)
    )


def _short(written: str, longest: int) -> str:
    return written if len(written) <= longest else "hash__" + blake2b(written.encode(), digest_size=16).hexdigest()
