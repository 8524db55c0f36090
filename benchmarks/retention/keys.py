"""Keys of claims as the library makes them, and those of the classic table; made before the clock starts."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple
from uuid import UUID

HASH_BITS, PRINT_BITS, UUID_BITS = 80, 63, 128
JITTER = 600_000
"""Milliseconds within which messages overtake each other."""


class Batch(NamedTuple):
    """Keys of the library's claims, the fingerprints beside them, and as many keys of a classic table."""

    keys: list[bytes]
    fingerprints: list[bytes]
    texts: list[str]


class Keys:
    """Makes claims of one slice: their instants go on by `pace` ms, and overtake each other by ten minutes at most."""

    def __init__(self, start: int, width: int, *, pace: float = 0.1, seed: int = 1) -> None:
        self._start, self._width, self._pace = start, width, pace
        self._rng = Random(seed)  # noqa: S311 - test data
        self._made = 0

    def batches(self, claims: int, size: int) -> list[Batch]:
        """Make some; each in the order of its keys, as a unit claims."""
        return [self._batch(size) for _ in range(claims // size)]

    def _batch(self, size: int) -> Batch:
        keys = sorted(self._keys(size))
        prints = [self._rng.getrandbits(PRINT_BITS).to_bytes(8, "big") for _ in keys]
        return Batch(keys, prints, [str(UUID(int=self._rng.getrandbits(UUID_BITS))) for _ in keys])

    def _keys(self, size: int) -> Iterator[bytes]:
        for _ in range(size):
            self._made += 1
            ahead = (int(self._made * self._pace) + self._rng.randrange(JITTER)) % self._width
            instant = self._start + ahead
            yield (instant << HASH_BITS | self._rng.getrandbits(HASH_BITS) | 1).to_bytes(16, "big")
