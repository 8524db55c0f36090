"""Documents that break what is promised about conditional writes, versions and answers."""

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

from msgspec.structs import replace

from onceonly.documents.limits import check_limits
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.ports.documents import Change, Document, Version
from tests.broken_adapters.wrapped_documents import CarefulDocuments, OneByOneDocuments, WrappedDocuments


class EmptyDocuments(WrappedDocuments):
    """Gives an empty document for one that is not there."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents, and make up the others."""
        return dict.fromkeys(keys, Document(b"", "")) | dict(await self.inner.load(keys))


class InventiveDocuments(WrappedDocuments):
    """Answers with a version of its own making."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write, and answer something else."""
        return tuple(version and f"W/{version}" for version in await self.inner.save(changes))


class OverwritingDocuments(OneByOneDocuments):
    """Inserts without looking whether a document is there."""

    async def save_one(self, change: Change) -> Version | None:
        """Write over what is there."""
        if change.expected or change.body is None:
            return await super().save_one(change)
        return await forced(self, change)


class ForgivingDocuments(OneByOneDocuments):
    """Is content with an insert of what is there already."""

    async def save_one(self, change: Change) -> Version | None:
        """Say that it was inserted when it says the same."""
        there = await self.current(change.key)
        if there is not None and not change.expected and there.body == change.body:
            return there.version
        return await super().save_one(change)


class SameVersionDocuments(WrappedDocuments):
    """Answers a replace with the version that was there before."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write, and answer what was asked."""
        answers = await self.inner.save(changes)
        return tuple(version and (change.expected or version) for change, version in zip(changes, answers, strict=True))


class UnconditionalDocuments(OneByOneDocuments):
    """Replaces a document whatever its version is."""

    async def save_one(self, change: Change) -> Version | None:
        """Write over what is there."""
        if not change.expected or change.body is None or await self.current(change.key) is None:
            return await super().save_one(change)
        return await forced(self, change)


class UpsertingDocuments(OneByOneDocuments):
    """Replaces what is not there."""

    async def save_one(self, change: Change) -> Version | None:
        """Insert what should be replaced."""
        if change.body is not None and await self.current(change.key) is None:
            return await super().save_one(replace(change, expected=""))
        return await super().save_one(change)


class EmptyingDocuments(OneByOneDocuments):
    """Deletes by writing nothing into the document."""

    async def save_one(self, change: Change) -> Version | None:
        """Leave an empty document."""
        version = await super().save_one(replace(change, body=change.body or b""))
        return version and ("" if change.body is None else version)


class UnconditionalDeleteDocuments(OneByOneDocuments):
    """Deletes a document whatever its version is."""

    async def save_one(self, change: Change) -> Version | None:
        """Delete what is there."""
        if change.body is not None or await self.current(change.key) is None:
            return await super().save_one(change)
        return await forced(self, change)


class ContentDocuments(OneByOneDocuments):
    """Is content with a delete of what is not there."""

    async def save_one(self, change: Change) -> Version | None:
        """Say that it was deleted."""
        if change.body is None and await self.current(change.key) is None:
            return ""
        return await super().save_one(change)


class TouchingDocuments(WrappedDocuments):
    """Gives a document another version at each read, as a time of last access would."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read, and mark the versions from the second read on."""
        times = self.shared("reads", [0])
        times[0] += 1
        found = await self.inner.load(keys)
        return {key: replace(it, version=it.version + "." * (times[0] - 1)) for key, it in found.items()}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write without the marks."""
        return await self.inner.save([replace(change, expected=change.expected.rstrip(".")) for change in changes])


class UnchangedDocuments(OneByOneDocuments):
    """Skips a write that would change nothing."""

    async def save_one(self, change: Change) -> Version | None:
        """Keep the version of an equal body."""
        there = await self.current(change.key)
        if there is not None and there == Document(change.body or b"", change.expected):
            return there.version
        return await super().save_one(change)


class HashingDocuments(OneByOneDocuments):
    """Takes a hash of the body for its version, as some services' entity tags are."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read, and hash."""
        return {key: replace(it, version=_hash(it.body)) for key, it in (await self.inner.load(keys)).items()}

    async def save_one(self, change: Change) -> Version | None:
        """Compare hashes."""
        there = await self.current(change.key)
        if change.expected and (there is None or _hash(there.body) != change.expected):
            return None
        version = await super().save_one(replace(change, expected=there.version) if there and change.expected else change)
        return version and _hash(change.body or b"")


class RecountingDocuments(OneByOneDocuments):
    """Counts the writes of a document for its version, and begins again when it is deleted."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read, with the counts."""
        return {key: replace(it, version=self._count(key)) for key, it in (await self.inner.load(keys)).items()}

    async def save_one(self, change: Change) -> Version | None:
        """Compare counts."""
        counts, there = self._counts(), await self.current(change.key)
        if change.expected != (self._count(change.key) if there else ""):
            return None
        answer = await super().save_one(replace(change, expected=there.version if there else ""))
        counts[change.key] = counts.get(change.key, 0) + 1 if change.body is not None else 0
        return answer and self._count(change.key)

    def _counts(self) -> dict[str, int]:
        return self.shared("counts", {})

    def _count(self, key: str) -> Version:
        return str(self._counts().get(key, 0))


