"""Documents in memory that are saved with documents of the application, and break one promise of that port each."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments, save_together
from onceonly.documents.limits import check_writes
from onceonly.formats.partitions import split_key
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite, Version
from onceonly_conformance.suite import steps

Found = Mapping[DocumentAddress, Document]
SLOW = 5
"""Turns of the event loop between two parts of what should be one write."""
ASIDE = "aside/"
"""Documents of the store that are no part of any rule."""


class Bent(MemoryDocuments):
    """What the others are made of."""

    async def now(self, address: DocumentAddress) -> Document | None:
        """Read one document as it is."""
        return (await MemoryDocuments.read(self, "", [address])).get(address)

    async def apply(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write without the checks of limits."""
        arguments = (change, tuple(writes))
        version: Version | None = await self._perform("save_together", save_together, arguments)
        return version

    async def alone(self, write: DocumentWrite) -> bool:
        """Write a document of the application without the store's."""
        change = Change(key=f"{ASIDE}{self._driver.token()}", body=b"{}")
        return await self.apply(change, [write]) is not None

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """Hide what `alone` writes."""
        found = await super().keys(prefix, after=after, limit=limit)
        return tuple(key for key in found if not key.startswith(ASIDE))


class Unable(Bent):
    """It says that it cannot."""

    async def why_not_together(self) -> str:
        """Say so."""
        return "the server has no transactions"


class Partial(Bent):
    """The last document is not written."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Leave it out."""
        return await super().save_together(change, writes[:-1])


class Eager(Bent):
    """The application's documents are written before the version of the store's is compared."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write them first."""
        for write in writes:
            await self.alone(write)
        return await super().save_together(change, ())


class InTurn(Bent):
    """One document is written after the other, up to the first that has another version."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Begin with the store's."""
        version = await super().save_together(change, ())
        for write in writes if version is not None else ():
            await steps(SLOW)
            if not await self.alone(write):
                return None
        return version


class Versionless(Bent):
    """Versions of the application's documents are not compared."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Replace whatever is there."""
        return await super().save_together(change, [replace(write, expected=None) for write in writes])


class Overwriting(Bent):
    """A document that must not exist is replaced if it does."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Take an empty version for none."""
        return await super().save_together(change, [replace(write, expected=write.expected or None) for write in writes])


class Inserting(Bent):
    """A write without a version only creates documents."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Take no version for an empty one."""
        return await super().save_together(change, [replace(write, expected=write.expected or "") for write in writes])


class Merging(Bent):
    """A replacement keeps the fields that the new body does not have."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Merge bodies."""
        merged = []
        for write in writes:
            found = await self.now(write.address)
            if found is not None and write.body is not None:
                body = json.dumps({**json.loads(found.body), **json.loads(write.body)}).encode()
                merged.append(replace(write, body=body))
            else:
                merged.append(write)
        return await super().save_together(change, merged)


class Emptying(Bent):
    """A deleted document stays, as an empty one."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Empty it."""
        return await super().save_together(change, [replace(write, body=write.body or b"{}") for write in writes])


class Quoting(Bent):
    """The versions that it reads are none that it takes."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Put them in quotation marks."""
        found = await super().read(key, addresses)
        return {address: replace(each, version=f'"{each.version}"') for address, each in found.items()}


class Hashing(Bent):
    """A version is the hash of a body, so a body that comes again has the same."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Compute it."""
        found = await super().read(key, addresses)
        return {address: replace(each, version=sha256(each.body).hexdigest()) for address, each in found.items()}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Compare it."""
        compared = []
        for write in writes:
            found = await self.now(write.address)
            is_same = found is not None and sha256(found.body).hexdigest() == write.expected
            compared.append(replace(write, expected=found.version) if found is not None and is_same else write)
        return await super().save_together(change, compared)


class Annotated(Bent):
    """What the service adds is in the bodies that it reads."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Add it."""
        found = await super().read(key, addresses)
        return {at: replace(each, body=_changed(each.body, {"_ts": 1_700_000_000})) for at, each in found.items()}


