"""The names of queues in a storage account: 3 to 63 of a-z, 0-9 and single dashes.

The queue of an endpoint `shop` is `onceonly-q-shop`. What is not due waits in `onceonly-d-shop`. A subscription is an empty
queue `onceonly-s-HASH-HASH`; its metadata has the type and the endpoint.
"""

import re
from hashlib import blake2b
from urllib.parse import quote, unquote

from msgspec import Struct

LONGEST = 63
HASH_BYTES = 8
SUBSCRIBED, GONE = "subscribed", "gone"
"""What the metadata of a subscription says. It is not deleted when it ends: Azure keeps a deleted name for 30 seconds."""
_plain = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*").fullmatch
_other = re.compile(r"[^a-z0-9]+")


class QueueNames(Struct, frozen=True):
    """The names of all queues behind a prefix, which has no dash."""

    prefix: str

    def queue(self, endpoint: str) -> str:
        """Name the queue of an endpoint."""
        return self._named("q", endpoint)

    def delayed(self, endpoint: str) -> str:
        """Name the queue of messages for an endpoint that are not due."""
        return self._named("d", endpoint)

    @property
    def subscriptions(self) -> str:
        """Begin the names of all subscriptions."""
        return f"{self.prefix}-s-"

    def subscribers(self, kind: str) -> str:
        """Begin the names of all subscriptions to an event type."""
        return f"{self.subscriptions}{_hash(kind)}-"

    def subscription(self, kind: str, endpoint: str) -> str:
        """Name one subscription."""
        return f"{self.subscribers(kind)}{_hash(endpoint)}"

    def _named(self, letter: str, endpoint: str) -> str:
        start = f"{self.prefix}-{letter}-"
        if _plain(endpoint) and len(start) + len(endpoint) <= LONGEST:
            return start + endpoint
        start, end = f"{self.prefix}-{letter}x-", _hash(endpoint)
        shown = _other.sub("-", endpoint.lower()).strip("-")[: LONGEST - len(start) - len(end) - 1].strip("-")
        return f"{start}{shown}-{end}" if shown else start + end


def subscription_metadata(kind: str, endpoint: str, state: str) -> dict[str, str]:
    """Return the metadata of a subscription. Metadata are headers of HTTP, so all but ASCII is percent-encoded."""
    return {"type": quote(kind), "endpoint": quote(endpoint), "state": state}


def read_subscription(metadata: dict[str, str] | None) -> tuple[str, str] | None:
    """Return the type and the endpoint of a subscription; None for one that has ended, and for what is none."""
    found = {name.lower(): value for name, value in (metadata or {}).items()}
    if found.get("state") != SUBSCRIBED or "type" not in found or not found.get("endpoint"):
        return None
    return unquote(found["type"]), unquote(found["endpoint"])


def _hash(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).hexdigest()
