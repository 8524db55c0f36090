"""Transactions of a user's on any document database: one document each, saved against the version it was loaded with.

Business state, the record and the client's key become final in one write, so all of them are in one document:

    the entity's    where the block asked for one; a second one has no such write
    the key's       where there is a key and no entity
    the attempt's   where there is neither

Whatever the block does, the document of the key is found by the key alone, and *leads to* the one in which the key is
committed, if it is. Every attempt writes it (binds the key) after it has loaded its entity and before it saves that, so of two
attempts on two entities one finds its own write overtaken. Who binds a key that leads elsewhere makes sure of two things first:
that it is not committed there, and, by a save without change, that no attempt which loaded that document before ever will be.

No server's clock judges what is late. The tombstone is a change of the very document that the commit would save, so a commit
that names a version from before it is refused for good. Where the commit names a later one, or means that there must be no
document, the deadline is looked at after that is known and before the save: the tombstone outlives the deadline by far.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.documents.compare_and_set import WriteConflict, compare_and_set
from onceonly.documents.store import ATTEMPT, ENTITY, KEY, DocumentResources, DocumentStore, attempt_name
from onceonly.formats.documents import ClientKey, EntityDocument, decode_entity, is_json
from onceonly.formats.documents import MessageState as KeptRecord
from onceonly.model.entities import Entities
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    OutcomeUnknown,
    TransactionMisused,
)
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, key_of
from onceonly.ports.documents import Change, Document, Version
from onceonly.ports.store import Resources

_DISPATCHED = -1
"""The instant up to which the record of an attempt with a key is kept once it is dispatched. Its key has the outcome."""
_NO_DOCUMENTS = "a transaction does not write documents of the application: send a message to a handler that does"


class DocumentTransactions:
    """The transactions of one endpoint. Answers, emptied records and tombstones are kept for `retention` milliseconds."""

    def __init__(self, store: DocumentStore, *, retention: int) -> None:
        self.store = store
        self.retention = retention

    async def open(self, opening: TransactionAttempt) -> "DocumentTransaction | IdempotencyEntry":
        """Look whether the key is committed; nothing is loaded or held yet. See the port."""
        entry = await self.entry(opening.key) if opening.key else None
        return DocumentTransaction(self, opening) if entry is None else entry

    async def entry(self, key: str, endpoint: str = "") -> IdempotencyEntry | None:
        """Follow the key to where it may be committed; see the ports. It never leads away from where it is."""
        unit = self.unit_of(key, endpoint)
        document = await self.store.look(unit)
        if document.leads_to not in {"", unit}:
            unit, document = document.leads_to, await self.store.look(document.leads_to)
        found = document.keys.get(self.name_of(key, endpoint))
        if found is None:
            return None
        entry, identity = found.entry(unit), Identity(endpoint or self.store.endpoint, found.attempt)
        stored = document.records.get(attempt_name(identity))
        return entry if stored is None or not stored.pending else replace(entry, records=(stored.record(identity, unit),))

    async def record(self, identity: Identity, unit: str) -> Record | None:
        found = (await self.store.look(unit)).records.get(attempt_name(identity))
        return None if found is None else found.record(identity, unit)

    async def bury(self, identity: Identity, unit: str) -> None:
        document, version = await self.load(unit)
        name = attempt_name(identity)
        if name in document.records:
            raise ConflictError("this attempt has already ended")
        now = self.store.clock.now()
        tombstone = KeptRecord("", done=max(now, 1), until=now + self.retention)
        records = {**document.records, name: tombstone}
        await self.save(unit, self.store.trimmed(replace(document, records=records)), version)

    async def bind(self, key: str, unit: str) -> tuple[EntityDocument, Version]:
        """Make a key lead to this document; returns the key's own document. Raises ConflictError, CommitFailed."""
        own = self.unit_of(key)
        found = EntityDocument()
        first = "another attempt with this idempotency key was committed first"

        def bound(_key: str, loaded: Document | None) -> Change:
            nonlocal found
            found = decode_entity(own, loaded.body if loaded else None)
            if self.name_of(key) in found.keys:
                raise ConflictError(first)
            return self.store.change_of(own, replace(found, leads_to=unit), loaded.version if loaded else "")

        async def checked(_changes: Sequence[Change]) -> None:
            if not await self._is_free(key, found.leads_to, wanted=unit, own=own):
                raise ConflictError(first)

        try:
            settled = await compare_and_set(self.store.documents, [own], bound, before=checked)
        except WriteConflict as error:
            raise ConflictError("other attempts with this idempotency key are running") from error
        except OutcomeUnknown as error:
            raise CommitFailed(
                f"nothing was committed: the document of its idempotency key could not be written: {error}"
            ) from error
        return replace(found, leads_to=unit), settled.versions[own]

    async def _is_free(self, key: str, leads_to: str, *, wanted: str, own: str) -> bool:
        """Return whether a key is not committed where it led so far, after making sure that there it never will be."""
        if leads_to in {"", own, wanted}:
            return True  # its own document is what is written now; the wanted one is judged by the commit
        document, version = await self.load(leads_to)
        if self.name_of(key) in document.keys:
            return False
        await self.save(leads_to, document, version)
        return True

    async def load(self, unit: str) -> tuple[EntityDocument, Version]:
        """Load a document; it need not exist. Raises CommitRefused for what is none of ours, CommitFailed, OutcomeUnknown."""
        loaded = (await self.store.documents.load([unit])).get(unit)
        return decode_entity(unit, loaded.body if loaded else None), loaded.version if loaded else ""

    async def save(self, unit: str, document: EntityDocument, version: Version, record: Record | None = None) -> None:
        """Save a document against the version it was loaded with. Raises VersionConflict, CommitFailed, OutcomeUnknown."""
        await self.store.save(self.store.change_of(unit, document, version), () if record is None else (record,))

    def unit_of(self, key: str, endpoint: str = "") -> str:
        """Return the document of a client's key; of this endpoint, unless it is another one's."""
        return f"{KEY}{endpoint or self.store.endpoint}/{self.name_of(key, endpoint)}"

    def name_of(self, key: str, endpoint: str = "") -> str:
        return key_of(endpoint or self.store.endpoint, key).hex()


