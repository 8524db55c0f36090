"""Where a run keeps its things: its own prefix, or a part of its own, in every place that it uses."""

from pathlib import Path
from uuid import uuid4

import msgspec

from onceonly import DedupStore, History, Off, SetupError, Tokens
from onceonly.config.location import locate, read_url
from onceonly.demo.flights import FLIGHT_DEPARTED, LEDGER, LOYALTY, MILES_FLOWN
from onceonly.demo.options import Deduplication, Options
from onceonly.systems import Role

LEASE_SECONDS = 2  # until a killed process's messages come back
SUBSCRIBERS = {FLIGHT_DEPARTED: (LEDGER,), MILES_FLOWN: (LOYALTY,)}


class DemoUrls(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a run, and the prefix of its own tables. `dedup_url` is empty when the store's database has the tokens."""

    store: str
    transport: str
    prefix: str
    deduplication: Deduplication
    dedup_url: str = ""
    blobs: str = ""

    @property
    def works_on_entities(self) -> bool:
        """Return whether the store has no tables, so that handlers work on entities."""
        return read_url(self.store).keeps_documents

    @property
    def setting(self) -> History | DedupStore | Tokens | Off:
        """Return the endpoints' setting of deduplication."""
        match self.deduplication:
            case Deduplication.HISTORY:
                return History()
            case Deduplication.DEDUP_STORE:
                return DedupStore(self.dedup_url)
            case Deduplication.TOKENS:
                return Tokens(self.dedup_url, subscribers=SUBSCRIBERS)
            case Deduplication.OFF:
                return Off()


def place_of(options: Options, folder: Path) -> DemoUrls:
    """Give a place of the run's own. Raises SetupError for URLs that no run can use."""
    prefix = f"demo_{uuid4().hex[:8]}_"
    store = options.store or f"sqlite:///{folder}/store.db"
    given: tuple[tuple[Role, str], ...] = (("store", store), ("tokens", options.dedup_url), ("blobs", options.blobs))
    for role, url in given:
        if url:
            _check(url, role)
    inside = options.deduplication is Deduplication.TOKENS and read_url(store).is_sql
    has_dedup_url = options.deduplication in {Deduplication.DEDUP_STORE, Deduplication.TOKENS}
    dedup_url = options.dedup_url or ("" if inside else store)
    return DemoUrls(
        store=_own(store, prefix),
        transport=_with(options.transport or f"sqlite:///{folder}/queue.db", f"prefix={prefix}&lease={LEASE_SECONDS}"),
        prefix=prefix,
        deduplication=options.deduplication,
        dedup_url=_own(dedup_url, prefix) if has_dedup_url and dedup_url else "",
        blobs=_own(options.blobs, prefix) if options.blobs else "",
    )


def has_prefix(url: str) -> bool:
    """Return whether the data of a run has a prefix of its own. Otherwise only this run may use the place."""
    system = read_url(url).system
    return not system.keeps_documents or system.parts != ""


def _check(url: str, role: Role) -> None:
    place = locate(url, role)
    place.require_driver(role)
    if place.in_process:
        raise SetupError(f"{place}: the demo's processes share no memory")


def _own(url: str, prefix: str) -> str:
    """Give the part of a place that is a run's own; the whole place where it has no parts."""
    parts = read_url(url).system.parts
    if parts == "path":
        path, mark, query = url.partition("?")
        return f"{path.rstrip('/')}/{prefix.rstrip('_')}{mark}{query}"
    if parts == "prefix":
        return _with(url, f"prefix={prefix}")
    return url


def _with(url: str, options: str) -> str:
    return url + ("&" if "?" in url else "?") + options
