"""The store on any document database: each entity's document holds its records (protocols, sections 2, 4 and 5).

A unit is one document. `begin` loads it, `commit` saves it against the version it was loaded with: state, records and register
rows become final in that one write, or another worker was faster. Records are found again by the messages that come again, and
by a relay in the list of pending documents, where the service keeps one by the same write (`documents.pending`). Nothing here
is ever searched for.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from onceonly.documents.application import ApplicationDocuments
from onceonly.documents.compare_and_set import NO_GUESSES, Before, compare_and_set
from onceonly.documents.recent import RecentDocuments
from onceonly.documents.retention import DocumentRetention, FixedRetention, undecidable_among
from onceonly.documents.size import refusal, room
from onceonly.formats.documents import EntityDocument, MessageState, decode_entity, encode_entity, is_json
from onceonly.formats.partitions import split_unit
from onceonly.model.artifact import Reservation
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, PermanentFailure, VersionConflict
from onceonly.model.identity import Identity, claim_key, instant_in
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.retention import CLOCK_MARGIN_MS, FOREVER_MS, Retention, always, expiry, in_milliseconds
from onceonly.model.ring import Undecidable
from onceonly.ports.documents import Change, Document, Documents, DocumentWrite, SavesTogether, Version
from onceonly.ports.environment import Clock
from onceonly.ports.operators import ClaimState, Knowledge
from onceonly.ports.store import BeginResult, Resources, SyncThread

Edit = Callable[[str, EntityDocument], EntityDocument]
"""A rule that makes one document of another; giving the same one back changes nothing."""

ENTITY, MESSAGE, BUCKET = "entity/", "message/", "bucket/"
KEY, ATTEMPT = "key/", "attempt/"
"""Documents of transactions: of a client's key, and of an attempt without a key and without an entity."""
_EARLIER_HISTORY_MS = 30 * 86_400_000
"""Milliseconds for which history is kept that was left by an earlier setting."""
_KEY_BINDING_MS = 30 * 86_400_000
"""Milliseconds for which it is kept where a client's key leads: longer than any answer."""


