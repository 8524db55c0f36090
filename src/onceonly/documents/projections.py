"""Projections on documents: a document for each key, written by compare-and-set if its version is greater than the stored one.

A deleted key is a tombstone with its version, so an older write that comes late does not bring the key back. The service drops
tombstones where it drops expired documents. Elsewhere they are listed under the time of their end, and a worker removes them.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from onceonly.documents.compare_and_set import compare_and_set, removal
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import CommitRefused, ConflictError, RetryableError
from onceonly.model.identity import hash_of
from onceonly.model.limits import StoredInt
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock

if TYPE_CHECKING:
    from onceonly.ports.maintenance import Expires

__all__ = ["DocumentProjection", "ProjectedValue"]

PREFIX, TOMBSTONES = "projection/", "tombstone/"
KEPT = timedelta(days=7)
"""How long a tombstone is kept at least."""
_PAGES = 10
_JSON = "application/json"
Tell = Callable[[int, Exception | None], None]
"""Called with the number of writes that were not made and why, or with 0 and None when all were made."""


class StoredProjection(Struct, frozen=True, omit_defaults=True):
    """A document. `value` is JSON as it is, `data` other bytes in Base64. A tombstone has neither, and may go at `until`."""

    version: StoredInt
    type: str = ""
    value: Raw | msgspec.UnsetType = msgspec.UNSET
    data: str | None = None
    until: StoredInt = 0

    @property
    def is_tombstone(self) -> bool:
        return self.value is msgspec.UNSET and self.data is None


class Tombstone(Struct, frozen=True):
    """An entry of the list of tombstones."""

    key: str


class ProjectedValue(Struct, frozen=True):
    """The body of a key in a projection, with its version and its content type."""

    body: bytes
    version: int
    content_type: str = ""

    def json(self, kind: type | None = None) -> object:
        """Decode the body, as `kind` if given. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body) if kind is None else msgspec.json.decode(self.body, type=kind)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StoredProjection).decode
_decode_tombstone = msgspec.json.Decoder(Tombstone).decode