class Keyed(Bent):
    """Not broken: a document is stored with its key, and read with it."""

    FIELD = "_id"

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Add the key."""
        found = await super().read(key, addresses)
        return {at: replace(each, body=_changed(each.body, self.key_of(at))) for at, each in found.items()}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Leave it out."""
        check_writes(self, change.key, writes)
        return await super().save_together(change, [replace(each, body=self.without(each.body)) for each in writes])

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Refuse another one."""
        found, expected = json.loads(write.body or b"{}"), self.key_of(write.address)
        differs = self.FIELD in found and json.dumps(found[self.FIELD]) != json.dumps(expected[self.FIELD])
        return "its key is another" if differs else super().problem_of(key, write)

    def key_of(self, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the field."""
        return {self.FIELD: address.key[0] if len(address.key) == 1 else list(address.key)}

    def without(self, body: bytes | None) -> bytes | None:
        """Return a body without the field."""
        return body and json.dumps({name: each for name, each in json.loads(body).items() if name != self.FIELD}).encode()


class Keyless(Keyed):
    """A document is read without its key."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Leave it out."""
        found = await super().read(key, addresses)
        return {at: replace(each, body=self.without(each.body) or b"") for at, each in found.items()}


class OneWay(Keyed):
    """It refuses the key fields that it reads."""

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Refuse all."""
        return "leave its key out" if self.FIELD in json.loads(write.body or b"{}") else super().problem_of(key, write)


class Trusting(Keyed):
    """A key field is left out, whatever its value."""

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Do not compare it."""
        return super().problem_of(key, replace(write, body=self.without(write.body)))


class Imprecise(Bent):
    """Its numbers are floats."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Convert the numbers that are whole."""
        found = await super().read(key, addresses)
        floats = {at: json.dumps(json.loads(each.body, parse_int=float)).encode() for at, each in found.items()}
        return {at: replace(each, body=floats[at]) for at, each in found.items()}


class Picky(Bent):
    """It does not take lists, which nobody was told."""

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Refuse them."""
        return "it has a list" if b"[" in (write.body or b"") else super().problem_of(key, write)


class Inventing(Bent):
    """What is missing is read as an empty document."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Invent it."""
        return {address: Document(b"{}", "0") for address in addresses} | dict(await super().read(key, addresses))


class Moving(Bent):
    """Documents are at other addresses, which some of them share."""

    def moved(self, address: DocumentAddress) -> DocumentAddress:
        """Return the address where a document is."""
        raise NotImplementedError

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Read them there."""
        found = await super().read(key, [self.moved(address) for address in addresses])
        return {address: found[self.moved(address)] for address in addresses if self.moved(address) in found}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write them there."""
        return await super().save_together(change, [replace(each, address=self.moved(each.address)) for each in writes])


class Caseless(Moving):
    """Keys that differ in case are one."""

    def moved(self, address: DocumentAddress) -> DocumentAddress:
        """Lower them."""
        return replace(address, key=tuple(part.lower() if isinstance(part, str) else part for part in address.key))


class Joining(Moving):
    """The parts of a key are joined."""

    def moved(self, address: DocumentAddress) -> DocumentAddress:
        """Join them."""
        return replace(address, key=("/".join(map(str, address.key)),))


class Textual(Moving):
    """A number and its digits are one key."""

    def moved(self, address: DocumentAddress) -> DocumentAddress:
        """Write all as texts."""
        return replace(address, key=tuple(map(str, address.key)))


class OneCollection(Moving):
    """All collections are one."""

    def moved(self, address: DocumentAddress) -> DocumentAddress:
        """Leave it out."""
        return replace(address, collection="")


class OtherVersions(Bent):
    """The version that it returns is none that `save` takes."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Return another, and take it again."""
        true = replace(change, expected=change.expected.removeprefix("together:"))
        version = await super().save_together(true, writes)
        return version and f"together:{version}"


class Unconditional(Bent):
    """Without documents of the application it replaces the store's, whatever its version."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Replace it."""
        there = (await self.load([change.key])).get(change.key)
        forced = replace(change, expected=there.version if there else "")
        return await super().save_together(change if writes else forced, writes)


