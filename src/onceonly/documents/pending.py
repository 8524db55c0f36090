"""The unsent records of one endpoint on documents: found by the list that the service keeps of pending documents.

    list    the keys of documents with unsent records, which the write of each document changes
    load    these documents; the records that are the endpoint's own
    lease   note in one small document which records were given, so that other relays pass them over for a while

What the list says decides nothing. A document that is listed and has nothing unsent costs one read. A record is read from its
document, and is emptied by a compare-and-set of that document, whichever driver comes first. Leases only save sending the same
message twice: a lease that is lost, or that clocks shorten, does no harm.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.documents.compare_and_set import WriteConflict, compare_and_set
from onceonly.documents.limits import can_be_held
from onceonly.documents.store import ATTEMPT, DocumentStore
from onceonly.formats.documents import decode_entity
from onceonly.formats.undecodable import MESSAGES_WAIT, decode_or_report, report_undecodable
from onceonly.model.errors import CommitRefused, PermanentFailure, UpgradeRequired
from onceonly.model.identity import Identity
from onceonly.model.limits import StoredInt
from onceonly.model.record import Record
from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly.ports.documents import Change, Document, ListsPending, PendingDocument

PAGE = 100
"""Entries of the list that are read at once."""
NAME_DIGITS = 16
"""Of a record's name in a lease. Two records with equal digits only wait for each other."""
MOST_LEASED = 4_000
"""Records in the leases of one endpoint, about 80 KB. With more, the earliest are dropped, and may be sent twice."""
LONGEST_LEASE_MS = 600_000
"""A lease that ends later than this from now was written by a clock that is wrong, and counts as none."""
STALE_MS = 60_000
"""After how long an entry without unsent records is the fault of an earlier version, and is taken out of the list."""
REMEMBERED = 10_000
"""Identities of which the document is remembered."""
_ALWAYS = 1 << 60
"""An instant later than any."""


class RelayLeases(Struct, frozen=True):
    """The body of the document with leases: by when they end, the names of records."""

    leases: dict[StoredInt, list[str]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RelayLeases).decode


class ListedRecord(NamedTuple):
    """A record with its name and the instant of its commit, in the document of `entry`, which is listed behind `behind`."""

    record: Record
    name: str
    since: int
    entry: PendingDocument
    behind: PendingDocument | None

    @property
    def place(self) -> tuple[int, str]:
        """Its place among the records of its document."""
        return self.since, self.name


class _Unleased(NamedTuple):
    """Records that can be leased, the leases as they were read, and whether no more are behind these."""

    found: Sequence[ListedRecord]
    leases: Document | None
    is_end: bool


