"""Small documents in addition to the entities: counters, the maintenance journal, and run markers."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct

from onceonly.documents.compare_and_set import compare_and_set
from onceonly.formats.undecodable import decode_or_report
from onceonly.model.identity import Identity, claim_key
from onceonly.model.limits import StoredInt
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock
from onceonly.ports.run_markers import BEGUN, NO_DEATHS, DeadRuns, StartResult, waiting

MOST_TYPES = 500
"""Types of events that are counted in one document, so that it stays below 150 KB."""
_encode = msgspec.json.Encoder().encode


class CounterBody(Struct, frozen=True):
    count: StoredInt


_decode_count = msgspec.json.Decoder(CounterBody).decode


class DocumentCounter:
    """A counter in one document. Implements the Counter port."""

    def __init__(self, documents: Documents, name: str) -> None:
        self._documents = documents
        self._key = f"count/{name}"

    async def add(self, count: int) -> None:
        def added(key: str, found: Document | None) -> Change:
            return Change(
                key=key, body=_encode(CounterBody(self._read(found) + count)), expected=found.version if found else ""
            )

        await compare_and_set(self._documents, [self._key], added)

    async def read(self) -> int:
        """Return it. 0 if nothing was ever added."""
        return self._read((await self._documents.load([self._key])).get(self._key))

    def _read(self, found: Document | None) -> int:
        """Return its number. One that cannot be read counts from 0 again."""
        if found is None:
            return 0
        return decode_or_report(lambda: _decode_count(found.body).count, "counter", self._key, "counted from 0") or 0


class EventCountsBody(Struct, frozen=True):
    """The body of the document with the counts of events, by type."""

    counts: dict[str, StoredInt]


_decode_event_counts = msgspec.json.Decoder(EventCountsBody).decode


class DocumentEventCounts:
    """Counts of events without subscribers, in one document. Implements the EventCounts port."""

    def __init__(self, documents: Documents, endpoint: str) -> None:
        self._documents = documents
        self._key = f"unsubscribed/{endpoint}"

    async def add(self, counts: Mapping[str, int]) -> None:
        """Add to them; see the port. A document has 500 types at most; further types are not counted."""

        def added(key: str, found: Document | None) -> Change:
            sums = dict(self._read(found))
            for kind in sorted(counts):
                if kind in sums or len(sums) < MOST_TYPES:
                    sums[kind] = sums.get(kind, 0) + counts[kind]
            return Change(key=key, body=_encode(EventCountsBody(sums)), expected=found.version if found else "")

        await compare_and_set(self._documents, [self._key], added)

    async def read(self) -> Mapping[str, int]:
        found = self._read((await self._documents.load([self._key])).get(self._key))
        return {kind: found[kind] for kind in sorted(found)}

    def _read(self, found: Document | None) -> Mapping[str, int]:
        """Return its numbers. Those that cannot be read count from 0 again."""
        if found is None:
            return {}
        read = decode_or_report(lambda: _decode_event_counts(found.body), "event counts", self._key, "counted from 0")
        return read.counts if read else {}


_decode_journal = msgspec.json.Decoder(MaintenanceJournal).decode


class DocumentJournals:
    """The journal of one endpoint. Implements the Journals port; the key begins with `janitor/`."""

    def __init__(self, documents: Documents, endpoint: str) -> None:
        self._documents = documents
        self._key = f"janitor/{endpoint}"

    async def read(self) -> MaintenanceJournal | None:
        found = (await self._documents.load([self._key])).get(self._key)
        if found is None:
            return None
        return decode_or_report(lambda: _decode_journal(found.body), "janitor journal", self._key, "replaced by the next round")

    async def write(self, journal: MaintenanceJournal) -> None:
        def replaced(key: str, found: Document | None) -> Change:
            return Change(key=key, body=_encode(journal), expected=found.version if found else "")

        await compare_and_set(self._documents, [self._key], replaced)

    async def longest_retention(self) -> int:
        journal = await self.read()
        return journal.retention if journal else 0


class DocumentRun(Struct, frozen=True):
    """A run that has not ended. It counts as dead at `until`, in milliseconds since 1970."""

    attempts: StoredInt
    token: str
    until: StoredInt


_decode_run = msgspec.json.Decoder(DocumentRun).decode


class DocumentRunMarkers:
    """The runs of one endpoint. By the processes' clocks: one that has not ended after `lasts` seconds counts as dead."""

    def __init__(self, documents: Documents, endpoint: str, clock: Clock, lasts: float) -> None:
        self._documents = documents
        self._endpoint = endpoint
        self._lasts = int(lasts * 1000)
        self._clock = clock
        self._tokens: dict[str, str] = {}

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Return nothing: a document store sees no process die."""
        return NO_DEATHS

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        key = self._key(identity)
        token = self._tokens[key] = uuid4().hex
        started = BEGUN

        def begun(key: str, document: Document | None) -> Change | None:
            nonlocal started
            now, found = self._clock.now(), _run(key, document)
            if found is not None and found.until > now + self._lasts + CLOCK_MARGIN_MS:
                found = None  # no process can have written it
            expected = document.version if document else ""
            if found is None or found.attempts < attempts:
                started = BEGUN
                return Change(key=key, body=_encode(DocumentRun(attempts, token, now + self._lasts)), expected=expected)
            if found.until > now:
                started = waiting((found.until - now) / 1000, self._lasts / 1000)
                return None
            started = StartResult(died=found.attempts)
            return Change(key=key, body=None, expected=expected)

        await compare_and_set(self._documents, [key], begun)
        return started

    async def finish(self, identity: Identity) -> None:
        """Remove the document, unless another run has replaced it. Raises CommitFailed, OutcomeUnknown."""
        key = self._key(identity)
        token = self._tokens.get(key)

        def removed(key: str, document: Document | None) -> Change | None:
            run = _run(key, document)
            return Change(key=key, body=None, expected=document.version) if document and run and run.token == token else None

        if token is not None:
            await compare_and_set(self._documents, [key], removed)
            self._tokens.pop(key, None)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the document of a run whose death was counted; see the port. Raises CommitFailed, OutcomeUnknown."""
        key = self._key(identity)
        document = (await self._documents.load([key])).get(key)
        run = _run(key, document)
        if document is not None and (run is None or run.attempts <= attempts):
            await self._documents.save([Change(key=key, body=None, expected=document.version)])

    def _key(self, identity: Identity) -> str:
        return f"start/{claim_key(self._endpoint, identity).hex()}"


def _run(key: str, document: Document | None) -> DocumentRun | None:
    """Return the run in a document. One that cannot be read counts as none, and the next run replaces it."""
    if document is None:
        return None
    return decode_or_report(lambda: _decode_run(document.body), "run", key, "replaced by the next run")
