"""Who a message is, and the hashes derived from it.

Identity is (source, id) and nothing else (CloudEvents 1.0, section "id": source + id is unique for each distinct event).
Every hash here runs over length-prefixed parts, so that ("ab", "c") and ("a", "bc") never meet.

An id that an endpoint makes contains the message's instant, in milliseconds since 1970, which decides where the message is
claimed. So two copies with one identity are always claimed in one place, whatever their headers contain:

    018bcfe56800-7ff5ac48fa35fbfd69fa1c2e
    instant      hash of what it answers | check digits over the source and all before them

Without the check digits an id that only looks like one, or one that another sender has taken over, would be read as an instant.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

CLAIM_KEY_BYTES = 16
FINGERPRINT_BYTES = 8
NAME_BYTES = 10
"""The bytes in an id that tell the messages of one instant apart."""
_INSTANT_DIGITS = 12
_CHECKED = _INSTANT_DIGITS + 1 + 2 * NAME_BYTES
_TIMED = _CHECKED + 4
_is_timed = re.compile(r"[0-9a-f]{12}-[0-9a-f]{24}").fullmatch


class Identity(NamedTuple):
    """The identity of a message. Two deliveries with the same source and id are copies of one message."""

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
    """Return the 16 bytes under which `endpoint` claims this message; ids may have any length."""
    return _hash(CLAIM_KEY_BYTES, endpoint.encode(), identity.source.encode(), identity.id.encode())


def fingerprint(body: bytes) -> bytes:
    """Return the 8 bytes that show whether two deliveries of one identity carry the same body."""
    return _hash(FINGERPRINT_BYTES, body)


def outgoing_id(endpoint: str, incoming: Identity, index: int, instant: int = 0) -> str:
    """Return the id of the `index`-th message that `endpoint` sends while it handles `incoming`; an instant of 0 is none.

    Derived, so every re-dispatch is a true duplicate and ids do not grow from hop to hop.
    """
    parts = (endpoint.encode(), incoming.source.encode(), incoming.id.encode(), index.to_bytes(4, "big"))
    return timed_id(endpoint, instant, _hash(NAME_BYTES, *parts))


def effect_id(endpoint: str, incoming: Identity, name: str) -> str:
    """Return an id of something that `endpoint` does because of `incoming`, the same at every attempt.

    It has the form of a UUID of version 8 (RFC 9562, section 5.8).
    """
    parts = (endpoint.encode(), incoming.source.encode(), incoming.id.encode(), name.encode())
    digits = _hash(16, *parts).hex()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def timed_id(source: str, instant: int, name: bytes) -> str:
    """Return the id of a message of `source`; `name` has `NAME_BYTES` bytes."""
    checked = f"{instant:012x}-{name.hex()}"
    return checked + _check_digits(source, checked)


def instant_in(identity: Identity) -> int | None:
    """Return the instant in an id that an endpoint made, 0 when it has none; None for the id of any other sender."""
    id_ = identity.id
    if len(id_) != _TIMED or not _is_timed(id_) or _check_digits(identity.source, id_[:_CHECKED]) != id_[_CHECKED:]:
        return None
    return int(id_[:_INSTANT_DIGITS], 16)


def without_instant(id_: str) -> str:
    """Return what is the same in an id of `outgoing_id` each time the same message is answered: no instant, no check digits."""
    return id_[_INSTANT_DIGITS + 1 : _CHECKED]


def _check_digits(source: str, checked: str) -> str:
    return f"{crc32(f'{source} {checked}'.encode()) & 0xFFFF:04x}"


def hash_of(*parts: bytes) -> bytes:
    """Return 16 bytes for something that has no identity, such as a delivery that cannot be read."""
    return _hash(CLAIM_KEY_BYTES, *parts)
