"""Time, random numbers and ids that a test controls."""

START = 1_750_000_000_000
"""When every run begins: 2025-06-15, 15:06:40 UTC."""


class RunClock:
    """A clock that stands still until the test advances it. Delays, retries and leases use it."""

    def __init__(self, start: int = START) -> None:
        self._now = start

    def now(self) -> int:
        """Return the time in milliseconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time forward. The next `settle()` or `deliver(...)` delivers what became due."""
        if seconds < 0:
            raise ValueError("time only moves forward: use a duration of 0 or more")
        self._now += round(seconds * 1000)


class FixedRandomSource:
    """Chance without surprise: jitter adds nothing."""

    def fraction(self) -> float:
        """Give zero."""
        return 0.0


class CountedIdGenerator:
    """Ids that count up, so that two runs of a test see the same ones."""

    def __init__(self) -> None:
        self._given = 0

    def new_id(self) -> str:
        """Give the next number as 32 hexadecimal digits."""
        self._given += 1
        return f"{self._given:032x}"
