"""The register rows of a document store: in the entity's document, and listed apart for the sweeper (protocols, section 6)."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from onceonly.model.identity import Identity
from onceonly.model.thing import Row
from onceonly.ports.documents import Change
from onceonly.serialization.documents import EntityDocument, Registered
from onceonly.stores.documents import DocumentStore

LISTED = "register/"

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
        """List the rows, then write them; see the port."""
        await self._store.documents.save([Change(key=self._listed(row.attempt), body=_encode(row)) for row in rows])

        def opened(key: str, document: EntityDocument) -> EntityDocument:
            mine = {row.attempt: Registered(row.identity.source, row.identity.id, row.at) for row in rows if row.unit == key}
            return replace(document, register={**document.register, **mine})

        await self._store.edit(list(dict.fromkeys(row.unit for row in rows)), opened)

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
        return tuple(
            Row(identity=identity, unit=unit, attempt=attempt, at=each.at, cancelled=each.cancelled)
            for attempt, each in document.register.items()
            if (identity := Identity(each.source, each.id)) in identities
        )

    async def old(self, older_than: int, limit: int) -> tuple[Row, ...]:
        """List rows by the list beside the documents; see the port."""
        found: list[Row] = []
        after = ""
        while len(found) < limit:
            keys = await self._store.documents.keys(self._listed(""), after=after)
            if not keys:
                break
            after = keys[-1]
            loaded = await self._store.documents.load(keys)
            found += [row for each in loaded.values() if (row := _decode(each.body)).at < older_than]
        return tuple(found[:limit])

    def _listed(self, attempt: str) -> str:
        return f"{LISTED}{self._store.endpoint}/{attempt}"

    async def _unlist(self, attempt: str) -> None:
        key = self._listed(attempt)
        loaded = (await self._store.documents.load([key])).get(key)
        if loaded is not None:
            await self._store.documents.save([Change(key=key, body=None, expected=loaded.version)])
