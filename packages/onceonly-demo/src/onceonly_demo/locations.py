"""Where a run stores its data: a prefix or a folder of its own in each store, queue and service that it uses."""

from pathlib import Path
from uuid import uuid4

import msgspec

from onceonly import DedupStore, History, Off, SetupError, Tokens
from onceonly.config.location import locate, read_url
from onceonly.systems import Family, Role
from onceonly_demo.flights import FLIGHT_DEPARTED, LEDGER, LOYALTY, MILES_FLOWN
from onceonly_demo.options import Deduplication, DemoOptions

LEASE_SECONDS = 2  # until a killed process's messages come back
SUBSCRIBERS = {FLIGHT_DEPARTED: (LEDGER,), MILES_FLOWN: (LOYALTY,)}


class Locations(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a run, and the prefix of its own tables. `dedup_url` is empty when the store's database has the tokens."""

    store: str
    transport: str
    prefix: str
    deduplication: Deduplication
    dedup_url: str = ""
    blobs: str = ""
    documents: bool = False
    collection: str = ""

    @property
    def works_on_entities(self) -> bool:
        """Return whether the store has no tables, so that handlers work on entities."""
        return read_url(self.store).family is Family.DOCUMENTS

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


def choose_locations(options: DemoOptions, folder: Path) -> Locations:
    """Return the URLs of a new run. Raises SetupError for URLs that no run can use."""
    if options.documents and not (options.store and read_url(options.store).family is Family.DOCUMENTS):
        raise SetupError("--documents needs --store with the URL of a document service")
    prefix = f"demo_{uuid4().hex[:8]}_"
    store = options.store or f"sqlite:///{folder}/store.db"
    given: tuple[tuple[Role, str], ...] = (("store", store), ("tokens", options.dedup_url), ("blobs", options.blobs))
    for role, url in given:
        if url:
            _check(url, role)
    inside = options.deduplication is Deduplication.TOKENS and read_url(store).family is Family.SQL
    has_dedup_url = options.deduplication in {Deduplication.DEDUP_STORE, Deduplication.TOKENS}
    dedup_url = options.dedup_url or ("" if inside else store)
    return Locations(
        store=_own_part(store, prefix),
        transport=_with_options(options.transport or f"sqlite:///{folder}/queue.db", f"prefix={prefix}&lease={LEASE_SECONDS}"),
        prefix=prefix,
        deduplication=options.deduplication,
        dedup_url=_own_part(dedup_url, prefix) if has_dedup_url and dedup_url else "",
        blobs=_own_part(options.blobs, prefix) if options.blobs else "",
        documents=options.documents,
        collection=options.collection,
    )


def has_prefix(url: str) -> bool:
    """Return whether the data of a run has a prefix of its own. Otherwise only this run may use the URL."""
    system = read_url(url).system
    return system.family is not Family.DOCUMENTS or system.parts != ""


def _check(url: str, role: Role) -> None:
    location = locate(url, role)
    location.require_driver(role)
    if not location.is_shared:
        raise SetupError(f"{location}: the demo's processes share no memory")


def _own_part(url: str, prefix: str) -> str:
    """Return the URL of the part that is a run's own. It is the same URL if the system has no parts."""
    parts = read_url(url).system.parts
    if parts == "path":
        path, mark, query = url.partition("?")
        return f"{path.rstrip('/')}/{prefix.rstrip('_')}{mark}{query}"
    if parts == "prefix":
        return _with_options(url, f"prefix={prefix}")
    return url


def _with_options(url: str, options: str) -> str:
    return url + ("&" if "?" in url else "?") + options
