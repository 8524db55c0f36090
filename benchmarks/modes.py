"""How thorough a run is: full, quick, or tiny."""

from msgspec import Struct


class Mode(Struct, frozen=True, kw_only=True):
    """Rounds of every row, the share of each row's messages, and what else is measured. Times are in seconds."""

    name: str
    rounds: int
    share: float
    tunes: bool = False
    costs: float = 0.0
    latency: float = 0.0
    latency_rounds: int = 1
    growth: bool = False

    def messages(self, usual: int) -> int:
        """Give how many messages a run has, of a row's usual number."""
        return max(LEAST, round(usual * self.share))


LEAST = 40
FULL = Mode(name="full", rounds=5, share=1.0, tunes=True, costs=0.1, latency=10.0, latency_rounds=3, growth=True)
QUICK = Mode(name="quick", rounds=3, share=0.25, costs=0.05, latency=4.0)
TINY = Mode(name="tiny", rounds=1, share=0.0)
