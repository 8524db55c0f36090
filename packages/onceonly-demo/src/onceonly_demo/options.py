"""The options of a run of the demo."""

from enum import StrEnum

import msgspec


class Deduplication(StrEnum):
    """What knows that a message was handled; with `off`, the control run, nothing does."""

    HISTORY = "history"
    DEDUP_STORE = "dedup-store"
    TOKENS = "tokens"
    OFF = "off"


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. Empty URLs mean SQLite files in a temporary folder. `dedup_url` is for tokens or marks; default: the store.

    An empty `blobs` means that no blobs are created. With `documents`, handlers also write documents of the application, in
    `collection`; empty: the store's.
    """

    flights: int = 5000
    kills: int = 20
    processes: int = 3
    deduplication: Deduplication = Deduplication.HISTORY
    store: str = ""
    transport: str = ""
    dedup_url: str = ""
    blobs: str = ""
    documents: bool = False
    collection: str = ""
    seed: int = 2013

    @property
    def deduplicates(self) -> bool:
        """Return whether this is not a control run."""
        return self.deduplication is not Deduplication.OFF
