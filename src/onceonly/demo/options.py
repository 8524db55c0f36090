"""What a run of the demo may be told."""

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Empty URLs mean SQLite files in a temporary folder."""

    flights: int = 5000
    kills: int = 20
    processes: int = 3
    deduplicates: bool = True
    store: str = ""
    transport: str = ""
    seed: int = 2013
