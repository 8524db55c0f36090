"""The register rows of a document store: in the entity's document, and listed apart for the sweeper (protocols, section 6)."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict, replace

from onceonly.documents.compare_and_set import listed
from onceonly.documents.store import DocumentStore
from onceonly.formats.documents import EntityDocument, StoredReservation, decode_entity
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError, PermanentFailure
from onceonly.model.identity import Identity
from onceonly.ports.documents import Change, Document, Version

LISTED = "register/"

_encode = msgspec.json.Encoder().encode


class Listing(Reservation, frozen=True, kw_only=True):
    """A row as it is listed before it is written into its document.

    `seen` is the version of the document that the write expects. Versions never repeat, so while the document has another
    one, and not the row, the row will never be there.
    """

    seen: Version

    def row(self) -> Reservation:
        return Reservation(identity=self.identity, unit=self.unit, attempt=self.attempt, at=self.at, cancelled=self.cancelled)


_decode = msgspec.json.Decoder(Listing).decode


class DocumentRegister:
    """Register rows, each in the document that its attempt wants to save: so that one write saves it and takes the row away.

    A list of all rows lies next to the documents, which cannot be searched. An entry there permits nothing.
    """

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def open(self, rows: Sequence[Reservation]) -> None:
        """List the rows, then write them; see the port.

        So the sweeper finds every row there is, whenever the process dies. Where it finds a listing and no row, it makes sure
        that the row is not about to be written: `_cannot_be_written`.

        A message that is known already gets no row: it is not committed again, and could not be without one.
        """
        if not rows:
            return
        names = {row.attempt: self._store.name_of(row.identity) for row in rows}
        wanted: dict[str, Reservation] = {}
        listed: dict[str, Version] = {}

        def opened(key: str, document: EntityDocument) -> EntityDocument:
            mine = [row for row in rows if row.unit == key and names[row.attempt] not in document.records]
            wanted.update({row.attempt: row for row in mine})
            added = {row.attempt: StoredReservation(names[row.attempt], row.at) for row in mine}
            return replace(document, register={**document.register, **added})

        async def listing(changes: Sequence[Change]) -> None:
            seen = {change.key: change.expected for change in changes}
            some = [row for row in wanted.values() if row.unit in seen]
            entries = [self._listing(row, seen[row.unit], listed.get(row.attempt, "")) for row in some]
            for row, version in zip(some, await self._store.documents.save(entries), strict=True):
                if version is not None:
                    listed[row.attempt] = version
                elif row.attempt in names:
                    raise ConflictError("another process considered this attempt dead and cancelled it")
            # A crash here leaves a listing without a row: the sweeper fences the document and removes the listing.

        await self._store.edit(list(dict.fromkeys(row.unit for row in rows)), opened, listing)

    async def cancel(self, row: Reservation) -> bool:
        """Cancel a row; see the port. One that is gone, and will not be written, is no longer listed either.

        The listing is read first: an attempt that lists itself again changes it, and the removal is refused.
        """
        listing, found = await self._entry(row.attempt), False

        def cancelled(_key: str, document: EntityDocument) -> EntityDocument:
            nonlocal found
            mine = document.register.get(row.attempt)
            found = mine is not None
            if mine is None:
                return document
            return replace(document, register={**document.register, row.attempt: replace(mine, cancelled=True)})

        read = await self._store.edit([row.unit], cancelled)
        if not found and listing is not None and await self._cannot_be_written(listing, row, read.get(row.unit)):
            await self._unlist(row.attempt, listing)
        return found

    async def remove(self, row: Reservation) -> None:
        def removed(_key: str, document: EntityDocument) -> EntityDocument:
            left = {attempt: each for attempt, each in document.register.items() if attempt != row.attempt}
            return replace(document, register=left)

        await self._store.edit([row.unit], removed)
        await self._unlist(row.attempt, await self._entry(row.attempt))

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        """Return the rows of these messages in one document; see the port."""
        document = await self._store.look(unit)
        named = {self._store.name_of(identity): identity for identity in identities}
        return tuple(
            Reservation(identity=named[each.message], unit=unit, attempt=attempt, at=each.at, cancelled=each.cancelled)
            for attempt, each in document.register.items()
            if each.message in named
        )

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """List rows by the list next to the documents; see the port."""

        def read(key: str, document: Document) -> Reservation | None:
            row = _read(key, document)
            return row.row() if row.at < older_than else None

        return await listed(self._store.documents, self._listed(""), read, limit)

    def _listed(self, attempt: str) -> str:
        return f"{LISTED}{self._store.endpoint}/{attempt}"

    def _listing(self, row: Reservation, seen: Version, expected: Version) -> Change:
        entry = Listing(**asdict(row), seen=seen)
        return Change(key=self._listed(row.attempt), body=_encode(entry), expected=expected)

    async def _cannot_be_written(self, listing: Document, row: Reservation, loaded: Document | None) -> bool:
        """Check that a listed row which is not in its document is not about to be written, or make its write come too late."""
        version = loaded.version if loaded else ""
        if _read(self._listed(row.attempt), listing).seen != version:
            return True
        document = decode_entity(row.unit, loaded.body if loaded else None)
        return (await self._store.documents.save([self._store.change_of(row.unit, document, version)]))[0] is not None

    async def _entry(self, attempt: str) -> Document | None:
        key = self._listed(attempt)
        return (await self._store.documents.load([key])).get(key)

    async def _unlist(self, attempt: str, listing: Document | None) -> None:
        if listing is not None:
            change = Change(key=self._listed(attempt), body=None, expected=listing.version)
            await self._store.documents.save([change])


def _read(key: str, document: Document) -> Listing:
    try:
        return _decode(document.body)
    except UNDECODABLE as error:
        raise PermanentFailure(
            f"document {key!r} is not a readable reservation ({error}): upgrade onceonly in this process, or delete it"
        ) from error
