"""Time and chance are arguments: the algorithms never see them, adapters and the runtime are given them."""

from typing import Protocol

__all__ = ["Clock", "IdGenerator", "RandomSource"]


class Clock(Protocol):
    """The wall clock."""

    def now(self) -> int:
        """Give milliseconds since 1970, UTC."""


class IdGenerator(Protocol):
    """A source of ids that were never given before, by anybody."""

    def new_id(self) -> str:
        """Give 32 hexadecimal digits."""


class RandomSource(Protocol):
    """A source of random numbers."""

    def fraction(self) -> float:
        """Give a number in [0, 1)."""
