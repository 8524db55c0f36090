"""Time, ids and random numbers. They are arguments, so that tests can decide them."""

from typing import Protocol

__all__ = ["Clock", "IdGenerator", "RandomSource"]


class Clock(Protocol):
    """The wall clock."""

    def now(self) -> int:
        """Return milliseconds since 1970, UTC."""


class IdGenerator(Protocol):
    """A source of ids that are unique everywhere."""

    def new_id(self) -> str:
        """Return 32 hexadecimal digits."""


class RandomSource(Protocol):
    """A source of random numbers."""

    def fraction(self) -> float:
        """Return a number from 0 up to, and without, 1."""
