"""Transactions on documents, each broken in one way."""

import asyncio
from typing import Any, ClassVar

from msgspec.structs import replace

from onceonly.documents.store import DocumentStore, attempt_name
from onceonly.documents.transactions import DocumentTransaction, DocumentTransactions
from onceonly.formats.documents import ClientKey, EntityDocument
from onceonly.formats.documents import MessageState as KeptRecord
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitRefused, ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.documents import Version
from onceonly_conformance.suite import ENDPOINT


class Sound(DocumentTransactions):
    """Keeps every promise; lets the broken ones spoil what it opens."""

    spoils: type[DocumentTransaction] = DocumentTransaction

    async def open(self, opening: TransactionAttempt) -> DocumentTransaction | IdempotencyEntry:
        """Open one of the class that spoils."""
        entry = await self.entry(opening.key) if opening.key else None
        return self.spoils(self, opening) if entry is None else entry


def spoiling(spoils: type[DocumentTransaction]) -> type[Sound]:
    """Return transactions whose open ones are of this class."""
    return type(spoils.__name__, (Sound,), {"spoils": spoils})


class WithoutRecord(DocumentTransaction):
    """Loses the messages."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit without them."""
        await super().commit(None, answer)


class WithoutData(DocumentTransaction):
    """Loses the business data."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit what was there before."""
        if self._loaded is not None:
            self._entities.undo({})
        await super().commit(record, answer)


class WithoutAnswer(DocumentTransaction):
    """Loses the answer."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit without it."""
        await super().commit(record, None)


class EmptyAnswer(DocumentTransaction):
    """Takes no answer for an empty one."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit some answer."""
        await super().commit(record, answer or b"")


class ShortAnswer(DocumentTransaction):
    """Has room for a few bytes."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Cut the answer."""
        await super().commit(record, None if answer is None else answer[:1000])


class Eager(DocumentTransaction):
    """Saves an entity when it is looked at, and commits its key."""

    async def load(self, unit: str) -> None:
        """Load, and show at once what will come."""
        await super().load(unit)
        assert self._loaded is not None
        document, version = self._loaded
        if document.state is None:
            shown = replace(document, state=b'{"a1": "not yet"}')
            await self._transactions.save(self.unit, shown, version)
            self._loaded = await self._transactions.load(self.unit)


class Stubborn(DocumentTransaction):
    """Commits also when it is over, and what was given up."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Forget that it is over."""
        self._is_over = False
        await super().commit(record, answer)


class Abandoning(DocumentTransaction):
    """Commits when it is given up, as far as it can without waiting: at the next commit of anybody."""

    left: "list[DocumentTransaction]" = []  # noqa: RUF012 - shared on purpose

    def abandon(self) -> None:
        """Leave it to the next one."""
        if not self._is_over:
            self.left.append(self)

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit those that were given up first."""
        while self.left:
            await DocumentTransaction.commit(self.left.pop(), None, b"given up")
        await super().commit(record, answer)


class Timeless(DocumentTransaction):
    """Knows no deadline."""

    def _check_time(self) -> None:
        """Look at no clock."""


class Hasty(DocumentTransaction):
    """Is late at once."""

    def _check_time(self) -> None:
        """Refuse what has taken any time."""
        if self._transactions.store.clock.now() != self._since:
            self._since = -(10**9)
        super()._check_time()


class NeedsData(DocumentTransaction):
    """Commits only what changes an entity."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Refuse anything else."""
        if self._loaded is None:
            raise CommitRefused("nothing was changed")
        await super().commit(record, answer)


class Overwriting(DocumentTransaction):
    """Names the newest version when it saves, and so overwrites what came meanwhile."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Try until nobody else is faster."""
        while True:
            try:
                await super().commit(record, answer)
            except ConflictError:
                assert self._loaded is not None
                _, version = await self._transactions.load(self.unit)
                self._loaded, self._is_over = (self._loaded[0], version), False
            else:
                return


