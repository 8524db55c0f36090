"""Documents that pass every call on, for the broken ones to spoil one of them; and three faults that others use as well."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onceonly.documents.bulk import write_all
from onceonly.documents.limits import check_limits
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentLimits, Documents, Version
from onceonly_conformance.documents_subject import DocumentsSubject, Moment

_State = TypeVar("_State")


class WrappedDocuments:
    """Passes everything on. `shared` is what all clients of a place have together, `now` the place's time."""

    def __init__(self, inner: Documents, shared: dict[str, Any] | None = None, *, now: Callable[[], int] = lambda: 0) -> None:
        self.inner = inner
        self.limits: DocumentLimits = inner.limits
        self.now = now
        self._shared = {} if shared is None else shared

    def shared(self, name: str, empty: _State) -> _State:
        """Return something that all clients of the place have together."""
        state: _State = self._shared.setdefault(name, empty)
        return state

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents."""
        return await self.inner.load(keys)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents."""
        return await self.inner.save(changes)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys."""
        return await self.inner.keys(prefix, after=after, limit=limit)

    async def check(self) -> tuple[str, ...]:
        """Look at the place."""
        return await self.inner.check()

    async def current(self, key: str) -> Document | None:
        """Return a document as it is now."""
        return (await self.inner.load([key])).get(key)

    async def every_key(self) -> tuple[str, ...]:
        """Return all keys."""
        return await self.inner.keys("", limit=100_000)


class WrappedPlace:
    """A subject whose every client is wrapped in one kind of documents."""

    def __init__(self, subject: DocumentsSubject, kind: Callable[..., Documents]) -> None:
        self._subject = subject
        self._kind = kind
        self._shared: dict[str, Any] = {}

    async def documents(self) -> Documents:
        """Open the place."""
        return self._wrapped(await self._subject.documents())

    async def cut(self, moment: Moment) -> Documents:
        """Open the place with a client that is cut off."""
        return self._wrapped(await self._subject.cut(moment))

    async def missing(self) -> Documents:
        """Open a place that is not there."""
        return self._wrapped(await self._subject.missing())

    def now(self) -> int:
        """Return the time."""
        return self._subject.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        await self._subject.pass_time(milliseconds)

    def _wrapped(self, documents: Documents) -> Documents:
        return self._kind(documents, self._shared, now=self.now)


class OneByOneDocuments(WrappedDocuments):
    """Writes one document after the other, which is allowed."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write each by itself."""
        check_limits(changes, self.limits)
        return tuple([await self.save_one(change) for change in changes])

    async def save_one(self, change: Change) -> Version | None:
        """Write one document."""
        (version,) = await self.inner.save([change])
        return version


class CarefulDocuments(WrappedDocuments):
    """Writes each document by a request of its own, and knows of one whose connection was refused that it never arrived."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write all, by the library's own rule for the outcome of many requests."""
        check_limits(changes, self.limits)
        return await write_all(changes, self.save_one, at_once=3)

    async def save_one(self, change: Change) -> Version | None:
        """Write one document. Raises CommitFailed when it was not written, OutcomeUnknown when it was."""
        before = await self.current(change.key)
        try:
            (version,) = await self.inner.save([change])
        except OutcomeUnknown as error:
            if await self.current(change.key) == before:
                raise CommitFailed(str(error)) from error
            raise
        return version


class StaleDocuments(WrappedDocuments):
    """Reads what it has read before, as a cache or a lagging replica does; it knows its own writes."""

    def __init__(self, inner: Documents, shared: dict[str, Any] | None = None, *, now: Callable[[], int] = lambda: 0) -> None:
        super().__init__(inner, shared, now=now)
        self._read: dict[str, Document | None] = {}

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read only what was never read."""
        fresh = [key for key in keys if key not in self._read]
        found = await self.inner.load(fresh)
        self._read |= {key: found.get(key) for key in fresh}
        there = ((key, self._read[key]) for key in keys)
        return {key: document for key, document in there if document is not None}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write, and forget what was read of these."""
        for change in changes:
            self._read.pop(change.key, None)
        return await self.inner.save(changes)


class LostAnswerDocuments(WrappedDocuments):
    """Takes a lost answer for a success."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Say of a write of which nothing is known that it was done."""
        try:
            return await self.inner.save(changes)
        except OutcomeUnknown:
            found = await self.inner.load([change.key for change in changes])
            return tuple(found[change.key].version if change.key in found else "" for change in changes)


class LateWriteDocuments(WrappedDocuments):
    """Says of a lost write, or of one that `hold` asked for, that nothing happened; it lands with the next call of anybody.

    With `says` OutcomeUnknown that is what any network may do, and no fault of the adapter.
    """

    says: type[OnceOnlyError] = CommitFailed
    _is_held = False

    def hold(self) -> None:
        """Have the next write land late."""
        self._is_held = True

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read, after what was late has landed."""
        await self._land()
        return await self.inner.load(keys)

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write, after what was late has landed."""
        await self._land()
        is_held, self._is_held = self._is_held, False
        if not is_held:
            try:
                return await self.inner.save(changes)
            except OutcomeUnknown:
                pass
        self._late().append(tuple(changes))
        raise self.says("the write did not arrive")

    async def _land(self) -> None:
        while self._late():
            await self.inner.save(self._late().pop(0))

    def _late(self) -> list[tuple[Change, ...]]:
        return self.shared("late", [])