class DocumentTransaction:
    """One open transaction; nothing is held, and nothing but where its key leads is written before its commit."""

    def __init__(self, transactions: DocumentTransactions, opening: TransactionAttempt) -> None:
        store = transactions.store
        self.unit = transactions.unit_of(opening.key) if opening.key else f"{ATTEMPT}{opening.endpoint}/{opening.attempt}"
        self._entities = Entities({})
        self.resources: Resources = DocumentResources(self._entities, _NO_DOCUMENTS, isolated=False)
        self._transactions, self._opening = transactions, opening
        self._loaded: tuple[EntityDocument, Version] | None = None
        self._since = store.clock.now()
        self._is_over = False

    async def load(self, unit: str) -> None:
        """Load the one entity that it can have; see the port."""
        key = ENTITY + unit
        if self._loaded is not None and key != self.unit:
            raise TransactionMisused(
                f"a transaction in a document store covers one entity, here {self.unit.removeprefix(ENTITY)!r}: to change "
                f"{unit!r} as well, send a message from here to a handler that works on it"
            )
        if self._loaded is None:
            self._transactions.store.check_key(key)
            self._loaded = await self._transactions.load(key)
            self.unit = key
            self._entities.add(unit, self._loaded[0].state)

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Bind the key, and save the one document; see the port."""
        if self._is_over:
            raise CommitFailed("this transaction has already been committed or abandoned")
        self._is_over = True
        opening, transactions = self._opening, self._transactions
        self._check_time()
        own = None
        if opening.key:
            own = await transactions.bind(opening.key, self.unit)
        elif self._loaded is None and record is None:
            return  # nothing happened in it
        document, version = self._loaded or own or (EntityDocument(), "")  # an attempt's own: it must not exist
        if opening.key and transactions.name_of(opening.key) in document.keys:
            raise ConflictError("another attempt with this idempotency key was committed first")
        if attempt_name(opening.identity) in document.records:
            raise ConflictError("it was cancelled, because its control messages ended before it committed")
        after = transactions.store.trimmed(self._changed(document, record, answer))
        if after != document:
            change = transactions.store.change_of(self.unit, after, version)
            transactions.store.check_size(change, after, {attempt_name(opening.identity)})
            self._check_time()  # now that all is loaded: what ends this attempt later changes the document
            await transactions.save(self.unit, after, version, record)

    def abandon(self) -> None:
        self._is_over = True

    def _check_time(self) -> None:
        if self._transactions.store.clock.now() - self._since > self._opening.max_commit:
            raise CommitFailed(f"not committed within {self._opening.max_commit} ms of its start")

    def _changed(self, document: EntityDocument, record: Record | None, answer: bytes | None) -> EntityDocument:
        opening, transactions = self._opening, self._transactions
        until = transactions.store.clock.now() + transactions.retention
        records, keys = dict(document.records), dict(document.keys)
        if record is not None:
            since, kept = transactions.store.clock.now(), _DISPATCHED if opening.key else until
            pending = KeptRecord.of(b"", record, endpoint=opening.endpoint, since=since, until=kept)
            records[attempt_name(opening.identity)] = pending
        if opening.key:
            entry = IdempotencyEntry(opening.attempt, opening.fingerprint, answer)
            keys[transactions.name_of(opening.key)] = ClientKey.of(entry, until=until)
        state = next(iter(self._entities.changes().values()), document.state)
        if state is not document.state and state is not None and not is_json(state):
            raise CommitRefused(f"the state of {self.unit!r} is not JSON, so it cannot be stored")
        return replace(document, state=state, records=records, keys=keys)
