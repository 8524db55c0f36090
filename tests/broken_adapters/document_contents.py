"""Documents that break what is promised about keys, bodies, limits, lists, expiry and the place."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from unicodedata import normalize

from msgspec.structs import replace

from onceonly.model.errors import CommitFailed, CommitRefused
from onceonly.ports.documents import Change, Document, Version
from tests.broken_adapters.wrapped_documents import OneByOneDocuments, WrappedDocuments


class BodyChangingDocuments(WrappedDocuments):
    """Stores something else than it was given."""

    def stored(self, body: bytes) -> bytes:
        """Return what is stored."""
        return body

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write other bodies."""
        return await self.inner.save(
            [change if change.body is None else replace(change, body=self.stored(change.body)) for change in changes]
        )


class TextDocuments(BodyChangingDocuments):
    """Stores text, and replaces what is none."""

    def stored(self, body: bytes) -> bytes:
        """Decode and encode."""
        return body.decode(errors="replace").encode()[: self.limits.body]


class StrippingDocuments(BodyChangingDocuments):
    """Loses white space at the ends."""

    def stored(self, body: bytes) -> bytes:
        """Strip."""
        return body.strip()


class RoundingDocuments(BodyChangingDocuments):
    """Keeps every number as a double, as JSON in JavaScript does."""

    def stored(self, body: bytes) -> bytes:
        """Parse and write again."""
        try:
            return json.dumps(json.loads(body, parse_int=float)).encode()
        except ValueError:
            return body


class NarrowDocuments(BodyChangingDocuments):
    """Keeps whole numbers of 32 bits, and greater ones as doubles."""

    def stored(self, body: bytes) -> bytes:
        """Parse and write again."""
        try:
            return json.dumps(json.loads(body, parse_int=self._number)).encode()
        except ValueError:
            return body

    def _number(self, text: str) -> int | float:
        return int(text) if -(2**31) <= int(text) < 2**31 else float(text)


class WholeDocuments(BodyChangingDocuments):
    """Writes a double without a fraction as a whole number, as JavaScript does."""

    def stored(self, body: bytes) -> bytes:
        """Parse and write again."""
        try:
            return json.dumps(json.loads(body, parse_float=self._number)).encode()
        except ValueError:
            return body

    def _number(self, text: str) -> int | float:
        return int(float(text)) if float(text).is_integer() and abs(float(text)) < 1e21 else float(text)


class TruncatingDocuments(BodyChangingDocuments):
    """Cuts what is near its limit."""

    def stored(self, body: bytes) -> bytes:
        """Take what a page holds."""
        return body[: self.limits.body - 1]


class LavishDocuments(BodyChangingDocuments):
    """Cuts what is over its limit, and says nothing."""

    def stored(self, body: bytes) -> bytes:
        """Take what fits."""
        return body[: self.limits.body]


class MergingDocuments(OneByOneDocuments):
    """Merges the fields of a JSON text into those that are there."""

    async def save_one(self, change: Change) -> Version | None:
        """Write old and new fields."""
        there = await self.current(change.key)
        try:
            fields = {**json.loads(there.body if there else b"{}"), **json.loads(change.body or b"{}")}
        except (ValueError, TypeError):
            return await super().save_one(change)
        merged = json.dumps(fields, separators=(",", ":")).encode()
        return await super().save_one(replace(change, body=change.body and merged))


class LateLimitDocuments(OneByOneDocuments):
    """Learns from its service what is too large, after others were written."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write one after the other, until one is refused."""
        return tuple([await self.save_one(change) for change in changes])


class VagueLimitDocuments(WrappedDocuments):
    """Blames the moment for what is too large."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Say that it may be tried again."""
        try:
            return await self.inner.save(changes)
        except CommitRefused as error:
            raise CommitFailed(str(error)) from error


class KeyChangingDocuments(WrappedDocuments):
    """Calls a document by another key."""

    def named(self, key: str) -> str:
        """Return the other key."""
        return key

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read by the other keys."""
        found = await self.inner.load([self.named(key) for key in keys])
        return {key: found[self.named(key)] for key in keys if self.named(key) in found}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write by the other keys."""
        return await self.inner.save([replace(change, key=self.named(change.key)) for change in changes])


class CaselessDocuments(KeyChangingDocuments):
    """Compares keys without case."""

    def named(self, key: str) -> str:
        """Fold the case."""
        return key.lower()


class NormalizingDocuments(KeyChangingDocuments):
    """Takes letters that look alike for the same."""

    def named(self, key: str) -> str:
        """Compose."""
        return normalize("NFC", key)


class PathDocuments(KeyChangingDocuments):
    """Takes a key for a path, which a client makes shorter."""

    def named(self, key: str) -> str:
        """Remove what is twice."""
        return key.replace("//", "/").replace("/./", "/")


class UnescapingDocuments(KeyChangingDocuments):
    """Sends keys as they are in a URL, and they are unescaped there."""

    def named(self, key: str) -> str:
        """Unescape a slash."""
        return key.replace("%2F", "/k")


