"""The dedup store on documents: one small document for each message that is done.

What is there counts, whatever its age. An old mark still tells the truth, and clocks differ, so the instant in it decides
only when a mark may be dropped: by the service where it can (the hint `expires`), by `sweep` elsewhere.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec
from msgspec import Struct

from onceonly.documents.compare_and_set import compare_and_set, removal
from onceonly.documents.retention import DocumentRetention, FixedRetention, undecidable_among
from onceonly.formats.undecodable import UNDECODABLE, decode_or_report
from onceonly.model.errors import SetupError
from onceonly.model.identity import CLAIM_KEY_BYTES
from onceonly.model.limits import StoredInt
from onceonly.model.message import Message
from onceonly.model.retention import CLOCK_MARGIN_MS, FOREVER_MS, LAST_INSTANT, in_milliseconds
from onceonly.ports.admission import NO_FINGERPRINTS, NO_INSTANTS
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock
from onceonly.ports.store import UndecidableMessage

_PREFIX = "done/"


class Mark(Struct, frozen=True, omit_defaults=True):
    """The body of a mark: the instant from which it may be dropped, in milliseconds since 1970, and the message's fingerprint.

    `body` is in hexadecimal digits. It is empty where it was unknown.
    """

    until: StoredInt
    body: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Mark).decode


class DocumentMarkStore:
    """Remembers keys for at least `retention` from the last time each was added. Implements the DedupStore port.

    A key that is there already is written again only when its mark would not last that long: so a mark that is about to be
    dropped cannot swallow an `add`, and two workers that add the same key within the hour cost no second write.
    """

    def __init__(
        self, documents: Documents, *, retention: timedelta, clock: Clock, stored: DocumentRetention | None = None
    ) -> None:
        """Use a place for documents; keys begin with `done/`. Raises SetupError for a retention of 0 or less.

        `stored` says for how long marks are kept, where an operator can change it.
        """
        if retention <= timedelta():
            raise SetupError("a dedup store needs a retention longer than 0")
        self._documents = documents
        self._retention = stored or FixedRetention(in_milliseconds(retention))
        self._clock = clock

    async def add(
        self,
        keys: Sequence[bytes],
        fingerprints: Mapping[bytes, bytes] = NO_FINGERPRINTS,
        instants: Mapping[bytes, int] = NO_INSTANTS,
    ) -> None:
        """Remember keys; see the port. One call of the service where none of them is known."""
        retention = await self._retention.read()
        now = self._clock.now()
        kept, ahead = retention.kept(now), {_name(key): instant for key, instant in instants.items()}
        bodies = {_name(key): fingerprint.hex() for key, fingerprint in fingerprints.items()}

        def renew(key: str, found: Document | None) -> Change | None:
            before = _mark(key, found) if found is not None else None
            needed = min(max(now, ahead.get(key, 0)) + kept, LAST_INSTANT)  # one from the future is needed for longer
            expires = 0 if kept >= FOREVER_MS else needed + CLOCK_MARGIN_MS
            if before is not None and before.until >= needed and (before.body or key not in bodies):
                return None
            body = before.body if before is not None and before.body else bodies.get(key, "")
            mark = _encode(Mark(needed + CLOCK_MARGIN_MS, body))
            return Change(key=key, body=mark, expected=found.version if found else "", expires=expires)

        names = [_name(key) for key in keys]
        await compare_and_set(self._documents, names, renew, guesses=dict.fromkeys(names))

    async def contains(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        if not keys:
            return NO_FINGERPRINTS
        found = await self._documents.load([_name(key) for key in dict.fromkeys(keys)])
        return {key: _fingerprint(found[name]) for key in keys if (name := _name(key)) in found}

    async def undecidable(self, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Return those of these unknown messages that may have been forgotten; see the port."""
        return undecidable_among(messages, await self._retention.read(), self._clock.now())

    async def remove(self, keys: Sequence[bytes]) -> None:
        await compare_and_set(self._documents, map(_name, keys), removal)

    async def count(self, limit: int) -> int:
        """Count the marks, `limit` at most; may be stale. Raises CommitFailed, OutcomeUnknown."""
        return len(await self._documents.keys(_PREFIX, limit=limit))

    async def sweep(self, *, after: str = "", limit: int = 1000) -> str:
        """Drop the marks that are past their time, among the next `limit` behind `after`; returns where to go on, or "".

        For places whose service does not drop documents on its own. Raises CommitFailed, OutcomeUnknown.
        """
        names = await self._documents.keys(_PREFIX, after=after, limit=limit)
        now = self._clock.now()

        def drop_old(key: str, found: Document | None) -> Change | None:
            mark = _mark(key, found) if found else None
            return removal(key, found) if mark and mark.until < now else None

        await compare_and_set(self._documents, names, drop_old)
        return names[-1] if names else ""


class ExpiredMarks:
    """Drops the marks that are past their time where the service does not, a bounded number of looks at a time.

    It goes on where it stopped, and begins anew at the end: each look reads the marks, which some services are paid for.
    """

    def __init__(self, done: DocumentMarkStore, *, pages: int = 10) -> None:
        """Look through this dedup store, this many pages of marks at a time."""
        self._done = done
        self._pages = pages
        self._after = ""

    async def remove_expired(self, limit: int = 1000) -> int:
        """Drop what has expired on the next pages of `limit` marks; returns 0, as they are not counted.

        Raises CommitFailed, OutcomeUnknown.
        """
        for _ in range(self._pages):
            self._after = await self._done.sweep(after=self._after, limit=limit)
            if not self._after:
                break
        return 0


def mark_size(until: int, fingerprint: bytes) -> int:
    """Return the bytes of a mark and of its key."""
    return len(_encode(Mark(until, fingerprint.hex()))) + len(_name(bytes(CLAIM_KEY_BYTES)))


def _name(key: bytes) -> str:
    return f"{_PREFIX}{key.hex()}"


def _mark(key: str, found: Document) -> Mark | None:
    """Return what a mark says; None for one that cannot be read. It is a mark all the same, and is never dropped."""
    return decode_or_report(lambda: _decode(found.body), "mark", key, "kept until its message comes again")


def _fingerprint(found: Document) -> bytes:
    """Return the fingerprint in a mark; b"" without one. A mark that cannot be read is a mark all the same."""
    try:
        return bytes.fromhex(_decode(found.body).body)
    except UNDECODABLE:
        return b""