class Reloading(DocumentTransaction):
    """Loads an entity again whenever it is asked for, and never refuses a second one."""

    async def load(self, unit: str) -> None:
        """Begin anew."""
        self._loaded = None
        fresh = Entities({})
        self._entities._loaded, self._entities._changed = fresh._loaded, fresh._changed
        await super().load(unit)


class Touching(DocumentTransaction):
    """Deletes what it only looked at."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Change what was not changed."""
        if self._loaded is not None and not self._entities.changes():
            self._entities.write(self.unit.removeprefix("entity/"), None)
        await super().commit(record, answer)


class Undeleting(DocumentTransaction):
    """Keeps what is deleted."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Leave deletions out."""
        if None in self._entities.changes().values():
            self._entities.undo({})
        await super().commit(record, answer)


class Cutting(DocumentTransaction):
    """Cuts what is too long for a key."""

    async def load(self, unit: str) -> None:
        """Load another entity, in silence."""
        await super().load(unit[:200])


class Unburied(DocumentTransaction):
    """Does not look for its tombstone, and takes the newest version."""

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Take the tombstone away."""
        document, version = await self._transactions.load(self.unit)
        name = attempt_name(self._opening.identity)
        left = {other: each for other, each in document.records.items() if other != name}
        if name in document.records:
            await self._transactions.save(self.unit, replace(document, records=left), version)
            if self._loaded is not None:
                self._loaded = await self._transactions.load(self.unit)
            elif not self._opening.key:
                return
        await super().commit(record, answer)


class Forgotten(Sound):
    """Knows no key."""

    async def entry(self, key: str, endpoint: str = "") -> IdempotencyEntry | None:
        """Find nothing."""
        return None


class Unfinished(Sound):
    """Returns a committed key without the record that is still to be dispatched."""

    async def entry(self, key: str, endpoint: str = "") -> IdempotencyEntry | None:
        """Leave it to somebody else."""
        found = await super().entry(key, endpoint)
        return None if found is None else replace(found, records=())


class Patient(Sound):
    """Waits for who has a key, whatever was asked."""

    async def open(self, opening: TransactionAttempt) -> DocumentTransaction | IdempotencyEntry:
        """Wait for what never comes."""
        if opening.wait is not None:
            await asyncio.Event().wait()
        return await super().open(opening)


class Grasping(Sound):
    """Has a key for ever if it is cancelled while it opens."""

    grasped: ClassVar[set[str]] = set()

    async def open(self, opening: TransactionAttempt) -> DocumentTransaction | IdempotencyEntry:
        """Take a moment."""
        if opening.key in self.grasped:
            raise ConflictError("another attempt has this key")
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.grasped.add(opening.key)
            raise
        return await super().open(opening)


class Latest(Sound):
    """Gives another attempt's answer: that of who asks."""

    async def open(self, opening: TransactionAttempt) -> DocumentTransaction | IdempotencyEntry:
        """Answer in the name of the one who asks."""
        found = await super().open(opening)
        return replace(found, attempt=opening.attempt) if isinstance(found, IdempotencyEntry) else found


class Confusing(Sound):
    """Takes keys for equal whose letters are, whoever's they are."""

    def name_of(self, key: str, endpoint: str = "") -> str:
        """Fold them."""
        return super().name_of(key.strip().casefold(), endpoint)


class Shared(Sound):
    """Has one name space for the keys of all endpoints."""

    def name_of(self, key: str, endpoint: str = "") -> str:
        """Say nothing of the endpoint."""
        return super().name_of(key, "everybody")

    def unit_of(self, key: str, endpoint: str = "") -> str:
        """Say nothing of the endpoint."""
        return super().unit_of(key, "everybody")


class Reserving(Sound):
    """Takes the key of whoever looks for it."""

    async def entry(self, key: str, endpoint: str = "") -> IdempotencyEntry | None:
        """Look, and leave a trace."""
        found = await super().entry(key, endpoint)
        if found is None and not endpoint:
            unit = self.unit_of(key)
            document, version = await self.load(unit)
            name = attempt_name(Identity(ENDPOINT, "a1"))
            await self.save(unit, replace(document, leads_to="entity/x", records={name: KeptRecord("", done=1)}), version)
            document, version = await self.load("entity/everything")
            trace = replace(document, records={**document.records, name: KeptRecord("", done=1)})
            await self.save("entity/everything", trace, version)
        return found


