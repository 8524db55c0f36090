"""A clock that moves only when a test moves it."""

START = 1_700_000_000_000


class ManualClock:
    """Implements the Clock port; begins somewhere in 2023."""

    def __init__(self, now: int = START) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def advance(self, milliseconds: int) -> None:
        self._now += milliseconds
