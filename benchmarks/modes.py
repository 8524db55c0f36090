"""How thorough a run is: full, quick, or tiny."""

from msgspec import Struct


class Mode(Struct, frozen=True, kw_only=True):
    """Rounds of every row, the share of each row's messages, and what else is measured. Times are in seconds.

    Latency is measured for `latency` seconds in each of `latency_rounds` rounds: three of 2,000 messages, or a 99th percentile
    would be a matter of a few messages.
    A round of a row lasts `seconds`, once it is known how fast the row is here. `backlog` is how many messages wait when the
    memory of a worker is measured; 0 leaves it out. `room` is how many times smaller than usual batches may be.
    """

    name: str
    rounds: int
    share: float
    seconds: float
    tunes: bool = False
    costs: bool = False
    latency: float = 0.0
    latency_rounds: int = 1
    backlog: int = 0
    growth: bool = False
    room: float = 1.0

    def messages(self, usual: int, rate: float | None = None) -> int:
        """Return how many messages a run has, of a row's usual number, when it handles `rate` a second here."""
        most = usual * self.share
        return max(LEAST, round(most if rate is None else min(most, rate * self.seconds)))


LEAST = 40
FULL = Mode(
    name="full",
    rounds=5,
    share=1.0,
    seconds=2.5,
    tunes=True,
    costs=True,
    latency=10.0,
    latency_rounds=3,
    backlog=100_000,
    growth=True,
)
QUICK = Mode(name="quick", rounds=3, share=0.25, seconds=1.0, costs=True, latency=10.0, latency_rounds=3, backlog=10_000)
TINY = Mode(name="tiny", rounds=1, share=0.0, seconds=1.0, backlog=LEAST, room=4.0)