class DocumentPending:
    """Finds the unsent records of one endpoint. Implements PendingRecords, on documents that list what is pending.

    `take` gives the records in the order of the list, and those of one document in the order of their commits. Only the object
    that gave a record can go on behind it.
    """

    def __init__(self, store: DocumentStore, lists: ListsPending) -> None:
        self._store = store
        self._lists = lists
        self._key = f"relay/{store.endpoint}"
        self._units: dict[Identity, str] = {}
        self._last: dict[Identity, ListedRecord] = {}

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List records by their age; see the port. It reads on while a document could have an earlier one. Writes nothing."""
        found: list[ListedRecord] = []
        behind, asked = None, min(PAGE, max(1, limit))
        while True:
            page = await self._lists.pending(self._store.endpoint, older_than, after=behind, limit=asked)
            found += await self._records(page, behind, older_than, repairs=False)
            if len(page) < asked or sum(each.since <= page[-1].since for each in found) >= limit:
                break
            behind = page[-1]
        found.sort(key=lambda each: each.place)
        return tuple(self._bare(each.record) for each in found[:limit])

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Return records and lease them; see the port. It goes on behind those that other calls lease at the same time."""
        last = self._last.get(after) if after is not None else None
        given: list[ListedRecord] = []
        is_end = False
        while len(given) < limit and not is_end:
            some = await self._unleased(older_than, limit - len(given), last)
            if not some.found:
                break
            given += await self._lease(some.found, lease, some.leases) if lease else some.found
            last, is_end = some.found[-1], some.is_end
        if given and last is not None:
            self._last = {given[-1].record.identity: last}
        return tuple(each.record for each in given)

    async def _unleased(self, older_than: int, limit: int, last: ListedRecord | None) -> "_Unleased":
        """Return records behind `last` that no other call has leased."""
        behind = last.behind if last is not None else None
        leases: Document | None = None
        leased: frozenset[str] | None = None
        found: list[ListedRecord] = []
        asked, is_end = min(PAGE, max(1, limit)), False
        while len(found) < limit and not is_end:
            page = await self._lists.pending(self._store.endpoint, older_than, after=behind, limit=asked)
            records = await self._records(page, behind, older_than)
            if records and leased is None:
                leases = (await self._store.documents.load([self._key])).get(self._key)
                leased = self._leased(leases)
            found += [each for each in records if _digits(each) not in (leased or ()) and not _was_given(each, last)]
            is_end = len(page) < asked
            behind = page[-1] if page else behind
        return _Unleased(found[:limit], leases, is_end and len(found) <= limit)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Return the records of these; see the port. Those that are not where they are likely are looked for in the list."""
        wanted, found = set(identities), dict[Identity, Record]()
        likely = sorted({unit for identity in wanted for unit in self._likely_units(identity)})
        behind, page = None, tuple(PendingDocument(unit, 0) for unit in likely)
        while True:
            records = await self._records(page, behind, _ALWAYS)
            found |= {each.record.identity: self._bare(each.record) for each in records if each.record.identity in wanted}
            if wanted <= found.keys():
                break
            page = await self._lists.pending(self._store.endpoint, _ALWAYS, after=behind, limit=PAGE)
            if not page:
                break
            behind = page[-1]
        return tuple(found[identity] for identity in identities if identity in found)

    async def _records(
        self, page: Sequence[PendingDocument], behind: PendingDocument | None, older_than: int, *, repairs: bool = True
    ) -> list[ListedRecord]:
        """Load these documents, and return the unsent records of this endpoint that were committed before `older_than`.

        If it `repairs` the list, entries that an earlier version has left in it are taken out, and the records are expected to
        be forgotten next.
        """
        loaded = await self._store.documents.load([entry.key for entry in page]) if page else {}
        found: list[ListedRecord] = []
        for entry in page:
            if (document := loaded.get(entry.key)) is not None:
                some = self._read(entry, behind, document)
                if repairs and some == [] and 0 < entry.since < self._store.clock.now() - STALE_MS:
                    await self._unlist(entry.key, document)
                if repairs and some:
                    self._store.recent.add(entry.key, document)
                found += sorted((each for each in some or () if each.since < older_than), key=lambda each: each.place)
            behind = entry
        for each in found:
            self._units.pop(each.record.identity, None)
            self._units[each.record.identity] = each.entry.key
        for identity in [*self._units][: max(0, len(self._units) - REMEMBERED)]:
            del self._units[identity]
        return found

    def _read(self, entry: PendingDocument, behind: PendingDocument | None, document: Document) -> list[ListedRecord] | None:
        """Return what is unsent in a document. None for one that cannot be read: it is logged, and its records wait."""
        found: list[ListedRecord] = []
        try:
            for name, state in decode_entity(entry.key, document.body).records.items():
                if (identity := state.pending_of(self._store.endpoint)) is not None:
                    record = state.record(identity, entry.key)
                    record = replace(record, fingerprint=bytes.fromhex(state.body))
                    found.append(ListedRecord(record, name, state.since, entry, behind))
        except (PermanentFailure, UpgradeRequired, ValueError) as error:
            report_undecodable("document", entry.key, error, MESSAGES_WAIT)
            return None
        return found

    async def _unlist(self, key: str, document: Document) -> None:
        """Save a document as it is. A process of an earlier version, which knows no list, had left it there."""
        try:
            change = self._store.change_of(key, decode_entity(key, document.body), document.version)
            await self._store.documents.save([change])
        except CommitRefused:
            pass

    def _bare(self, record: Record) -> Record:
        """Return a record without the fingerprint, unless the claim goes with it."""
        return record if self._store.history is None else replace(record, fingerprint=b"")

    def _likely_units(self, identity: Identity) -> Iterator[str]:
        endpoint = self._store.endpoint
        if (unit := self._units.get(identity)) is not None:
            yield unit
            return
        attempt = [f"{ATTEMPT}{endpoint}/{identity.id}"] if identity.source == endpoint else []
        for unit in (self._store.own_document(identity), *attempt):
            if can_be_held(unit, self._store.documents.limits):
                yield unit

    def _leased(self, document: Document | None) -> frozenset[str]:
        return frozenset(name for names in self._leases(document).values() for name in names)

    def _leases(self, document: Document | None) -> dict[int, list[str]]:
        """Return the leases that have not ended."""
        if document is None:
            return {}
        read = decode_or_report(lambda: _decode(document.body).leases, "leases of relays", self._key, "ignored")
        now = self._store.clock.now()
        return {until: names for until, names in (read or {}).items() if now < until <= now + LONGEST_LEASE_MS}

    async def _lease(self, wanted: Sequence[ListedRecord], lease: int, guess: Document | None) -> Sequence[ListedRecord]:
        """Note that these are given, and return those that no other call has been given meanwhile."""
        given: Sequence[ListedRecord] = ()

        def leased(key: str, document: Document | None) -> Change | None:
            nonlocal given
            leases, taken = self._leases(document), self._leased(document)
            given = [each for each in wanted if _digits(each) not in taken]
            if not given:
                return None
            until = self._store.clock.now() + lease
            leases[until] = [*leases.get(until, ()), *map(_digits, given)]
            while len(leases) > 1 and sum(map(len, leases.values())) > MOST_LEASED:
                del leases[min(leases)]
            body, expected = _encode(RelayLeases(leases)), document.version if document else ""
            return Change(key=key, body=body, expected=expected, expires=max(leases) + CLOCK_MARGIN_MS)

        try:
            await compare_and_set(self._store.documents, [self._key], leased, guesses={self._key: guess})
        except WriteConflict:  # many relays are taking: this one comes again
            return ()
        return given


def _digits(found: ListedRecord) -> str:
    return found.name[:NAME_DIGITS]


def _was_given(found: ListedRecord, last: ListedRecord | None) -> bool:
    """Return whether a record comes before the last one that was given, or is that one; only its own document is read again."""
    return last is not None and found.entry.key == last.entry.key and found.place <= last.place
