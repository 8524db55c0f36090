"""The contract of the SavesTogether port, rule by rule, for documents that are saved with documents of the application."""

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, cast
from unittest import SkipTest

from msgspec.structs import replace

from onceonly.formats.partitions import PartitionValues, PlacedKey, join_key
from onceonly.model.errors import CommitFailed, CommitRefused, LockTimeout, OutcomeUnknown
from onceonly.ports.documents import (
    Change,
    Document,
    DocumentAddress,
    Documents,
    DocumentWrite,
    ListsPending,
    PendingDocument,
    SavesTogether,
    Version,
)
from onceonly_conformance.documents_subject import DocumentsSubject, Moment, every_key
from onceonly_conformance.suite import ENDPOINT, Suite, raises

Key = tuple[str | int, ...]
VALUES: Mapping[str, bytes] = MappingProxyType(
    {
        "texts": '{"text":"köln 東京 🛫 é e\u0301","empty":"","quoted":"\\"\\\\\\n\\t","long":"LONG"}'.replace(
            "LONG", "x" * 5000
        ).encode(),
        "texts like other values": b'{"a":"17","b":"true","c":"null","d":"2026-02-28T23:59:59Z","e":"{}","f":"1.0","g":"AAA="}',
        "texts with a NUL character": b'{"text":"a\\u0000b"}',
        "integers": b'{"zero":0,"minus":-1,"int":2147483648,"large":9007199254740991,"low":-9007199254740991}',
        "integers of 64 bits": b'{"large":9223372036854775807,"odd":-9007199254740993,"low":-9223372036854775808}',
        "integers beyond 64 bits": b'{"large":123456789012345678901234567890}',
        "floats": b'{"tenth":0.1,"third":0.3333333333333333,"minus":-0.5,"small":1.5e-7,"whole":10.0}',
        "extreme floats": b'{"huge":1e300,"tiny":5e-324}',
        "booleans": b'{"yes":true,"no":false}',
        "null": b'{"none":null}',
        "nothing": b"{}",
        "objects": b'{"outer":{"inner":{"number":1,"none":null},"empty":{}}}',
        "lists": b'{"list":[1,"two",[3.5,true,null],{"four":4}],"empty":[]}',
        "names": b'{"a b":1,"a-b":2,"A":3,"a":4,"\xc3\xb6":5}',
        "unusual names": b'{"":1,"a.b":2,"$set":{"$where":"x"},"a/b":3,"1":4}',
        "names of fields of the store": b'{"onceonly":1,"state":2,"version":3,"expires":4,"body":5,"key":6,"pending":7}',
    }
)
"""Documents that come back as they were written. Numbers are equal by value, and the order of names does not count."""
KEYS: tuple[Key, ...] = (
    ("k",),
    ("K",),
    ("é",),
    ("e\u0301",),
    ("東京 🛫",),
    ("a b",),
    ("a.b",),
    ("a-b_c:d",),
    ("7",),
    ("x" * 100,),
)
"""Keys that most services can have."""
FIRST, OTHER = "order/17", "order/18"
SINCE = 1_700_000_000_000
HOUR = 3_600_000


class DocumentsTogether(Documents, SavesTogether, Protocol):
    """Documents with both ports."""


class StoredTogether(NamedTuple):
    """What a new client reads: documents of the store, and of the application."""

    store: dict[str, tuple[Any, Version]]
    application: dict[DocumentAddress, tuple[Any, Version]]