class DocumentStore:
    """The store of one endpoint, on any Documents adapter.

    With `history` finished records stay in their document, emptied, for that long after they were finished; without it an
    admission elsewhere knows what is done, and nothing stays. A message without an entity has a document of its own, or,
    without history, shares one of 256.

    A message that is not known and was sent before the horizon may have been handled and forgotten, so it is undecidable.
    """

    def __init__(
        self,
        documents: Documents,
        endpoint: str,
        *,
        clock: Clock,
        history: timedelta | None,
        retention: DocumentRetention | None = None,
        not_together: str = "",
    ) -> None:
        """Use these documents; several endpoints may, if no entity belongs to two of them.

        `retention` says for how long history is kept, where an operator can change it.
        `not_together` is why handlers cannot write documents of the application, empty if they can.
        """
        self.documents = documents
        self.together = documents if isinstance(documents, SavesTogether) and not not_together else None
        self.not_together = not_together or "this store does not write several documents at once"
        self.endpoint = endpoint
        self.clock = clock
        self.history = None if history is None else in_milliseconds(history)
        self._retention = None if self.history is None else retention or FixedRetention(self.history)
        self.recent = RecentDocuments()
        """Documents with records that this process is likely to forget next. `forget` saves by them without a load."""

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> "DocumentUnit":
        """Load the one document of these messages; see the port.

        Raises PermanentFailure for a document that is none of ours.
        """
        (key,) = {self.unit_key(message) for message in messages}
        self.check_key(key)
        loaded = (await self.documents.load([key])).get(key)
        # Only now the retention, and then the clock: what another process has deleted so far is behind the horizon they give.
        retention = None if self._retention is None else await self._retention.read()
        return DocumentUnit(self, key, loaded, messages, retention=retention, isolated=isolated)

    def keeps(self, record: Record) -> bool:
        """Return whether its record is to be emptied, or, where no history is kept, to be removed."""
        return self.history is None or record.is_pending

    async def forget(self, records: Sequence[Record]) -> None:
        """Empty these records, or remove them where no history is kept; documents that others change meanwhile, again.

        Costs one call if this process has read or written the documents last, and no other has changed them since.
        """
        by_unit: dict[str, dict[str, int]] = {}
        for record in records:  # a message's, or a transaction's of an endpoint that has others maintain its own
            names = (self.name_of(record.identity), attempt_name(record.identity))
            by_unit.setdefault(record.unit, {}).update(dict.fromkeys(names, instant_in(record.identity) or 0))

        def forgotten(key: str, document: EntityDocument) -> EntityDocument:
            return self._without(document, by_unit[key])

        await self.edit(list(by_unit), forgotten, guesses=self.recent.take(by_unit))

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Return a record, or else save its document, so that a save by an earlier load is refused; see the port.

        A transaction may load the document of its key or its attempt at the last moment, so there a tombstone is saved.
        """
        self.check_key(unit)
        loaded = (await self.documents.load([unit])).get(unit)
        document = decode_entity(unit, loaded.body if loaded else None)
        kept = document.records.get(self.name_of(identity))
        if kept is not None:
            return kept.record(identity, unit)
        if unit.startswith((KEY, ATTEMPT)):
            now = self.clock.now()
            tombstone = MessageState("", done=max(now, 1), until=now + _KEY_BINDING_MS)
            document = replace(document, records={**document.records, attempt_name(identity): tombstone})
        change = self.change_of(unit, document, loaded.version if loaded else "")
        self.recent.drop(unit)
        if (await self.documents.save([change]))[0] is None:
            raise ConflictError(f"another worker changed {unit!r} first")
        return None

    async def is_too_old(self, message: Message) -> bool:
        """Return whether a message that is not known may have been forgotten. Raises CommitFailed, OutcomeUnknown."""
        retention = always(FOREVER_MS) if self._retention is None else await self._retention.read()
        return retention.undecidable_reason(message.instant, self.clock.now()) is Undecidable.TOO_OLD

    def unit_key(self, message: Message) -> str:
        """Return the key of the document: its entity's, else one for the message or for some of them."""
        partition, entity = split_unit(message.unit)
        return ENTITY + message.unit if entity else self.own_document(message.identity, partition)

    def own_document(self, identity: Identity, partition: str = "") -> str:
        """Return the key of the document of a message without an entity, in a partition if it has one."""
        name = self.name_of(identity)
        own = f"{partition}{self.endpoint}/"
        return BUCKET + own + name[:2] if self.history is None else MESSAGE + own + name

    async def edit(
        self,
        keys: Sequence[str],
        change: Edit,
        before: Before | None = None,
        *,
        guesses: Mapping[str, Document | None] = NO_GUESSES,
    ) -> Mapping[str, Document]:
        """Change documents by a rule that depends on no handler, as often as others are faster.

        Raises CommitFailed, OutcomeUnknown.

        Each time `before` is called with the writes that come next; their `expected` is what the rule has seen. Returns the
        documents as they were read last, or as they were guessed.
        """
        for key in keys:
            self.check_key(key)

        def edited(key: str, loaded: Document | None) -> Change | None:
            return self._edited(key, loaded, change)

        settled = await compare_and_set(self.documents, keys, edited, guesses=guesses, before=before)
        for key in settled.versions:
            self.recent.drop(key)
        return {key: document for key, document in settled.seen.items() if document}

    async def save(self, change: Change, records: Sequence[Record], writes: Sequence[DocumentWrite] = ()) -> None:
        """Save the document of these records, together with these documents of the application.

        Raises VersionConflict, CommitFailed, OutcomeUnknown.
        """
        self.recent.drop(change.key)
        version = await self._write(change, writes)
        if version is None:
            raise VersionConflict(f"another worker changed {change.key!r} first")
        if any(self.keeps(record) for record in records):
            self.recent.add(change.key, Document(change.body or b"", version))

    async def _write(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        if writes and self.together is not None:
            return await self.together.save_together(change, writes)
        return (await self.documents.save([change]))[0]

    async def look(self, key: str) -> EntityDocument:
        """Read one document as it is now."""
        loaded = (await self.documents.load([key])).get(key)
        document = decode_entity(key, loaded.body if loaded else None)
        if loaded is not None and any(each.pending for each in document.records.values()):
            self.recent.add(key, loaded)
        return document

    def change_of(self, key: str, document: EntityDocument, version: Version) -> Change:
        """Return the write of a document. One that is empty, or is not an entity's and is done, expires after its history."""
        expires = 0
        is_over = not document.register and not any(each.pending for each in document.records.values())
        if is_over and key.startswith(MESSAGE) and self.history is not None:
            latest = max((each.done for each in document.records.values()), default=0)  # that of a message from the future
            now = self.clock.now()
            expires = expiry(max(now, latest), self.kept_at_least(now))
        elif document == EntityDocument() and key.startswith(ENTITY):  # left by a fence
            expires = self.clock.now() + _KEY_BINDING_MS + CLOCK_MARGIN_MS
        elif is_over and key.startswith((KEY, ATTEMPT)):
            until = (*(each.until for each in document.records.values()), *(each.until for each in document.keys.values()))
            expires = CLOCK_MARGIN_MS + max(self.clock.now() + (_KEY_BINDING_MS if document.leads_to else 0), *until, 0)
        unsent = [each for each in document.records.values() if each.pending and each.origin]
        return Change(
            key=key,
            body=encode_entity(document),
            expected=version,
            expires=expires,
            pending_for=tuple(sorted({each.origin[0] for each in unsent})),
            pending_since=min((each.since for each in unsent), default=0),
        )

    def trimmed(self, document: EntityDocument) -> EntityDocument:
        """Leave out what was finished longer ago than history goes back, and what transactions left up to some instant."""
        now = self.clock.now() - CLOCK_MARGIN_MS
        oldest = now - self._trimmed_after()
        records = {
            name: each
            for name, each in document.records.items()
            if not each.done or (each.until > now if each.until else each.done >= oldest)
        }
        return replace(document, records=records, keys={name: each for name, each in document.keys.items() if each.until > now})

    def kept_at_least(self, now: int) -> int:
        """Return for how many milliseconds a message is known that is finished now, by what this process has read."""
        retention = None if self._retention is None else self._retention.last()
        return (self.history or 0) if retention is None else retention.kept(now)

    def _trimmed_after(self) -> int:
        """Return the age in milliseconds of what may be left out. Nothing is, where the retention is not known for sure."""
        if self._retention is None:
            return _EARLIER_HISTORY_MS
        retention = self._retention.trusted()
        return FOREVER_MS if retention is None else retention.kept(self.clock.now())

    def check_size(self, change: Change, document: EntityDocument, own: Collection[str]) -> None:
        """Check that a commit of these records leaves room.

        Raises PermanentFailure, or CommitRefused while others take it up.
        """
        limits = self.documents.limits
        if len(change.body or b"") > limits.body - room(limits):
            raise refusal(change.key, document, own, limits, keeps_history=self.history is not None)

    def check_key(self, key: str) -> None:
        """Check that a document can have this key. Raises CommitRefused."""
        limits = self.documents.limits
        try:
            size = len(key.encode())
        except UnicodeEncodeError as error:
            raise PermanentFailure(f"entity key {key[:60]!r} is not valid UTF-8: it contains an unpaired surrogate") from error
        if size > limits.key:
            raise PermanentFailure(
                f"entity key {key[:60]!r}... is too long; the limit of {limits.service} is {limits.key} bytes. Shorten it"
            )

    def _edited(self, key: str, loaded: Document | None, change: Edit) -> Change | None:
        before = decode_entity(key, loaded.body if loaded else None)
        after = change(key, before)
        return None if after == before else self.change_of(key, after, loaded.version if loaded else "")

    def _without(self, document: EntityDocument, names: Mapping[str, int]) -> EntityDocument:
        records, now = dict(document.records), self.clock.now()
        for name in names.keys() & records.keys():
            before = records[name]
            if before.until <= now if before.until else self.history is None:
                del records[name]
            elif before.pending:
                records[name] = MessageState(before.body, done=max(now, names[name]), until=before.until)
        return replace(document, records=records)

    def name_of(self, identity: Identity) -> str:
        return claim_key(self.endpoint, identity).hex()


def attempt_name(identity: Identity) -> str:
    """Return the name of the record of an attempt at a transaction, whichever endpoint looks for it."""
    return claim_key(identity.source, identity).hex()


class DocumentUnit:
    """A unit on one loaded document; nothing is held until it is saved."""

    def __init__(
        self,
        store: DocumentStore,
        key: str,
        loaded: Document | None,
        messages: Sequence[Message],
        *,
        retention: Retention | None,
        isolated: bool,
    ) -> None:
        """Find in the document which messages are new. `retention` says which of the unknown ones are too old for that."""
        self.key = key
        self._store = store
        self._version = loaded.version if loaded else ""
        self._document = document = decode_entity(key, loaded.body if loaded else None)
        known = {m.identity: kept for m in messages if (kept := document.records.get(store.name_of(m.identity)))}
        same = [m for m in messages if m.identity in known and known[m.identity].body == m.fingerprint.hex()]
        records = {m.identity: known[m.identity].record(m.identity, key) for m in same}
        unknown = tuple(m for m in messages if m.identity not in known)
        undecidable = () if retention is None else undecidable_among(unknown, retention, store.clock.now())
        refused = {each.message.identity for each in undecidable}
        self.found = BeginResult(
            new=tuple(m for m in unknown if m.identity not in refused),
            pending=tuple(records[m.identity] for m in same if records[m.identity].is_pending),
            done=tuple(m for m in same if not records[m.identity].is_pending),
            mismatched=tuple(m for m in messages if m.identity in known and m not in same),
            undecidable=undecidable,
        )
        if loaded is not None and any(store.keeps(record) for record in records.values()):
            store.recent.add(key, loaded)
        units = {m.unit for m in messages if m.unit}
        self._entities = Entities(dict.fromkeys(units, document.state))
        self._application = None if store.together is None else ApplicationDocuments(store.together, key)
        beside = self._application or store.not_together
        self.resources: Resources = DocumentResources(self._entities, beside, isolated=isolated)
        self._is_over = False

    async def commit(self, records: Sequence[Record]) -> None:
        """Save the document as it was loaded, changed; see the port. Raises CommitRefused when it cannot be held."""
        if self._is_over:
            raise CommitFailed("this unit has already been committed or abandoned")
        self._is_over = True
        document = self._store.trimmed(self._changed(records))
        change = self._store.change_of(self.key, document, self._version)
        self._store.check_size(change, document, {self._store.name_of(record.identity) for record in records})
        await self._store.save(change, records, () if self._application is None else self._application.writes())

    def abandon(self) -> None:
        self._is_over = True

    def _changed(self, records: Sequence[Record]) -> EntityDocument:
        bodies = {message.identity: message.fingerprint for message in self.found.new}
        kept = {
            self._store.name_of(record.identity): self._message_state(bodies[record.identity], record) for record in records
        }
        register = dict(self._document.register)
        for record in records:
            row = register.pop(record.attempt, None) if record.attempt else None
            if record.attempt and (row is None or row.cancelled):
                raise ConflictError(
                    f"the attempt to handle message {record.identity.id!r} was cancelled, and its artifacts were deleted"
                )
        state = next(iter(self._entities.changes().values()), self._document.state)
        if state is not self._document.state and state is not None and not is_json(state):
            raise CommitRefused(f"the state of {self.key!r} is not JSON, so it cannot be stored")
        return replace(self._document, state=state, records={**self._document.records, **kept}, register=register)

    def _message_state(self, fingerprint: bytes, record: Record) -> MessageState:
        if self._store.history is not None and not record.is_pending:
            # a message from the future is known until its own instant is behind the horizon
            return MessageState(fingerprint.hex(), done=max(self._store.clock.now(), instant_in(record.identity) or 0))
        return MessageState.of(fingerprint, record, endpoint=self._store.endpoint, since=self._store.clock.now())


class DocumentResources:
    """The resources of one unit: the entities it loaded, and documents of the application, or why there are none."""

    def __init__(self, entities: Entities, application: ApplicationDocuments | str, *, isolated: bool) -> None:
        self._entities = entities
        self._application = application
        self._isolated = isolated

    def get(self, kind: type) -> object:
        if kind is Entities:
            return self._entities
        if kind is ApplicationDocuments:
            if isinstance(self._application, ApplicationDocuments):
                return self._application
            raise LookupError(self._application)
        raise LookupError(f"a document store provides entities, not {kind.__name__}")

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose one handler's work; in an isolated unit what it wrote is undone when it raises."""
        return self._attempt()

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        parts = (self._entities, *((self._application,) if isinstance(self._application, ApplicationDocuments) else ()))
        marks = [part.mark() for part in parts]
        try:
            yield
        except BaseException:
            if self._isolated:
                for part, mark in zip(parts, marks, strict=True):
                    part.undo(mark)
            raise

    def is_busy(self) -> bool:
        """Return that it never is: a document is loaded before the handler runs."""
        return False

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Do nothing: what handlers write is taken as they write it."""
        return None

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run a synchronous handler, in `thread` if there is one."""
        return function(self.get) if thread is None else await thread.run(partial(function, self.get))


class DocumentLookup:
    """Looks up messages of one endpoint. Implements the Lookup port.

    A message that works on an entity is in the document of that entity. Without the name of the entity it is not found, and
    the answer is UNDETERMINED.
    """

    def __init__(self, store: DocumentStore, *, entities: bool = True) -> None:
        self._store = store
        self._entities = entities

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        return tuple([await self._know(message) for message in messages])

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        """List none: they are in documents of attempts, which cannot be searched."""
        return ()

    async def _know(self, message: Message) -> Knowledge:
        key = self._store.unit_key(message)
        known = (await self._store.look(key)).records.get(self._store.name_of(message.identity))
        if known is None:
            return Knowledge(claim=await self._absent(message))
        record = known.record(message.identity, key)
        return Knowledge(
            claim=ClaimState.HANDLED,
            fingerprint=bytes.fromhex(known.body),
            record=record if record.is_pending else None,
        )

    async def _absent(self, message: Message) -> ClaimState:
        """Return what it means that a message is in no document."""
        if self._store.history is None:
            return ClaimState.UNKNOWN
        if await self._store.is_too_old(message):
            return ClaimState.TOO_OLD
        is_whole = bool(message.unit) or not self._entities
        return ClaimState.NO_CLAIM if is_whole else ClaimState.UNDETERMINED