class Unbound(Sound):
    """Has no key lead anywhere: it is found only in its own document."""

    async def bind(self, key: str, unit: str) -> tuple[EntityDocument, Version]:
        """Write nothing."""
        return await self.load(self.unit_of(key))


class Deaf(Sound):
    """Finds no record."""

    async def record(self, identity: Identity, unit: str) -> Record | None:
        """Find nothing."""
        return None


class Own(Sound):
    """Finds keys of its own endpoint only, whoever's is asked for."""

    async def entry(self, key: str, endpoint: str = "") -> IdempotencyEntry | None:
        """Ask for its own."""
        return await super().entry(key)


class Gravedigger(Sound):
    """Buries whatever there is."""

    async def bury(self, identity: Identity, unit: str) -> None:
        """Write over it."""
        document, version = await self.load(unit)
        records = {**document.records, attempt_name(identity): KeptRecord("", done=1, until=1 << 50)}
        await self.save(unit, replace(document, records=records), version)


class Undertaker(Sound):
    """Buries the client's key with the attempt."""

    async def bury(self, identity: Identity, unit: str) -> None:
        """Have every attempt end here."""
        await super().bury(identity, unit)
        for key in ("kTrue", "kFalse"):
            document, version = await self.load(self.unit_of(key))
            buried = {**document.keys, self.name_of(key): _taken(identity)}
            await self.save(self.unit_of(key), replace(document, keys=buried, leads_to=self.unit_of(key)), version)


class Impatient(Sound):
    """Keeps a tombstone for no time."""

    async def bury(self, identity: Identity, unit: str) -> None:
        """Write one that the next save leaves out."""
        document, version = await self.load(unit)
        if attempt_name(identity) in document.records:
            raise ConflictError("it has ended")
        records = {**document.records, attempt_name(identity): KeptRecord("", done=1, until=1)}
        await self.save(unit, replace(document, records=records), version)


class Silent(Sound):
    """Buries nothing, and says that it did."""

    async def bury(self, identity: Identity, unit: str) -> None:
        """Do nothing."""


class Careless(DocumentStore):
    """Forgets nothing."""

    async def forget(self, records: Any) -> None:
        """Leave all as it is."""


class Oblivious(DocumentStore):
    """Leaves nothing of what is forgotten, not even that it is over."""

    async def forget(self, records: Any) -> None:
        """Remove the records."""
        names = {attempt_name(record.identity) for record in records}

        def removed(_key: str, document: EntityDocument) -> EntityDocument:
            return replace(document, records={n: each for n, each in document.records.items() if n not in names})

        await self.edit([record.unit for record in records], removed)


def _taken(identity: Identity) -> ClientKey:
    return ClientKey(identity.id, "", 1 << 50)


class Unfenced(DocumentStore):
    """Looks for a record, and stops nobody."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Look."""
        found = (await self.look(unit)).records.get(attempt_name(identity))
        return found and found.record(identity, unit)


class Versioned(DocumentStore):
    """Fences every document by a new version, also one that is not loaded before the commit."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Save the document unchanged."""
        loaded = (await self.documents.load([unit])).get(unit)
        document = await self.look(unit)
        if found := document.records.get(attempt_name(identity)):
            return found.record(identity, unit)
        await self.documents.save([self.change_of(unit, document, loaded.version if loaded else "")])
        return None


class Haunted(DocumentStore):
    """Takes what an earlier fence left for a record."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence, and look for a document."""
        there = await self.documents.load([unit])
        found = await super().fence(unit, identity, message)
        return Record(identity, unit=unit) if there and found is None else found


class Blindfolded(DocumentStore):
    """Fences, and finds nothing."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence."""
        await super().fence(unit, identity, message)
        return None