class ShorteningDocuments(KeyChangingDocuments):
    """Knows a key by its beginning."""

    def named(self, key: str) -> str:
        """Cut the last byte of a long one."""
        return key.encode()[: self.limits.key - 1].decode(errors="ignore")


class CuttingDocuments(KeyChangingDocuments):
    """Cuts a key that is too long, and says nothing."""

    def named(self, key: str) -> str:
        """Take what fits."""
        return key.encode(errors="replace")[: self.limits.key].decode(errors="ignore") or " "


class StrictLoadDocuments(WrappedDocuments):
    """Sends keys as they come to a service that takes each but once."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Refuse what is named twice."""
        if len(set(keys)) < len(keys):
            raise CommitFailed("the list of keys has duplicates")
        return await self.inner.load(keys)


class WildcardDocuments(WrappedDocuments):
    """Takes a prefix for a pattern."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List what is like it."""
        pattern = prefix.replace("%", "*").replace("_", "?") + "*"
        listed = (key for key in await self.every_key() if key > after and fnmatchcase(key, pattern))
        return tuple(listed)[:limit]


class CaselessListDocuments(WrappedDocuments):
    """Lists without case."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List what begins with it in any case."""
        listed = (key for key in await self.every_key() if key > after and key.lower().startswith(prefix.lower()))
        return tuple(listed)[:limit]


class FolderDocuments(WrappedDocuments):
    """Takes a prefix for a folder, and lists what is in it."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List up to the next slash."""
        listed = await self.inner.keys(prefix, after=after, limit=limit)
        return tuple(key for key in listed if "/" not in key[len(prefix) :])


class FirstPageDocuments(WrappedDocuments):
    """Lists from the beginning."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Forget where it was."""
        return await self.inner.keys(prefix, limit=limit) if limit < len(await self.every_key()) else ()


class UnlimitedDocuments(WrappedDocuments):
    """Lists everything."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Forget the limit."""
        return await self.inner.keys(prefix, after=after, limit=limit + 1)


class PageOrderDocuments(WrappedDocuments):
    """Lists each page in an order of its own, and goes on behind its greatest key."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Turn the page around, but for its last key."""
        page = await self.inner.keys(prefix, after=after, limit=limit)
        return (*reversed(page[:-1]), *page[-1:])


class SkippingDocuments(WrappedDocuments):
    """Loses a key between two pages."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Begin one too late."""
        return (await self.inner.keys(prefix, after=after, limit=limit + 1))[bool(after) : limit + bool(after)]


class CursorDocuments(WrappedDocuments):
    """Goes on behind a document, and loses its place when that is gone."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Look for the document."""
        if after and await self.current(after) is None:
            return ()
        return await self.inner.keys(prefix, after=after, limit=limit)


class TombstoneDocuments(WrappedDocuments):
    """Lists what was deleted."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Remember every key."""
        known: set[str] = self.shared("keys", set())
        known.update(change.key for change in changes)
        return await self.inner.save(changes)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List what is remembered."""
        known: set[str] = self.shared("keys", set())
        return tuple(sorted(key for key in known if key.startswith(prefix) and key > after))[:limit]


class ExpiringDocuments(WrappedDocuments):
    """Deletes what has expired, which is allowed."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Remember when it expires."""
        answers = await self.inner.save(changes)
        times: dict[str, int] = self.shared("times", {})
        for change, version in zip(changes, answers, strict=True):
            if version is not None:
                times[change.key] = self.expiry(change, times.get(change.key, 0))
        return answers

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Delete what has expired, and read the others."""
        times: dict[str, int] = self.shared("times", {})
        due = await self.inner.load([key for key in keys if 0 < times.get(key, 0) < self.now()])
        await self.inner.save([Change(key=key, body=None, expected=document.version) for key, document in due.items()])
        return await self.inner.load(keys)

    def expiry(self, change: Change, before: int) -> int:
        """Return when it expires."""
        return change.expires


class OnceExpiringDocuments(ExpiringDocuments):
    """Keeps an expiry until another one is set."""

    def expiry(self, change: Change, before: int) -> int:
        """Keep the one before."""
        return change.expires or before


class HastyDocuments(ExpiringDocuments):
    """Takes no expiry for one that has passed."""

    def expiry(self, change: Change, before: int) -> int:
        """Let it begin and end at once."""
        return change.expires or 1


class PunctualDocuments(WrappedDocuments):
    """Takes no expiry that has passed."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Refuse it."""
        if any(0 < change.expires < self.now() for change in changes):
            raise CommitFailed("the time to live must be positive")
        return await self.inner.save(changes)


class ProbingDocuments(WrappedDocuments):
    """Leaves behind what it tries its place with."""

    async def check(self) -> tuple[str, ...]:
        """Write a document."""
        await self.inner.save([Change(key="probe", body=b"")])
        return await self.inner.check()


class SilentWarningDocuments(WrappedDocuments):
    """Warns, and does not say of what."""

    async def check(self) -> tuple[str, ...]:
        """Return an empty warning."""
        return (*await self.inner.check(), "")


class TrustingDocuments(WrappedDocuments):
    """Does not look at its place."""

    async def check(self) -> tuple[str, ...]:
        """Trust."""
        return ()
