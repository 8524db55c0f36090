"""The retention of one endpoint in a place for documents: a small document, which every process reads once a minute.

What is stored holds. The setting in the code is stored by the first process, and only `onceonly retention set` changes it. So
processes with different code, or of different age, keep records and refuse copies by one rule. The difference of one minute is
covered by the eras in `model.retention`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from onceonly.documents.compare_and_set import compare_and_set
from onceonly.formats.undecodable import decode_or_report
from onceonly.model.changed_retention import KnownRetention
from onceonly.model.errors import CommitFailed
from onceonly.model.message import Message
from onceonly.model.retention import CLOCK_MARGIN_MS, Retention, always
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock
from onceonly.ports.store import UndecidableMessage

REFRESH_MS = 60_000
"""Milliseconds after which a process reads the retention again."""
_TRUSTED_MS = CLOCK_MARGIN_MS // 4
"""Milliseconds for which a process may delete by what it has read. Later it deletes nothing, which is harmless."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Retention).decode


class _Read(NamedTuple):
    retention: Retention
    at: int


class FixedRetention:
    """A retention that is the same everywhere and always: for documents that no operator can change it in."""

    def __init__(self, kept: int) -> None:
        self._retention = always(kept)

    async def read(self) -> Retention:
        return self._retention

    def last(self) -> Retention | None:
        return self._retention

    def trusted(self) -> Retention | None:
        return self._retention


class StoredRetention:
    """What is stored for one endpoint. `configured` is what its code says, in milliseconds: it is stored if nothing is."""

    def __init__(self, documents: Documents, endpoint: str, *, clock: Clock, configured: int) -> None:
        """Use a place for documents; the key is `retention/` and the endpoint."""
        self._documents = documents
        self._key = f"retention/{endpoint}"
        self._clock = clock
        self._configured = configured
        self._last: _Read | None = None

    async def read(self) -> Retention:
        """Return it, as it was a minute ago at most. Raises CommitFailed, OutcomeUnknown."""
        now = self._clock.now()
        if self._last is None or not 0 <= now - self._last.at < REFRESH_MS:
            self._last = _Read(await self._stored(), now)
        return self._last.retention

    def last(self) -> Retention | None:
        """Return what was read last, None for nothing. Awaits nothing."""
        return self._last.retention if self._last is not None else None

    def trusted(self) -> Retention | None:
        """Return what was read, if it is fresh enough to delete by it. Awaits nothing."""
        last, now = self._last, self._clock.now()
        return last.retention if last is not None and 0 <= now - last.at < _TRUSTED_MS else None

    async def find(self) -> Retention | None:
        """Return what is stored now, None for nothing. Raises CommitFailed, OutcomeUnknown."""
        found = (await self._documents.load([self._key])).get(self._key)
        return None if found is None else self._of(found)

    async def change(self, kept: int) -> Retention:
        """Store another retention, which holds from now on; returns what is stored then. Raises as `find` does."""
        after = always(kept)

        def changed(key: str, found: Document | None) -> Change | None:
            nonlocal after
            before = always(self._configured) if found is None else self._of(found)
            after = before.changed(kept, self._clock.now())
            if found is not None and after == before:
                return None
            return Change(key=key, body=_encode(after), expected=found.version if found else "")

        await compare_and_set(self._documents, [self._key], changed)
        self._last = None
        return after

    async def _stored(self) -> Retention:
        found = await self.find()
        return await self.change(self._configured) if found is None else found

    def _of(self, found: Document) -> Retention:
        """Read a document. One that cannot be read must not be replaced: then no process knows what was forgotten."""
        read = decode_or_report(lambda: _decode(found.body), "retention", self._key, "its messages wait")
        if read is None or not read.eras:
            raise CommitFailed(
                f"document {self._key!r} is not a retention. Restore it, or delete it if the retention was never changed"
            )
        return read


DocumentRetention = FixedRetention | StoredRetention


def undecidable_among(messages: Sequence[Message], retention: Retention, now: int) -> tuple[UndecidableMessage, ...]:
    """Return those of these unknown messages of which it cannot be decided whether they were handled, with the reason.

    A message without an instant cannot be told from a new one, and is never among them. Nor is one that a person retried.
    """
    reasons = ((message, retention.undecidable_reason(message.instant, now)) for message in messages)
    found = (UndecidableMessage(message, reason) for message, reason in reasons if reason is not None)
    return tuple(each for each in found if not each.is_wanted_anyway)


class DocumentRetentions:
    """The retention of one endpoint on documents. Implements the StoredRetentions port."""

    def __init__(self, stored: StoredRetention, *, clock: Clock) -> None:
        self._stored = stored
        self._clock = clock

    async def find(self) -> KnownRetention | None:
        found = await self._stored.find()
        return None if found is None else self._known(found)

    async def change(self, kept: int) -> KnownRetention:
        return self._known(await self._stored.change(kept))

    def _known(self, found: Retention) -> KnownRetention:
        now = self._clock.now()
        horizon = found.horizon(now)
        return KnownRetention(kept=found.latest, known_since=horizon if horizon > now - found.latest else 0)