class FussyDocuments(WrappedDocuments):
    """Sends an empty request, which its service refuses."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write something."""
        if not changes:
            raise CommitFailed("the list of writes must not be empty")
        return await self.inner.save(changes)


class AllOrNothingDocuments(WrappedDocuments):
    """Writes all in one transaction, and refuses all when it refuses one."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Look at all before one is written."""
        found = await self.inner.load([change.key for change in changes])
        versions = {key: document.version for key, document in found.items()}
        if any(versions.get(change.key, "") != change.expected for change in changes):
            return (None,) * len(changes)
        return await self.inner.save(changes)


class StoppingDocuments(OneByOneDocuments):
    """Stops at the first that is refused."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Give up the rest."""
        answers: list[Version | None] = []
        for change in changes:
            answers.append(None if None in answers else await self.save_one(change))
        return tuple(answers)


class ShuffledDocuments(WrappedDocuments):
    """Answers in the order of the keys."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write in another order."""
        return await self.inner.save(sorted(changes, key=lambda change: change.key))


class FirstBatchDocuments(WrappedDocuments):
    """Reads no more than one request of its service can hold."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Forget the others."""
        return await self.inner.load(keys[:100])


class CheckThenInsertDocuments(OneByOneDocuments):
    """Looks first whether a document is there, and then inserts without a condition."""

    async def save_one(self, change: Change) -> Version | None:
        """Look, then write."""
        if change.expected or change.body is None:
            return await super().save_one(change)
        return None if await self.current(change.key) else await forced(self, change)


class CheckThenReplaceDocuments(OneByOneDocuments):
    """Looks first which version a document has, and then replaces it without a condition."""

    async def save_one(self, change: Change) -> Version | None:
        """Look, then write."""
        if not change.expected or change.body is None:
            return await super().save_one(change)
        there = await self.current(change.key)
        return await forced(self, change) if there and there.version == change.expected else None


class CheckThenDeleteDocuments(OneByOneDocuments):
    """Looks first which version a document has, and then deletes it without a condition."""

    async def save_one(self, change: Change) -> Version | None:
        """Look, then delete."""
        if change.body is not None:
            return await super().save_one(change)
        there = await self.current(change.key)
        return await forced(self, change) if there and there.version == change.expected else None


class LockingDocuments(WrappedDocuments):
    """Locks documents in the order in which they come."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Lock one after the other, write, and let all go."""
        locks: dict[str, asyncio.Lock] = self.shared("locks", {})
        taken: list[asyncio.Lock] = []
        try:
            for change in changes:
                lock = locks.setdefault(change.key, asyncio.Lock())
                await lock.acquire()
                taken.append(lock)
                await asyncio.sleep(0)
            return await self.inner.save(changes)
        finally:
            for lock in taken:
                lock.release()


class RetryingDocuments(WrappedDocuments):
    """Sends a lost write again, as the clients of most services do by themselves."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write again, and be refused by the own first try."""
        try:
            return await self.inner.save(changes)
        except OutcomeUnknown:
            return await self.inner.save(changes)


class ResignedDocuments(WrappedDocuments):
    """Takes a lost answer for a refusal."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Say that somebody else was faster."""
        try:
            return await self.inner.save(changes)
        except OutcomeUnknown:
            return (None,) * len(changes)


class CertainDocuments(WrappedDocuments):
    """Takes every lost connection for a write that did not happen."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Say that nothing happened."""
        try:
            return await self.inner.save(changes)
        except OutcomeUnknown as error:
            raise CommitFailed(str(error)) from error


class FirstErrorDocuments(CarefulDocuments):
    """Says of all what the service said of one of them, also when others were written."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write each, and raise the first error."""
        check_limits(changes, self.limits)
        answers = await asyncio.gather(*map(self.save_one, changes), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return tuple(answer for answer in answers if not isinstance(answer, BaseException))


async def forced(documents: WrappedDocuments, change: Change) -> Version | None:
    """Write whatever is there, as a write without a condition does."""
    version: Version | None = None
    while version is None:
        there = await documents.current(change.key)
        if there is None and change.body is None:
            return ""
        (version,) = await documents.inner.save([replace(change, expected=there.version if there else "")])
    return version


def _hash(body: bytes) -> Version:
    return blake2b(body, digest_size=8).hexdigest()


class FirstPacketDocuments(WrappedDocuments):
    """Writes as many bytes as one request takes, and answers as if it had written all."""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Leave out what is behind."""
        sizes = accumulate(len(change.body or b"") for change in changes)
        fitting = [change for change, size in zip(changes, sizes, strict=True) if size <= 8 * self.limits.body]
        answers = await super().save(fitting)
        return (*answers, *("0" * 32 for _ in changes[len(fitting) :]))
