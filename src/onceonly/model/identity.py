"""Who a message is, and the hashes derived from it.

Identity is (source, id) and nothing else (CloudEvents 1.0, section "id": source + id is unique for each distinct event).
Every hash here runs over length-prefixed parts, so that ("ab", "c") and ("a", "bc") never meet.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

CLAIM_KEY_BYTES = 16
FINGERPRINT_BYTES = 8


class Identity(NamedTuple):
    """The pair that makes two deliveries copies of one logical message."""

    source: str
    id: str


def _hash(size: int, *parts: bytes) -> bytes:
    digest = blake2b(digest_size=size)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


@lru_cache(10_000)
def claim_key(endpoint: str, identity: Identity) -> bytes:
    """Give the 16 bytes under which `endpoint` claims this message; ids may have any length."""
    return _hash(CLAIM_KEY_BYTES, endpoint.encode(), identity.source.encode(), identity.id.encode())


def fingerprint(body: bytes) -> bytes:
    """Give the 8 bytes that tell whether two deliveries of one identity carry the same body."""
    return _hash(FINGERPRINT_BYTES, body)


def outgoing_id(endpoint: str, incoming: Identity, index: int) -> str:
    """Give the id, 32 hexadecimal digits, of the `index`-th message sent while handling `incoming`.

    Derived, so every re-dispatch is a true duplicate and ids do not grow from hop to hop.
    """
    parts = (endpoint.encode(), incoming.source.encode(), incoming.id.encode(), index.to_bytes(4, "big"))
    return _hash(16, *parts).hex()


def hash_of(*parts: bytes) -> bytes:
    """Give 16 bytes for something that has no identity, such as a delivery that cannot be read."""
    return _hash(CLAIM_KEY_BYTES, *parts)