class Mixed(Bent):
    """Its keys are also those of the application's documents."""

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List all, page by page."""
        there = self._driver.part(self.place).application  # type: ignore[attr-defined]  # the driver of the tests
        names = [str(each.address.key[-1]) for each in there if each.body is not None]
        found = sorted([*await super().keys(prefix), *(name for name in names if name.startswith(prefix))])
        return tuple(key for key in found if key > after)[:limit]


class Unlisted(Bent):
    """What it saves is never listed as pending."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Leave that out."""
        return await super().save_together(replace(change, pending_for=(), pending_since=0), writes)


class Unplaced(Bent):
    """A document of the store is found without its partition."""

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read what is there."""
        found = await super().load([split_key(key).key for key in keys])
        return {key: found[split_key(key).key] for key in keys if split_key(key).key in found}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write there."""
        return await super().save([replace(change, key=split_key(change.key).key) for change in changes])

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write there."""
        return await super().save_together(replace(change, key=split_key(change.key).key), writes)


class Partitioned(Bent):
    """Documents of the application are separate in each partition."""

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Read those of the partition."""
        found = await super().read(key, [_within(key, address) for address in addresses])
        return {address: found[_within(key, address)] for address in addresses if _within(key, address) in found}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write to the partition."""
        placed = [replace(each, address=_within(change.key, each.address)) for each in writes]
        return await super().save_together(change, placed)


class Boundless(Bent):
    """It takes what it says that it cannot."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write without checks."""
        return await self.apply(change, writes)


class Halving(Bent):
    """Of too many it writes the first ones, and then refuses the rest."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write those that are allowed."""
        for number, write in enumerate(writes):
            if self.problem_of(change.key, write) or number >= self.max_together:
                await super().save_together(change, writes[:number])
                raise CommitRefused("this and the following documents were not written")
        return await super().save_together(change, writes)


class Undying(Bent):
    """It has no expiry, and refuses what has one."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Refuse it."""
        if any(write.expires for write in writes):
            raise CommitRefused("this service does not delete documents")
        return await super().save_together(change, writes)


class Hasty(Bent):
    """A document that ever had an expiry is gone at once."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Note which."""
        gone = self._driver.__dict__.setdefault("gone", set())
        gone.update(write.address for write in writes if write.expires)
        return await super().save_together(change, writes)

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Found:
        """Leave them out."""
        gone = self._driver.__dict__.setdefault("gone", set())
        return await super().read(key, [address for address in addresses if address not in gone])


class Unlocked(Bent):
    """It compares the versions, and later writes."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Compare all first."""
        for write in writes:
            found = await self.now(write.address)
            if write.expected not in {None, found.version if found else ""}:
                return None
        await steps(SLOW)
        return await super().save_together(change, [replace(write, expected=None) for write in writes])


class Guessing(Bent):
    """Where no version is named it takes the one that it reads, and later compares that."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Read the versions first."""
        guessed = []
        for write in writes:
            found = await self.now(write.address)
            is_named = write.expected is not None
            guessed.append(write if is_named else replace(write, expected=found.version if found else ""))
        await steps(SLOW)
        return await super().save_together(change, guessed)


class Lying(Bent):
    """It reports a write without an answer as refused."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Return None."""
        try:
            return await super().save_together(change, writes)
        except OutcomeUnknown:
            return None


class Optimistic(Bent):
    """It reports a write without an answer as failed."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Raise CommitFailed."""
        try:
            return await super().save_together(change, writes)
        except OutcomeUnknown as error:
            raise CommitFailed("the connection was lost") from error


class Repeating(Bent):
    """It repeats a write without an answer, and then finds a version of its own."""

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write again."""
        try:
            return await super().save_together(change, writes)
        except OutcomeUnknown:
            return await super().save_together(change, writes)


def _changed(body: bytes, added: Mapping[str, Any]) -> bytes:
    return json.dumps({**json.loads(body), **added}).encode()


def _within(key: str, address: DocumentAddress) -> DocumentAddress:
    return replace(address, key=(*split_key(key).values, *address.key))
