"""The register rows of a document store: in the entity's document, and listed apart for the sweeper (protocols, section 6)."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from onceonly.model.errors import SchemaTooNew
from onceonly.model.identity import Identity
from onceonly.model.thing import Row
from onceonly.ports.documents import Change, Document
from onceonly.serialization.documents import EntityDocument, Registered
from onceonly.stores.documents import DocumentStore
from onceonly.stores.listing import listed

LISTED = "register/"
_LEFT_AFTER = 3_600_000
"""Milliseconds after which a row that is still in its document may be one that nobody listed."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Row).decode


class DocumentRegister:
    """Register rows, each in the document that its attempt wants to save: so that one write saves it and takes the row away.

    A list of all rows lies beside the documents, for nobody can search those; an entry there permits nothing.
    """

    def __init__(self, store: DocumentStore) -> None:
        """Keep the rows in the documents of this store."""
        self._store = store

    async def open(self, rows: Sequence[Row]) -> None:
        """Write the rows, then list them; see the port.

        In this order: a sweeper that finds a row listed, and not in its document, knows that it is gone for good. What a
        process that died between the two leaves, the next one that opens a row in the same document lists.

        A message that is known already gets no row: it is not committed again, and could not be without one.
        """
        if not rows:
            return
        names = {row.attempt: self._store.name_of(row.identity) for row in rows}
        listed: dict[str, Row] = {}

        def opened(key: str, document: EntityDocument) -> EntityDocument:
            mine = [row for row in rows if row.unit == key and names[row.attempt] not in document.records]
            listed.update({row.attempt: row for row in mine})
            listed.update(_left(key, document, before=rows[0].at - _LEFT_AFTER))
            added = {row.attempt: Registered(names[row.attempt], row.at) for row in mine}
            return replace(document, register={**document.register, **added})

        await self._store.edit(list(dict.fromkeys(row.unit for row in rows)), opened)
        if listed:  # what is listed already stays as it is
            changes = [Change(key=self._listed(each.attempt), body=_encode(each)) for each in listed.values()]
            await self._store.documents.save(changes)

    async def cancel(self, row: Row) -> bool:
        """Cancel a row; see the port. One that is gone is no longer listed either."""
        found = False

        def cancelled(_key: str, document: EntityDocument) -> EntityDocument:
            nonlocal found
            mine = document.register.get(row.attempt)
            found = mine is not None
            if mine is None:
                return document
            return replace(document, register={**document.register, row.attempt: replace(mine, cancelled=True)})

        await self._store.edit([row.unit], cancelled)
        if not found:
            await self._unlist(row.attempt)
        return found

    async def remove(self, row: Row) -> None:
        """Remove a row; see the port."""

        def removed(_key: str, document: EntityDocument) -> EntityDocument:
            left = {attempt: each for attempt, each in document.register.items() if attempt != row.attempt}
            return replace(document, register=left)

        await self._store.edit([row.unit], removed)
        await self._unlist(row.attempt)

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Row, ...]:
        """Give the rows of these messages in one document; see the port."""
        document = await self._store.look(unit)
        named = {self._store.name_of(identity): identity for identity in identities}
        return tuple(
            Row(identity=named[each.message], unit=unit, attempt=attempt, at=each.at, cancelled=each.cancelled)
            for attempt, each in document.register.items()
            if each.message in named
        )

    async def old(self, older_than: int, limit: int) -> tuple[Row, ...]:
        """List rows by the list beside the documents; see the port."""

        def read(key: str, document: Document) -> Row | None:
            row = _read(key, document)
            return row if row.at < older_than else None

        return await listed(self._store.documents, self._listed(""), read, limit)

    def _listed(self, attempt: str) -> str:
        return f"{LISTED}{self._store.endpoint}/{attempt}"

    async def _unlist(self, attempt: str) -> None:
        key = self._listed(attempt)
        loaded = (await self._store.documents.load([key])).get(key)
        if loaded is not None:
            await self._store.documents.save([Change(key=key, body=None, expected=loaded.version)])


def _read(key: str, document: Document) -> Row:
    try:
        return _decode(document.body)
    except msgspec.DecodeError as error:
        raise SchemaTooNew(
            f"{key!r} is no register row that this onceonly can read ({error}); upgrade this process, or remove it"
        ) from error


def _left(unit: str, document: EntityDocument, *, before: int) -> dict[str, Row]:
    """Give the old rows of a document. Whose they are is not kept there in words, and no sweeper asks."""
    return {
        attempt: Row(identity=Identity("", each.message), unit=unit, attempt=attempt, at=each.at)
        for attempt, each in document.register.items()
        if each.at < before
    }