class DocumentProjection:
    """A projection in a place for documents. Its keys begin with `projection/NAME/`, those of its list with `tombstone/`."""

    def __init__(
        self,
        documents: Documents,
        name: str,
        *,
        clock: Clock,
        tombstones: timedelta = KEPT,
        lists_tombstones: bool = False,
        tell: Tell | None = None,
    ) -> None:
        """Keep tombstones for this long. With `lists_tombstones` the service does not drop them: `remove_expired` does."""
        self._documents = documents
        self._prefix = f"{PREFIX}{name}/"
        self._clock = clock
        self._kept = tombstones // timedelta(milliseconds=1)
        self.lists_tombstones = lists_tombstones
        self._tell = tell

    async def write(self, writes: Sequence[ProjectedWrite]) -> tuple[Answer, ...]:
        """Apply writes: of one key only the newest, all keys in one round; see the port."""
        newest: dict[str, ProjectedWrite] = {}
        for write in writes:
            known = newest.get(write.key)
            if known is None or known.version < write.version:
                newest[write.key] = write
        answers = await self._write(newest)
        return tuple(answers[write.key] for write in writes)

    def problem(self, write: ProjectedWrite) -> str:
        limits, longest = self._documents.limits, self._documents.limits.key - len(self._prefix)
        if len(write.key.encode()) > longest:
            return f"its key has {len(write.key.encode())} bytes; the limit of {limits.service} is {longest}"
        size = len(_body(write, 0))
        return f"it takes {size:,} bytes; the limit of {limits.service} is {limits.body:,}" if size > limits.body else ""

    async def get(self, key: str) -> ProjectedValue | None:
        """Return the value of a key; None if it was never put, or deleted. Raises CommitFailed, OutcomeUnknown."""
        name = self._prefix + key
        found = (await self._documents.load([name])).get(name)
        stored = None if found is None else _read(name, found)
        if stored is None or stored.is_tombstone:
            return None
        body = bytes(stored.value) if isinstance(stored.value, Raw) else base64.b64decode(stored.data or "")
        return ProjectedValue(body, stored.version, stored.type)

    async def names(self) -> tuple[str, ...]:
        """List the keys that have a value, for tests and people. Raises CommitFailed, OutcomeUnknown."""
        found: list[str] = []
        after = ""
        while page := await self._documents.keys(self._prefix, after=after):
            loaded = await self._documents.load(page)
            live = [name for name in page if name in loaded and not _read(name, loaded[name]).is_tombstone]
            found += [name.removeprefix(self._prefix) for name in live]
            after = page[-1]
        return tuple(found)

    @property
    def is_swept(self) -> bool:
        """Whether `remove_expired` has anything to do."""
        return self.lists_tombstones or _expiring(self._documents) is not None

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove tombstones whose time is over, unless their keys were put again. Returns how many were found.

        Raises CommitFailed, OutcomeUnknown.
        """
        if (expiring := _expiring(self._documents)) is not None:
            return await expiring.remove_expired(limit)
        now, after, removed = self._clock.now(), "", 0
        for _ in range(_PAGES):
            page = await self._documents.keys(TOMBSTONES, after=after, limit=limit) if self.lists_tombstones else ()
            due = [name for name in page if _until(name) < now]
            if due:
                await self._remove(due, now)
                removed += len(due)
            if not page:
                break
            after = page[-1]
        return removed

    async def _write(self, wanted: Mapping[str, ProjectedWrite]) -> dict[str, Answer]:
        try:
            await self._save(wanted)
        except CommitRefused as error:  # nothing was written: one of them can never be, so each is written alone
            if len(wanted) > 1:
                return {key: (await self._write({key: write}))[key] for key, write in wanted.items()}
            return self._failed(wanted, error, Answer.REFUSED)
        except (RetryableError, ConflictError) as error:
            return self._failed(wanted, error, Answer.AWAY)
        if self._tell is not None:
            self._tell(0, None)
        return dict.fromkeys(wanted, Answer.TAKEN)

    def _failed(self, wanted: Mapping[str, ProjectedWrite], error: Exception, answer: Answer) -> dict[str, Answer]:
        if self._tell is not None:
            self._tell(len(wanted), error)
        return dict.fromkeys(wanted, answer)

    async def _save(self, wanted: Mapping[str, ProjectedWrite]) -> None:
        until = self._clock.now() + self._kept
        by_name = {self._prefix + key: write for key, write in wanted.items()}

        def newer(name: str, found: Document | None) -> Change | None:
            write = by_name[name]
            if found is not None and _read(name, found).version >= write.version:
                return None
            expires = until if write.body is None else 0
            return Change(key=name, body=_body(write, expires), expected=found.version if found else "", expires=expires)

        async def list_tombstones(changes: Sequence[Change]) -> None:
            entries = [
                Change(key=_entry(change.key, until), body=_encode(Tombstone(change.key)))
                for change in changes
                if change.expires
            ]
            if entries:  # Crash here: 1 listed, 2 no tombstone, 3 the entry goes when its time is over.
                await self._documents.save(entries)

        await compare_and_set(self._documents, by_name, newer, before=list_tombstones if self.lists_tombstones else None)

    async def _remove(self, entries: Sequence[str], now: int) -> None:
        listed = await self._documents.load(entries)

        def dead(name: str, found: Document | None) -> Change | None:
            stored = _read(name, found) if found else None
            return removal(name, found) if stored and stored.is_tombstone and stored.until < now else None

        await compare_and_set(self._documents, {_decode_tombstone(each.body).key for each in listed.values()}, dead)
        await compare_and_set(self._documents, entries, removal)


def _body(write: ProjectedWrite, until: int) -> bytes:
    if write.body is None:
        return _encode(StoredProjection(write.version, until=until))
    if write.content_type == _JSON:
        return _encode(StoredProjection(write.version, write.content_type, value=Raw(write.body)))
    return _encode(StoredProjection(write.version, write.content_type, data=base64.b64encode(write.body).decode()))


def _read(name: str, document: Document) -> StoredProjection:
    try:
        return _decode(document.body)
    except UNDECODABLE as error:
        raise CommitRefused(f"document {name!r} is not a projection ({error}): delete it, or use another place") from error


def _entry(name: str, until: int) -> str:
    return f"{TOMBSTONES}{until:015}/{hash_of(name.encode()).hex()}"


def _until(entry: str) -> int:
    digits = entry.removeprefix(TOMBSTONES).partition("/")[0]
    return int(digits) if digits.isdecimal() else 0


def _expiring(documents: Documents) -> "Expires | None":
    """Return the documents if they remove expired ones themselves."""
    from onceonly.ports.maintenance import Expires  # noqa: PLC0415 - needed by maintenance alone

    return documents if isinstance(documents, Expires) else None
