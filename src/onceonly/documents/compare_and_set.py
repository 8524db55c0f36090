"""Rounds over many documents: compare-and-set, and listing what small documents say.

Compare-and-set loads, decides, writes what may still be written, and repeats where another worker was first. This is the only
loop of its kind. Whatever must be written "unless another process was faster" is a `decide` for it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from onceonly.model.errors import CommitFailed, OutcomeUnknown, PermanentFailure, UpgradeRequired
from onceonly.ports.documents import Change, Document, Documents, Version

Decide = Callable[[str, Document | None], Change | None]
"""What to write to a document as it is (None: there is none); None when it is to stay as it is."""
Before = Callable[[Sequence[Change]], Awaitable[None]]
"""Called with the writes that come next, each time before they are sent. What it raises ends the call."""

Said = TypeVar("Said")
Read = Callable[[str, Document], Said | None]
"""The content of a document. None if it is not wanted. Raises PermanentFailure, UpgradeRequired if it cannot be read."""

TRIES = 20
"""How often a document is written at most while other workers keep changing it."""
NO_GUESSES: Mapping[str, Document | None] = {}


class WriteConflict(CommitFailed):
    """Definite: nothing happened, because other workers changed a document first each time."""


class WriteResult(Struct, frozen=True):
    """What became of the documents: as each was when it was decided on last, and the new versions of those written."""

    seen: Mapping[str, Document | None]
    versions: Mapping[str, Version]


async def compare_and_set(
    documents: Documents,
    keys: Iterable[str],
    decide: Decide,
    *,
    guesses: Mapping[str, Document | None] = NO_GUESSES,
    before: Before | None = None,
) -> WriteResult:
    """Bring each of these documents to where `decide` leaves it as it is; not atomic across documents.

    A guess saves the first load of a document that would be written if it is right. A wrong one costs a load later, never
    correctness, because every write names the version it expects.

    Raises WriteConflict after 20 tries, CommitFailed when nothing was written for another reason, and OutcomeUnknown when
    something may have been written.
    """
    left = list(dict.fromkeys(keys))
    seen: dict[str, Document | None] = {}
    versions: dict[str, Version] = {}
    known = {key: guess for key, guess in guesses.items() if decide(key, guess)}
    try:
        for _ in range(TRIES):
            if not left:
                return WriteResult(seen, versions)
            found = await _load(documents, left, known)
            seen |= found
            changes = [change for key in left if (change := decide(key, found[key]))]
            if not changes:
                return WriteResult(seen, versions)
            if before is not None:
                await before(changes)
            answers = zip(changes, await documents.save(changes), strict=True)
            written = {change.key: version for change, version in answers if version is not None}
            versions |= written
            left = [change.key for change in changes if change.key not in written]
            known = {}
        if not left:
            return WriteResult(seen, versions)
    except CommitFailed as error:
        if versions:
            raise OutcomeUnknown(f"some documents were written before this error: {error}") from error
        raise
    words = f"other workers kept changing {', '.join(map(repr, left[:3]))}: gave up after {TRIES} attempts"
    raise (OutcomeUnknown if versions else WriteConflict)(words)


def removal(key: str, found: Document | None) -> Change | None:
    """Return the change that removes a document as it is. It is a `Decide`."""
    return Change(key=key, body=None, expected=found.version) if found else None


async def _load(documents: Documents, keys: list[str], known: Mapping[str, Document | None]) -> dict[str, Document | None]:
    asked = [key for key in keys if key not in known]
    loaded = await documents.load(asked) if asked else {}
    return {key: known[key] if key in known else loaded.get(key) for key in keys}


async def listed(documents: Documents, prefix: str, read: Read[Said], limit: int) -> tuple[Said, ...]:
    """List what is wanted of the documents with this prefix, at most `limit`.

    One that cannot be read is passed over. If nothing else is found, its error is raised: PermanentFailure, UpgradeRequired.
    Raises CommitFailed.
    """
    found: list[Said] = []
    unreadable: CommitFailed | None = None
    after = ""
    while len(found) < limit and (page := await documents.keys(prefix, after=after)):
        loaded = await documents.load(page)
        for key in (key for key in page if key in loaded):
            try:
                said = read(key, loaded[key])
            except (PermanentFailure, UpgradeRequired) as error:
                unreadable = error
            else:
                found += [] if said is None else [said]
        after = page[-1]
    if unreadable is not None and not found:
        raise unreadable
    return tuple(found[:limit])