class SavesTogetherSuite(Suite):
    """The additional rules of documents that are saved together with the application's. Override `open_documents`.

    The collections and tables of the application must exist when `open_documents` returns. State what the service can have:

    * `collections()` and `address(number)`: where documents of the application can be. The rules use many of them.
    * `keys`: different keys that documents can have in each of the collections.
    * `partitions`: different partitions. The first is that of all rules. With `separates` documents of the application are
      separate in each of them. Otherwise one address is one document.
    * `equal_versions`: why documents with equal content have equal versions. Empty where each write has a new version.
    * `key_fields(key, address)`: the fields that a read adds to this document next to the store's document with this key: the
      key under the service's own names. Fields inside of an object are in an object. Empty where the service adds none.
    * `cannot_hold`: names of VALUES that the service does not take, with the reason. `problem_of` must refuse them.
    * `refused(documents)`: bodies that `problem_of` refuses.

    `rounds` is the number of attempts for rules that depend on timing. `lapse` is a time to expiry in milliseconds, as in the
    DocumentsSuite.
    """

    rounds: ClassVar[int] = 20
    lapse: ClassVar[int] = 1500
    keys: ClassVar[tuple[Key, ...]] = KEYS
    partitions: ClassVar[tuple[PartitionValues, ...]] = (("acme",), ("Acme",), ("7",), (7,))
    separates: ClassVar[bool] = False
    equal_versions: ClassVar[str] = ""
    cannot_hold: ClassVar[Mapping[str, str]] = {}

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    def collections(self) -> Sequence[str]:
        """Return the collections that documents of the application can be in."""
        return ("",)

    def address(self, number: int) -> DocumentAddress:
        """Return an address of its own for each number, in every collection in turn."""
        names = self.collections()
        return DocumentAddress(names[number % len(names)], (f"receipt-{number}",))

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the key fields of a document, which a read adds."""
        return {}

    def refused(self, documents: Documents) -> Sequence[bytes]:
        """Return bodies that the service never takes, such as one that is too large."""
        return (b'{"text":"%s"}' % (b"x" * (2 * documents.limits.body)),)

    def key(self, name: str = FIRST, partition: int = 0) -> str:
        """Return the key of a document of the store in one of the partitions."""
        return join_key(PlacedKey(self.partitions[partition], f"entity/{name}"))

    # What is written

    async def test_a_good_place_can_write_together(self) -> None:
        """`why_not_together` returns an empty string for a place that was created for it."""
        async with self.open_documents() as subject:
            documents = await _open(subject)
            assert await documents.why_not_together() == ""
            assert documents.max_together >= 1

    async def test_all_are_written(self) -> None:
        """A success returns the version of the store's document, and every document is there."""
        async with self.open_documents() as subject:
            writes = [_put(self.address(number), number) for number in range(5)]
            version = await self._save(subject, _change(self.key()), *writes)
            seen = await self._look(subject)
            assert seen.store == {self.key(): ({"n": 0}, version)}
            assert {at: body for at, (body, _) in seen.application.items()} == {
                each.address: _read(each.body) for each in writes
            }

    async def test_a_stale_document_of_the_store_writes_nothing(self) -> None:
        """Whether it was changed, deleted, or must not exist and does. The answer is None."""
        async with self.open_documents() as subject:
            old = await self._save(subject, _change(self.key()))
            current = await self._save(subject, _change(self.key(), 1, expected=old))
            gone = await self._save(subject, _change(self.key(OTHER)))
            await self._save(subject, Change(key=self.key(OTHER), body=None, expected=gone), deletes=True)
            writes = await self._good_writes(subject, current)
            before = await self._look(subject)
            stale = [_change(self.key(), 2, expected=old), _change(self.key(), 2), _change(self.key(OTHER), 2, expected=gone)]
            for change in stale:
                assert await (await _open(subject)).save_together(change, writes) is None
                assert await self._look(subject) == before

    async def test_a_stale_document_of_the_application_writes_nothing(self) -> None:
        """Whether it was changed, deleted, or deleted and created again, at each position among the writes."""
        async with self.open_documents() as subject:
            changed, deleted, again = (self.address(number) for number in (10, 11, 12))
            version, old = await self._three(subject, changed, deleted, again)
            stale = [
                DocumentWrite(address=address, body=body, expected=old[address])
                for address in (changed, deleted, again)
                for body in (b'{"n":9}', None)
            ]
            await self._refused_anywhere(subject, version, stale)

    async def test_a_document_of_the_application_that_must_not_exist_writes_nothing(self) -> None:
        """If it does, nothing is written, at each position among the writes."""
        async with self.open_documents() as subject:
            there = self.address(10)
            version = await self._save(subject, _change(self.key()), _put(there, 1))
            await self._refused_anywhere(subject, version, [_put(there, 2, expected="")])

    async def test_an_unconditional_write_creates_and_replaces(self) -> None:
        """Whatever is there: nothing, a document, one that was changed since, or a deleted one."""
        async with self.open_documents() as subject:
            address, version = self.address(0), ""
            for number in range(3):
                version = await self._save(subject, _change(self.key(), expected=version), _put(address, number))
                assert (await self._look(subject)).application[address][0] == {"n": number}
            found = (await self._look(subject)).application[address][1]
            delete = DocumentWrite(address=address, body=None, expected=found)
            version = await self._save(subject, _change(self.key(), expected=version), delete)
            await self._save(subject, _change(self.key(), expected=version), _put(address, 4))
            assert (await self._look(subject)).application[address][0] == {"n": 4}

    async def test_a_replacement_leaves_nothing_of_the_document_before(self) -> None:
        """A field that the new body does not have is gone, with a version and without."""
        async with self.open_documents() as subject:
            address, version = self.address(0), ""
            for is_conditional in (True, False):
                write = DocumentWrite(address=address, body=b'{"a":1,"b":2}')
                version = await self._save(subject, _change(self.key(), expected=version), write)
                expected = (await self._look(subject)).application[address][1] if is_conditional else None
                write = DocumentWrite(address=address, body=b'{"a":3}', expected=expected)
                version = await self._save(subject, _change(self.key(), expected=version), write)
                assert (await self._look(subject)).application[address][0] == {"a": 3}

    async def test_a_document_is_created_if_it_is_missing(self) -> None:
        """With an empty `expected`, also again after it was deleted."""
        async with self.open_documents() as subject:
            address, version = self.address(0), ""
            for number in range(3):
                write = _put(address, number, expected="")
                version = await self._save(subject, _change(self.key(), expected=version), write)
                body, found = (await self._look(subject)).application[address]
                assert body == {"n": number}
                delete = DocumentWrite(address=address, body=None, expected=found)
                version = await self._save(subject, _change(self.key(), expected=version), delete)

    async def test_a_document_is_replaced_by_its_version(self) -> None:
        """Each version that was read serves for the next write."""
        async with self.open_documents() as subject:
            address, version, found = self.address(0), "", ""
            for number in range(4):
                write = _put(address, number, expected=found)
                version = await self._save(subject, _change(self.key(), expected=version), write)
                body, found = (await self._look(subject)).application[address]
                assert body == {"n": number}

    async def test_a_document_is_deleted_by_its_version(self) -> None:
        """It is read no longer. The others stay."""
        async with self.open_documents() as subject:
            address, other = self.address(0), self.address(1)
            version = await self._save(subject, _change(self.key()), _put(address), _put(other))
            before = await self._look(subject)
            delete = DocumentWrite(address=address, body=None, expected=before.application[address][1])
            version = await self._save(subject, _change(self.key(), 1, expected=version), delete)
            seen = await self._look(subject)
            assert seen.application == {other: before.application[other]}
            assert seen.store == {self.key(): ({"n": 1}, version)}

    async def test_versions_never_repeat(self) -> None:
        """Each write has a new one: of the same body, without a version, and after the document was deleted.

        With `equal_versions` each write of another body has.
        """
        async with self.open_documents() as subject:
            address, version = self.address(0), ""
            stores, versions = [version], [""]
            for number in range(9):
                is_deleted = number % 3 == 2
                expected = (None, versions[-1])[number % 2] if not is_deleted else versions[-1]
                body = b'{"n":%d}' % (number if self.equal_versions else 1)
                write = DocumentWrite(address=address, body=None if is_deleted else body, expected=expected)
                version = await self._save(subject, _change(self.key(), expected=version), write)
                stores.append(version)
                found = (await self._look(subject)).application.get(address)
                versions.append(found[1] if found else "")
            written = [each for each in versions if each]
            assert len(written) == len(set(written)) == 6, f"the versions are {versions}"
            assert len(stores) == len(set(stores))

    # What is read

    async def test_a_document_comes_back(self) -> None:
        """Exactly the object that was written, with its key fields and nothing else that the service adds.

        What it cannot hold is refused.
        """
        async with self.open_documents() as subject:
            documents, wrong = await _open(subject), []
            for number, (name, body) in enumerate(VALUES.items()):
                write = DocumentWrite(address=self.address(number), body=body)
                key = self.key(f"order/{number}")
                assert bool(documents.problem_of(key, write)) is (name in self.cannot_hold), (
                    f"`problem_of` returned {documents.problem_of(key, write)!r} for {name}; `cannot_hold` says otherwise"
                )
                if name in self.cannot_hold:
                    continue
                await self._save(subject, _change(key), write)
                found = (await (await _open(subject)).read(key, [write.address])).get(write.address)
                if found is None or not _equal(self._plain(key, write.address, found.body), _read(body)):
                    wrong.append((name, body, found))
            assert wrong == []

    async def test_a_document_that_was_read_can_be_put_back(self) -> None:
        """With its version and without, as it is. Then it is read as before, so it has no second copy of its key."""
        async with self.open_documents() as subject:
            documents, version, key = await _open(subject), "", self.key()
            addresses = [DocumentAddress(name, parts) for name in self.collections() for parts in self.keys]
            for start in range(0, len(addresses), documents.max_together):
                some = addresses[start : start + documents.max_together]
                version = await self._save(subject, _change(key, expected=version), *map(_put, some))
                before = await documents.read(key, some)
                for is_conditional in (True, False):
                    found = await documents.read(key, some)
                    writes = [
                        DocumentWrite(address=at, body=each.body, expected=each.version if is_conditional else None)
                        for at, each in found.items()
                    ]
                    problems = {each.address: documents.problem_of(key, each) for each in writes}
                    assert not any(problems.values()), f"what was read is refused: {problems}"
                    version = await self._save(subject, _change(key, expected=version), *writes)
                after = await documents.read(key, some)
                read = {address: _read(each.body) for address, each in after.items()}
                assert read == {address: _read(each.body) for address, each in before.items()}
                assert read.keys() == set(some)
                assert not self.equal_versions or dict(after) == dict(before), "equal contents have different versions"

    async def test_a_key_field_that_differs_from_the_key_is_refused(self) -> None:
        """By `problem_of` once the collection was used, and in any case by `save_together`. Nothing is written then."""
        async with self.open_documents() as subject:
            key, addresses = self.key(), [self.address(number) for number in range(len(self.collections()))]
            fields = {address: found for address in addresses if (found := self.key_fields(key, address))}
            if not fields:
                raise SkipTest("documents of this service have no key fields")
            version = await self._save(subject, _change(key), *map(_put, addresses))
            documents, before = await _open(subject), await self._look(subject)
            await documents.read(key, addresses)
            for address, found in fields.items():
                for body in _with_others(found):
                    write = DocumentWrite(address=address, body=json.dumps({"n": 9, **body}).encode())
                    assert documents.problem_of(key, write), f"`problem_of` returned nothing for {body}"
                    for client in (documents, await _open(subject)):
                        async with raises(CommitRefused):
                            await client.save_together(_change(key, 9, expected=version), [write])
                    assert await self._look(subject) == before

    async def test_missing_documents_are_left_out(self) -> None:
        """A read of several returns those that exist. One of none returns nothing."""
        async with self.open_documents() as subject:
            await self._save(subject, _change(self.key()), _put(self.address(0)), _put(self.address(2)))
            documents = await _open(subject)
            addresses = [self.address(number) for number in range(4)]
            assert set(await documents.read(self.key(), addresses)) == {self.address(0), self.address(2)}
            assert dict(await documents.read(self.key(), [self.address(1)])) == {}
            assert dict(await documents.read(self.key(), [])) == {}

    async def test_addresses_are_exact(self) -> None:
        """Similar keys, and equal keys of different collections, are separate documents."""
        async with self.open_documents() as subject:
            addresses = [DocumentAddress(name, key) for name in self.collections() for key in self.keys]
            version = ""
            for number, address in enumerate(addresses):
                version = await self._save(subject, _change(self.key(), expected=version), _put(address, number, expected=""))
            found = await (await _open(subject)).read(self.key(), addresses)
            read = {address: self._plain(self.key(), address, document.body) for address, document in found.items()}
            assert read == {address: {"n": number} for number, address in enumerate(addresses)}

    # Next to the store's documents

    async def test_the_store_loads_what_was_written_together(self) -> None:
        """`load` and `save` have the same versions: each write of one kind is the base of the next of the other."""
        async with self.open_documents() as subject:
            version = await self._save(subject, _change(self.key()), _put(self.address(0)))
            documents = await _open(subject)
            (saved,) = await documents.save([_change(self.key(), 1, expected=version)])
            assert saved
            assert (await documents.save([_change(self.key(), 2, expected=version)])) == (None,)
            version = await self._save(subject, _change(self.key(), 3, expected=saved), _put(self.address(0), 3))
            assert (await self._look(subject)).store == {self.key(): ({"n": 3}, version)}
            assert (await documents.save([_change(self.key(), 4, expected=saved)])) == (None,)

    async def test_without_writes_the_document_is_saved_alone(self) -> None:
        """It is inserted, replaced, refused for its version and for its size, and deleted, as by `save`."""
        async with self.open_documents() as subject:
            documents = await _open(subject)
            version = await self._save(subject, _change(self.key()))
            assert await documents.save_together(_change(self.key(), 1), ()) is None
            changed = await self._save(subject, _change(self.key(), 2, expected=version))
            assert await documents.save_together(_change(self.key(), 3, expected=version), ()) is None
            async with raises(CommitRefused):
                await documents.save_together(Change(key=self.key(OTHER), body=b"x" * (documents.limits.body + 1)), ())
            assert (await self._look(subject)).store == {self.key(): ({"n": 2}, changed)}
            await documents.save_together(Change(key=self.key(), body=None, expected=changed), ())
            assert (await self._look(subject)).store == {}

    async def test_documents_of_the_application_are_not_the_stores(self) -> None:
        """`keys` does not list them, and `load` does not find them, not even by the same key."""
        async with self.open_documents() as subject:
            written = [self.address(number) for number in range(3)]
            await self._save(subject, _change(self.key()), *map(_put, written))
            documents = await _open(subject)
            names = [str(each.key[-1]) for each in written]
            assert dict(await documents.load(names)) == {}
            assert [key for key in await every_key(documents) if key != self.key()] == []

    async def test_a_document_that_is_saved_together_is_listed_as_pending(self) -> None:
        """Where pending documents are listed, as by `save`: with the endpoint, and later without it."""
        async with self.open_documents() as subject:
            documents = await _open(subject)
            if not isinstance(documents, ListsPending):
                raise SkipTest("these documents do not list what is pending")
            change = replace(_change(self.key()), pending_for=(ENDPOINT,), pending_since=SINCE)
            version = await self._save(subject, change, _put(self.address(0)))
            await self._listed(subject, documents, (PendingDocument(self.key(), SINCE),))
            await self._save(subject, _change(self.key(), expected=version), _put(self.address(0)))
            await self._listed(subject, documents, ())

    async def test_documents_of_partitions_are_separate(self) -> None:
        """The store's in each partition, and in none. The application's too where the service has partitions."""
        async with self.open_documents() as subject:
            documents, address = await _open(subject), self.address(0)
            stored = [self.key(partition=number) for number in range(len(self.partitions))]
            for number, key in enumerate(stored):
                await self._save(subject, _change(key, number), _put(address, number))
            (outside,) = await documents.save([_change(f"entity/{FIRST}", -1)])
            assert outside, "a document outside of partitions was taken for one of a partition"
            found = await (await _open(subject)).load([*stored, f"entity/{FIRST}"])
            read = [_read(found[key].body)["n"] for key in stored]
            assert read == [*range(len(stored))]
            assert _read(found[f"entity/{FIRST}"].body) == {"n": -1}
            last = len(stored) - 1
            seen = [_read((await (await _open(subject)).read(key, [address]))[address].body)["n"] for key in stored]
            assert seen == ([*range(len(stored))] if self.separates else [last] * len(stored))

    # Limits and expiry

    async def test_as_many_as_promised_are_written(self) -> None:
        """`max_together` documents at once. One more is refused with CommitRefused, and nothing is written."""
        async with self.open_documents() as subject:
            documents = await _open(subject)
            writes = [_put(self.address(number), number) for number in range(documents.max_together + 1)]
            async with raises(CommitRefused):
                await documents.save_together(_change(self.key()), writes)
            assert await self._look(subject) == StoredTogether({}, {})
            await self._save(subject, _change(self.key()), *writes[:-1])
            found = await (await _open(subject)).read(self.key(), [each.address for each in writes])
            read = {at: self._plain(self.key(), at, each.body) for at, each in found.items()}
            assert read == {each.address: _read(each.body) for each in writes[:-1]}

    async def test_a_document_that_the_service_never_takes_is_refused(self) -> None:
        """`problem_of` says why. Anyway `save_together` raises CommitRefused at each position, and nothing is written."""
        async with self.open_documents() as subject:
            documents = await _open(subject)
            good = [_put(self.address(number), number) for number in range(2)]
            assert [documents.problem_of(self.key(), each) for each in good] == ["", ""]
            bodies = [*self.refused(documents), *(VALUES[name] for name in self.cannot_hold)]
            assert bodies
            for number, body in enumerate(bodies):
                write = DocumentWrite(address=self.address(5), body=body)
                assert documents.problem_of(self.key(), write), f"`problem_of` returned nothing for {body[:80]!r}"
                position = number % 3
                async with raises(CommitRefused):
                    await documents.save_together(_change(self.key()), [*good[:position], write, *good[position:]])
                assert await self._look(subject) == StoredTogether({}, {})

    async def test_an_expiry_is_accepted(self) -> None:
        """A document stays until its expiry, and for ever if its expiry was removed."""
        async with self.open_documents() as subject:
            soon = subject.now() + self.lapse
            removed, later, never = (self.address(number) for number in range(3))
            writes = [
                DocumentWrite(address=removed, body=b'{"n":0}', expires=soon),
                DocumentWrite(address=later, body=b'{"n":0}', expires=soon + HOUR),
                _put(never),
            ]
            version = await self._save(subject, _change(self.key()), *writes)
            await self._save(subject, _change(self.key(), expected=version), _put(removed))
            await subject.pass_time(self.lapse * 6 // 5)
            seen = (await self._look(subject)).application
            # Some services show an expiry as a field.
            assert {address: body["n"] for address, (body, _) in seen.items()} == dict.fromkeys((removed, later, never), 0)

    # Several writers

    async def test_one_of_two_writers_wins(self) -> None:
        """Two that saw the same document of the application: one is written with its own document, the other not at all."""
        async with self.open_documents() as subject:
            address, won = self.address(0), 0
            for number in range(self.rounds):
                found = (await self._look(subject)).application.get(address)
                keys = [self.key(f"order/{number}/{writer}") for writer in range(2)]
                writes = [_put(address, 10 * number + writer, expected=found[1] if found else "") for writer in range(2)]
                answers = await self._race(subject, [(_change(key), [write]) for key, write in zip(keys, writes, strict=True)])
                winners = [writer for writer, answer in enumerate(answers) if isinstance(answer, str)]
                won += len(winners)
                is_failed = any(isinstance(answer, CommitFailed | LockTimeout) for answer in answers)
                assert len(winners) == 1 or (not winners and is_failed), f"two writers received {answers}"
                assert set(await (await _open(subject)).load(keys)) == {keys[writer] for writer in winners}
                if winners:
                    seen = (await self._look(subject)).application[address]
                    assert seen[0] == {"n": 10 * number + winners[0]}
            assert won, "no writer ever succeeded"

    async def test_a_writer_that_loses_its_own_document_writes_no_other(self) -> None:
        """Two that saw the same document of the store: the documents of the loser are not written."""
        async with self.open_documents() as subject:
            for number in range(self.rounds):
                key = self.key(f"order/{number}")
                addresses = [self.address(10 + 2 * number + writer) for writer in range(2)]
                answers = await self._race(subject, [(_change(key, 1), [_put(address)]) for address in addresses])
                winners = {at for at, answer in zip(addresses, answers, strict=True) if isinstance(answer, str)}
                assert len(winners) <= 1, f"two writers received {answers}"
                assert set(await (await _open(subject)).read(key, addresses)) == winners

    async def test_no_increment_is_lost(self) -> None:
        """Writers that increment one document by its version, each with a document of its own, leave the sum."""
        async with self.open_documents() as subject:
            address, writers, times = self.address(0), 3, max(2, self.rounds // 4)
            await asyncio.gather(*(self._add(subject, address, f"order/{writer}", times) for writer in range(writers)))
            assert (await self._look(subject)).application[address][0] == {"n": writers * times}

    async def test_a_write_without_a_version_is_never_refused_for_one(self) -> None:
        """Writers of one document that name no version may have to try again, but none receives None."""
        async with self.open_documents() as subject:
            for number in range(self.rounds):
                pairs = [
                    (_change(self.key(f"order/{number}/{writer}")), [_put(self.address(0), writer)]) for writer in range(3)
                ]
                answers = await self._race(subject, pairs)
                assert None not in answers, "a write without a version was refused for its version"

    async def test_no_half_is_ever_seen(self) -> None:
        """Who sees one of the documents as it was written also sees the others, while they are written."""
        async with self.open_documents() as subject:
            addresses, done = [self.address(number) for number in range(2)], asyncio.Event()
            order = (addresses[0], None, addresses[1], addresses[0], None)
            seen: list[list[int]] = []

            async def write() -> None:
                documents, version = await _open(subject), ""
                try:
                    for number in range(self.rounds):
                        writes = [_put(address, number) for address in addresses]
                        version = await documents.save_together(_change(self.key(), number, expected=version), writes) or ""
                        assert version
                finally:
                    done.set()

            async def read() -> None:
                documents = await _open(subject)
                while not done.is_set():
                    seen.append([await self._number(documents, each) for each in order])

            await asyncio.gather(write(), read())
            assert [each for each in seen if each != sorted(each)] == [], "a part of a write was seen without the rest"

    # Answers that are lost

    async def test_a_write_whose_answer_is_lost_is_whole(self) -> None:
        """Either all of it or nothing is written, and the error says no more than is known."""
        async with self.open_documents() as subject:
            await self._cut(subject, "after")

    async def test_a_write_that_never_arrived_is_nothing(self) -> None:
        """It raises CommitFailed or OutcomeUnknown, and is not reported as refused."""
        async with self.open_documents() as subject:
            await self._cut(subject, "before")

    async def _cut(self, subject: DocumentsSubject, moment: Moment) -> None:
        version = await self._save(subject, _change(self.key()), _put(self.address(0)), _put(self.address(1)))
        before = await self._look(subject)
        documents = _together(await subject.cut(moment))
        writes = [
            _put(self.address(0), 7),
            _put(self.address(2), 7, expected=""),
            DocumentWrite(address=self.address(1), body=None, expected=before.application[self.address(1)][1]),
        ]
        answer: object = None
        try:
            answer = await documents.save_together(_change(self.key(), 7, expected=version), writes)
        except (CommitFailed, OutcomeUnknown) as error:
            answer = error
        after = await self._look(subject)
        bodies: dict[Any, Any] = {key: body for key, (body, _) in (*after.store.items(), *after.application.items())}
        is_whole = bodies == {self.key(): {"n": 7}, self.address(0): {"n": 7}, self.address(2): {"n": 7}}
        assert is_whole or after == before, f"a part was written: {after}"
        assert answer is not None, "it was reported as refused for a version"
        assert not (isinstance(answer, CommitFailed) and is_whole), "it was reported as failed, but was written"
        assert not isinstance(answer, str) or after.store[self.key()][1] == answer
        assert moment == "after" or not is_whole or isinstance(answer, str)

    async def _save(self, subject: DocumentsSubject, change: Change, *writes: DocumentWrite, deletes: bool = False) -> Version:
        """Save with a new client, and expect success. Returns the new version of the store's document."""
        version = await (await _open(subject)).save_together(change, writes)
        assert version is not None, f"the write of {change.key!r} with {len(writes)} documents was refused"
        assert version or deletes, "the version of a document is empty"
        return version

    async def _look(self, subject: DocumentsSubject, *, most: int = 16) -> StoredTogether:
        """Read what the rules write, with a new client."""
        documents = await _open(subject)
        store = await documents.load([self.key(), self.key(OTHER)])
        found = await documents.read(self.key(), [self.address(number) for number in range(most)])
        application = {at: (self._plain(self.key(), at, each.body), each.version) for at, each in found.items()}
        return StoredTogether(_contents(store), application)

    def _plain(self, key: str, address: DocumentAddress, body: bytes) -> Any:
        """Return a document that was read without its key fields, after they were compared with the key."""
        return _without(_read(body), self.key_fields(key, address), address)

    async def _good_writes(self, subject: DocumentsSubject, version: Version) -> list[DocumentWrite]:
        """Prepare documents and return writes of each kind that would succeed."""
        there = [_put(self.address(number)) for number in (1, 2, 3)]
        await self._save(subject, _change(self.key("order/prepared")), *there)
        found = (await self._look(subject)).application
        assert version
        return [
            _put(self.address(0), 5, expected=""),
            _put(self.address(1), 5, expected=found[self.address(1)][1]),
            _put(self.address(2), 5),
            DocumentWrite(address=self.address(3), body=None, expected=found[self.address(3)][1]),
        ]

    async def _three(
        self, subject: DocumentsSubject, changed: DocumentAddress, deleted: DocumentAddress, again: DocumentAddress
    ) -> tuple[Version, dict[DocumentAddress, Version]]:
        """Change, delete, and delete and create documents. Returns the store's version, and the versions before."""
        addresses = (changed, deleted, again)
        version = await self._save(subject, _change(self.key()), *map(_put, addresses))
        old = {address: found for address, (_, found) in (await self._look(subject)).application.items()}
        writes = [
            _put(changed, 1),
            *(DocumentWrite(address=each, body=None, expected=old[each]) for each in (deleted, again)),
        ]
        version = await self._save(subject, _change(self.key(), expected=version), *writes)
        created = _put(again, 1 if self.equal_versions else 0, expected="")
        return await self._save(subject, _change(self.key(), expected=version), created), old

    async def _refused_anywhere(self, subject: DocumentsSubject, version: Version, refused: Sequence[DocumentWrite]) -> None:
        """Check that each of these writes, at each position, refuses all. Without them the others succeed."""
        good = await self._good_writes(subject, version)
        before = await self._look(subject)
        change = _change(self.key(), 5, expected=version)
        for bad in refused:
            for position in range(len(good) + 1):
                writes = [*good[:position], bad, *good[position:]]
                answer = await (await _open(subject)).save_together(change, writes)
                assert answer is None, f"the answer to a stale write at position {position} is {answer!r}"
                assert await self._look(subject) == before, f"a stale write at position {position} left a part of the others"
        await self._save(subject, change, *good)

    async def _race(
        self, subject: DocumentsSubject, pairs: Sequence[tuple[Change, list[DocumentWrite]]]
    ) -> list[Version | CommitFailed | LockTimeout | None]:
        """Save each with its own client, all at once. Returns the answers; a write that was not made is an error."""
        clients = [await _open(subject) for _ in pairs]
        calls = (each.save_together(change, writes) for each, (change, writes) in zip(clients, pairs, strict=True))
        answers: list[Version | CommitFailed | LockTimeout | None] = []
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, CommitFailed | LockTimeout):
                raise answer
            answers.append(answer)
        return answers

    async def _add(self, subject: DocumentsSubject, address: DocumentAddress, name: str, times: int) -> None:
        documents, key = await _open(subject), self.key(name)
        version, done = "", 0
        async with asyncio.timeout(self.patience):
            while done < times:
                found = (await documents.read(key, [address])).get(address)
                count = _read(found.body)["n"] if found else 0
                write = _put(address, count + 1, expected=found.version if found else "")
                with suppress(CommitFailed, LockTimeout):  # two were in each other's way, and nothing happened
                    answer = await documents.save_together(_change(key, done, expected=version), [write])
                    version, done = (version, done) if answer is None else (answer, done + 1)

    async def _number(self, documents: DocumentsTogether, address: DocumentAddress | None) -> int:
        """Read the number in a document of the application, or in the store's. -1 if it is missing."""
        found: Collection[Document]
        if address is None:
            found = (await documents.load([self.key()])).values()
        else:
            found = (await documents.read(self.key(), [address])).values()
        return next((_read(each.body)["n"] for each in found), -1)

    async def _listed(self, subject: DocumentsSubject, documents: ListsPending, expected: tuple[PendingDocument, ...]) -> None:
        found: tuple[PendingDocument, ...] = ()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while (found := await documents.pending(ENDPOINT, SINCE + 1)) != expected:
                    await subject.pass_time(100)
                    await asyncio.sleep(0)
        assert found == expected


async def _open(subject: DocumentsSubject) -> DocumentsTogether:
    return _together(await subject.documents())


def _together(documents: Documents) -> DocumentsTogether:
    assert isinstance(documents, SavesTogether), "these documents cannot be saved together with the application's"
    return cast("DocumentsTogether", documents)


def _change(key: str, number: int = 0, *, expected: Version = "") -> Change:
    return Change(key=key, body=b'{"n":%d}' % number, expected=expected)


def _put(address: DocumentAddress, number: int = 0, *, expected: Version | None = None) -> DocumentWrite:
    return DocumentWrite(address=address, body=b'{"n":%d}' % number, expected=expected)


def _read(body: bytes | None) -> Any:
    return None if body is None else json.loads(body)


def _without(document: Any, fields: Mapping[str, Any], address: DocumentAddress) -> Any:
    left = dict(document)
    for name, value in fields.items():
        found = left.pop(name, None)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            if inner := _without(found, value, address):
                left[name] = inner
        else:
            assert _equal(found, value), f"document {address.key!r} was read with {name}={found!r}, and its key is {value!r}"
    return left


def _with_others(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return these fields, one of them with another value each time: another one of its type, and of others."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            others: Iterable[Any] = _with_others(value)
        else:
            others = (f"{value}x", f"{value}".upper(), 18, None, True, [value])
        for other in others:
            if not _equal(other, value):
                yield {**fields, name: other}


def _contents(found: Mapping[Any, Document]) -> dict[Any, tuple[Any, Version]]:
    return {key: (_read(document.body), document.version) for key, document in found.items()}


def _equal(one: Any, other: Any) -> bool:
    """Compare JSON: numbers by value, and never a boolean with a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
