"""The contract of the Documents port, rule by rule. Every check uses another client than the write."""

import asyncio
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import ClassVar

from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change
from onceonly_conformance.documents_subject import (
    KEY,
    OTHER_KEY,
    DocumentsSubject,
    add_one,
    bodies,
    clients,
    cut_off,
    every_key,
    listed,
    look,
    put,
    race,
    same,
    save,
    stored_document,
    write_at_random,
)
from onceonly_conformance.samples import EVERY_BYTE
from onceonly_conformance.suite import Suite, raises

JSON_BODIES = (
    b"{}",
    b'{"records":{},"state":{"total":1,"name":"k\xc3\xb6ln \xf0\x9f\x9b\xab","list":[1,2,[]],"none":null,"yes":true}}',
    b'{"id":"mine","_id":7,"_etag":"mine","_ts":0,"PartitionKey":"p","version":"v","body":"b","expires":1,"key":"k"}',
    b'{"":1,"a.b":2,"$set":{"$where":"x"},"a/b":3,"a b":4,"\\u0000":5}',
    b'{"big":9007199254740993,"bigger":18446744073709551616,"long":123456789012345678901234567890,"less":-9223372036854775809}',
    b'{"tenth":0.1,"one":1.0,"tiny":5e-324,"huge":1.7976931348623157e308,"minus":-0.5}',
    b'{"until":1700000000000}',
    b'{"one":1,"day":86400000,"int":2147483647,"uint":2147483648,"low":-2147483649,"exact":9007199254740991}',
    b'{"odd":-9007199254740993,"long":9223372036854775807,"least":-9223372036854775808,"more":9223372036854775808}',
    b'{"huge":1e300,"tenth":0.1,"third":0.3333333333333333,"minus":-1e-300}',
    b'{"whole":1.0,"nought":0.0,"minus":-0.0,"million":1000000.0,"exact":9007199254740992.0,"large":1e22}',
    b'{"a":[1700000000000,[-2147483649,{"b":9007199254740991}]],"c":{"d":{"e":[0.1,4294967296]}}}',
    b'{"a":[1.0,{"b":[9223372036854775807,1e300]}]}',
    b'{"half":"\\ud800","zero":"\\u0000","quoted":"\\"\\\\"}',
    b"[]",
    b'[{"a":1}]',
    b'"text"',
    b"17",
    b"null",
)
LARGE_BYTES, LARGE = 1 << 20, 9
"""The size of a large document, unless the service takes less, and how many of them one `save` writes."""
OTHER_BODIES = (b"", b"\0", b" ", b"\n", EVERY_BYTE, b"\xff\xfe", b'{"open":', "köln".encode(), b"x" * 70_000, EVERY_BYTE * 300)

ODD_KEYS = (
    "k",
    "K",
    "é",
    "e\u0301",
    "köln/№ 7 δ",
    "東京 🛫",
    " ",
    " k",
    "k ",
    "k/",
    "/k",
    "//k",
    "k/./l",
    "k/../l",
    ".",
    "..",
    "k\\l",
    "#?%&=+",
    "%2F",
    "%",
    "_",
    "*",
    "[k]",
    "{k}",
    "'k'",
    '"k"',
    "`k`",
    "k;l",
    "k:l",
    "k|l",
    "k,l",
    "<k>",
    "$k",
    "k\0l",
    "k\tl",
    "k\nl",
    "k\x7fl",
    "k\u0085l",
    "k\u2028l",
    "0",
    "null",
    "\U0010ffff",
)


class DocumentsSuite(Suite):
    """The rules of documents. Override `open_documents`.

    `rounds` is the number of attempts for rules that depend on timing. `lapse` is a time to expiry in milliseconds. A rule
    removes the expiry and then waits for that time. A service that never deletes within seconds may set a short one.
    """

    rounds: ClassVar[int] = 20
    many: ClassVar[int] = 250
    lapse: ClassVar[int] = 5_000

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    # One document

    async def test_a_missing_document_is_left_out(self) -> None:
        """`load` skips missing documents without an error, and returns the others."""
        async with self.open_documents() as subject:
            assert await bodies(subject, KEY) == {}
            await put(subject)
            assert await bodies(subject, OTHER_KEY, KEY) == {KEY: b"first"}

    async def test_a_new_document_is_inserted(self) -> None:
        """`save` returns the version that `load` reads."""
        async with self.open_documents() as subject:
            version = await put(subject)
            assert await stored_document(subject) == (b"first", version)

    async def test_an_insert_over_a_document_is_refused(self) -> None:
        """An insert of an existing key is refused, even with an equal body, and changes nothing."""
        async with self.open_documents() as subject:
            version = await put(subject)
            for body in (b"second", b"first"):
                assert await save(subject, Change(key=KEY, body=body)) == (None,)
            assert await stored_document(subject) == (b"first", version)

    async def test_a_document_is_replaced_at_its_version(self) -> None:
        """A replacement at the current version succeeds. `save` returns the new version that `load` reads."""
        async with self.open_documents() as subject:
            first = await put(subject)
            (second,) = await save(subject, Change(key=KEY, body=b"second", expected=first))
            assert await stored_document(subject) == (b"second", second)
            assert second not in ("", first)

    async def test_a_replace_at_an_old_version_is_refused(self) -> None:
        """A refused replacement changes nothing."""
        async with self.open_documents() as subject:
            first = await put(subject)
            (second,) = await save(subject, Change(key=KEY, body=b"second", expected=first))
            assert await save(subject, Change(key=KEY, body=b"third", expected=first)) == (None,)
            assert await stored_document(subject) == (b"second", second)

    async def test_a_replace_of_a_deleted_document_is_refused(self) -> None:
        """A replacement does not restore a deleted document."""
        async with self.open_documents() as subject:
            version = await put(subject)
            await save(subject, Change(key=KEY, body=None, expected=version))
            assert await save(subject, Change(key=KEY, body=b"second", expected=version)) == (None,)
            assert await bodies(subject, KEY) == {}

    async def test_a_document_is_deleted_at_its_version(self) -> None:
        """A successful delete returns an empty version, and keeps the other documents."""
        async with self.open_documents() as subject:
            version = await put(subject)
            await put(subject, OTHER_KEY)
            assert await save(subject, Change(key=KEY, body=None, expected=version)) == ("",)
            assert await bodies(subject, KEY, OTHER_KEY) == {OTHER_KEY: b"first"}

    async def test_a_delete_at_an_old_version_is_refused(self) -> None:
        """A refused delete changes nothing."""
        async with self.open_documents() as subject:
            first = await put(subject)
            await save(subject, Change(key=KEY, body=b"second", expected=first))
            assert await save(subject, Change(key=KEY, body=None, expected=first)) == (None,)
            assert await bodies(subject, KEY) == {KEY: b"second"}

    async def test_a_delete_of_a_deleted_document_is_refused(self) -> None:
        """A second delete at the same version is refused, because it did not delete the document."""
        async with self.open_documents() as subject:
            version = await put(subject)
            gone = Change(key=KEY, body=None, expected=version)
            assert await save(subject, gone) == ("",)
            assert await save(subject, gone) == (None,)

    async def test_a_delete_of_what_must_not_exist_changes_nothing(self) -> None:
        """Without an expected version, a delete is refused if the document exists. If it does not, either answer is right."""
        gone = Change(key=KEY, body=None)
        async with self.open_documents() as subject:
            await put(subject, OTHER_KEY)
            assert await save(subject, gone) in {("",), (None,)}
            assert await bodies(subject, KEY, OTHER_KEY) == {OTHER_KEY: b"first"}
            await put(subject)
            assert await save(subject, gone) == (None,)
            assert await bodies(subject, KEY) == {KEY: b"first"}

    # Versions

    async def test_a_read_changes_no_version(self) -> None:
        """The version stays the same, however often the document is read."""
        async with self.open_documents() as subject:
            version = await put(subject)
            assert [(await look(subject, KEY))[KEY].version for _ in range(3)] == [version] * 3

    async def test_an_equal_body_gets_another_version(self) -> None:
        """Writing an equal body changes the version. A writer that read the document before it is refused."""
        async with self.open_documents() as subject:
            first = await put(subject)
            (second,) = await save(subject, Change(key=KEY, body=b"first", expected=first))
            assert second not in (None, "", first)
            assert await save(subject, Change(key=KEY, body=b"third", expected=first)) == (None,)

    async def test_a_version_never_comes_again(self) -> None:
        """A version is never reused: not in many writes, not after delete and insert, and not with an earlier body."""
        async with self.open_documents() as subject:
            documents, seen = await subject.documents(), [""]
            for _ in range(self.rounds):
                version = ""
                for body in (b"first", b"second", b"first"):
                    (answer,) = await documents.save([Change(key=KEY, body=body, expected=version)])
                    version = answer or ""
                    seen.append(version)
                assert await documents.save([Change(key=KEY, body=None, expected=version)]) == ("",)
            assert len(seen) == len(set(seen))

    async def test_a_version_from_before_a_delete_is_refused(self) -> None:
        """A document that is deleted and inserted again is a new document."""
        async with self.open_documents() as subject:
            old = await put(subject)
            await save(subject, Change(key=KEY, body=None, expected=old))
            await put(subject)
            for body in (b"second", None):
                assert await save(subject, Change(key=KEY, body=body, expected=old)) == (None,)
            assert await bodies(subject, KEY) == {KEY: b"first"}

    # Many at once

    async def test_nothing_is_saved_and_nothing_loaded(self) -> None:
        """An empty call returns an empty result."""
        async with self.open_documents() as subject:
            assert (await save(subject), await bodies(subject)) == ((), {})

    async def test_a_key_named_twice_is_loaded_once(self) -> None:
        """`load` accepts keys in any order, including duplicates."""
        async with self.open_documents() as subject:
            await put(subject)
            assert await bodies(subject, KEY, OTHER_KEY, KEY) == {KEY: b"first"}

    async def test_many_are_answered_one_by_one(self) -> None:
        """Results are in the order of the changes. A refused change does not affect the others."""
        async with self.open_documents() as subject:
            versions = {key: await put(subject, key) for key in ("b", "d", "e", "g")}
            (new,) = await save(subject, Change(key="e", body=b"other", expected=versions["e"]))
            answers = await save(
                subject,
                Change(key="g", body=b"lost"),
                Change(key="f", body=b"new"),
                Change(key="e", body=b"lost", expected=versions["e"]),
                Change(key="d", body=None, expected=versions["d"]),
                Change(key="c", body=None, expected=versions["d"]),
                Change(key="b", body=b"second", expected=versions["b"]),
                Change(key="a", body=b"new"),
            )
            found = await look(subject, *"abcdefg")
            assert answers == (None, found["f"].version, None, "", None, found["b"].version, found["a"].version)
            there = {key: document.body for key, document in found.items()}
            assert there == {"a": b"new", "b": b"second", "e": b"other", "f": b"new", "g": b"first"}
            assert (found["e"].version, found["g"].version) == (new, versions["g"])

    async def test_very_many_are_held_at_once(self) -> None:
        """`save` and `load` accept more documents than one request of the service, for inserts, replacements and deletes.

        If other clients changed some of the documents, exactly those replacements are refused.
        """
        keys = [f"{number * 7 % self.many:04}" for number in range(self.many)]
        async with self.open_documents() as subject:
            first = await save(subject, *(Change(key=key, body=key.encode()) for key in keys))
            found = await look(subject, *reversed(keys))
            assert [(found[key].body, found[key].version) for key in keys] == [
                (key.encode(), version) for key, version in zip(keys, first, strict=True)
            ]
            versions = {key: version or "" for key, version in zip(keys, first, strict=True)}
            await save(subject, *(Change(key=key, body=b"other", expected=versions[key]) for key in keys[::3]))
            second = await save(subject, *(Change(key=key, body=b"second", expected=versions[key]) for key in keys))
            assert [number for number, version in enumerate(second) if version is None] == [*range(0, self.many, 3)]
            found = await look(subject, *keys)
            gone = await save(subject, *(Change(key=key, body=None, expected=found[key].version) for key in keys))
            assert (set(gone), await bodies(subject, *keys)) == ({""}, {})

    async def test_large_documents_are_held_at_once(self) -> None:
        """One `save` accepts documents that are larger together than one request of the service."""
        async with self.open_documents() as subject:
            size = min((await subject.documents()).limits.body, LARGE_BYTES)
            keys = [f"{number}" for number in range(LARGE)]
            versions: list[str | None] = [""] * LARGE
            for mark in (b"a", b"b"):
                changes = [
                    Change(key=key, body=mark * size, expected=version or "")
                    for key, version in zip(keys, versions, strict=True)
                ]
                versions = [*await save(subject, *changes)]
                assert None not in versions
                assert await bodies(subject, *keys) == dict.fromkeys(keys, mark * size)

    # Several clients

    async def test_a_load_sees_every_finished_write(self) -> None:
        """Reads are not stale: a client that read before sees each finished insert, replacement and delete."""
        async with self.open_documents() as subject:
            writer, reader = await subject.documents(), await subject.documents()
            assert await reader.load([KEY]) == {}
            for _ in range(self.rounds):
                version = ""
                for body in (b"first", b"second", b"third", None):
                    (answer,) = await writer.save([Change(key=KEY, body=body, expected=version)])
                    version = answer or ""
                    found = {key: (each.body, each.version) for key, each in (await reader.load([KEY])).items()}
                    assert found == ({} if body is None else {KEY: (body, version)})

    async def test_inserts_that_race_have_one_winner(self) -> None:
        """Of concurrent inserts of a key, exactly one succeeds, and its body is stored."""
        async with self.open_documents() as subject:
            reader, *writers = await clients(subject, 4)
            for number in range(self.rounds):
                won = await race(writers, [Change(key=f"k{number}", body=b"%d" % each) for each in range(3)])
                found = (await reader.load([f"k{number}"]))[f"k{number}"]
                assert (len(won), found.body) == (1, b"%d" % won[0])

    async def test_replaces_that_race_have_one_winner(self) -> None:
        """Of concurrent replacements of a version, exactly one succeeds, and its body is stored."""
        async with self.open_documents() as subject:
            version = await put(subject)
            reader, *writers = await clients(subject, 4)
            for _ in range(self.rounds):
                won = await race(writers, [Change(key=KEY, body=b"%d" % each, expected=version) for each in range(3)])
                found = (await reader.load([KEY]))[KEY]
                assert (len(won), found.body) == (1, b"%d" % won[0])
                version = found.version

    async def test_a_delete_and_a_replace_that_race_have_one_winner(self) -> None:
        """Of concurrent deletes and replacements, exactly one succeeds, and the stored state is its result."""
        async with self.open_documents() as subject:
            reader, *writers = await clients(subject, 4)
            for number in range(self.rounds):
                key = f"k{number}"
                (version,) = await reader.save([Change(key=key, body=b"first")])
                changes = [Change(key=key, body=body, expected=version or "") for body in (None, b"second", None)]
                won = await race(writers, changes)
                there = [document.body for document in (await reader.load([key])).values()]
                assert (len(won), there) == (1, [b"second"] if won == [1] else [])

    async def test_no_update_is_lost(self) -> None:
        """Several clients increment one counter, and retry when they are refused. The sum is exact."""
        async with self.open_documents() as subject:
            await put(subject, body=b"0")
            async with asyncio.timeout(self.patience):
                await asyncio.gather(*(add_one(subject, self.rounds) for _ in range(3)))
            assert await bodies(subject, KEY) == {KEY: b"%d" % (3 * self.rounds)}

    async def test_overlapping_writes_do_not_deadlock(self) -> None:
        """Batches that overlap in any order all end. Each document is inserted by one of them, and replaced by one."""
        keys = [f"k{number}" for number in range(12)]
        batches = (keys, keys[::-1], keys[1::2] + keys[::2])
        async with self.open_documents() as subject, asyncio.timeout(self.patience):
            writers = await clients(subject, len(batches))
            versions = dict.fromkeys(keys, "")
            for body in (b"first", b"second"):
                changes = [[Change(key=key, body=body, expected=versions[key]) for key in batch] for batch in batches]
                answers = await asyncio.gather(*(client.save(some) for client, some in zip(writers, changes, strict=True)))
                won = [
                    key for batch, some in zip(batches, answers, strict=True) for key, it in zip(batch, some, strict=True) if it
                ]
                assert sorted(won) == sorted(keys)
                versions = {key: document.version for key, document in (await look(subject, *keys)).items()}

    async def test_each_version_is_followed_by_one(self) -> None:
        """With concurrent mixed batches, each version of a document is followed by exactly one write or is the stored one."""
        keys = [f"k{number}" for number in range(6)]
        async with self.open_documents() as subject:
            writers = await clients(subject, 3)
            dice = [Random(number) for number in range(3)]  # noqa: S311 - chance here is to be the same each time
            writing = (write_at_random(*each, keys, times=self.rounds) for each in zip(writers, dice, strict=True))
            written = [each for some in await asyncio.gather(*writing) for each in some]
            found = await look(subject, *keys)
            for key in keys:
                mine = [each for each in written if each.key == key]
                old, new = ([each[place] for each in mine if each[place]] for place in (1, 2))
                there = [found[key].version] if key in found else []
                assert sorted([*old, *there]) == sorted(new)
                assert len(new) == len(set(new))

    # What is in a document, and what it is called

    async def test_any_bytes_come_back(self) -> None:
        """Bodies that are not JSON are stored byte for byte."""
        async with self.open_documents() as subject:
            stored = {f"k{number}": body for number, body in enumerate(OTHER_BODIES)}
            await save(subject, *(Change(key=key, body=body) for key, body in stored.items()))
            found = await bodies(subject, *stored)  # keys, not bodies: what differs may be long, and is shown in full
            assert [key for key, body in stored.items() if found.get(key) != body] == []

    async def test_a_json_body_comes_back(self) -> None:
        """JSON bodies keep every name and number. The order of names and the white space may change."""
        async with self.open_documents() as subject:
            stored = {f"k{number}": body for number, body in enumerate(JSON_BODIES)}
            await save(subject, *(Change(key=key, body=body) for key, body in stored.items()))
            found = await bodies(subject, *stored)
            assert [(body, found.get(key)) for key, body in stored.items() if not same(body, found.get(key, b""))] == []

    async def test_a_body_of_another_kind_replaces_one(self) -> None:
        """JSON and other bodies replace each other completely."""
        async with self.open_documents() as subject:
            version = await put(subject, body=b'{"a":1,"b":2}')
            for body in (b'{"a":2}', b"\xff\0", b'{"b":3}', b"", b'{"c":4}'):
                (answer,) = await save(subject, Change(key=KEY, body=body, expected=version))
                version = answer or ""
                assert same(body, (await bodies(subject, KEY))[KEY])

    async def test_the_largest_body_is_held(self) -> None:
        """A body of `limits.body` bytes is stored, whatever its bytes are, and can be replaced."""
        async with self.open_documents() as subject:
            size = (await subject.documents()).limits.body
            version = await put(subject, body=b"\xff" * size)
            assert await bodies(subject, KEY) == {KEY: b"\xff" * size}
            text = b'{"a":"%s"}' % (b"x" * (size - 8))
            assert (await save(subject, Change(key=KEY, body=text, expected=version)))[0]
            assert same(text, (await bodies(subject, KEY))[KEY])

    async def test_a_larger_body_is_refused(self) -> None:
        """A larger body raises CommitRefused, and no change of the call is written."""
        async with self.open_documents() as subject:
            size = (await subject.documents()).limits.body
            async with raises(CommitRefused):
                await save(subject, Change(key=KEY, body=b"first"), Change(key=OTHER_KEY, body=b"x" * (size + 1)))
            assert await bodies(subject, KEY, OTHER_KEY) == {}

    async def test_keys_are_exact(self) -> None:
        """Keys may contain any character of any script. Similar keys are separate documents."""
        async with self.open_documents() as subject:
            stored = {key: b"%d" % number for number, key in enumerate(ODD_KEYS)}
            versions = await save(subject, *(Change(key=key, body=body) for key, body in stored.items()))
            assert None not in versions
            assert await bodies(subject, *stored) == stored
            await listed(subject, set(stored), patience=self.patience)

    async def test_the_longest_key_is_held(self) -> None:
        """A key of `limits.key` bytes in UTF-8 is stored. Every character of it counts."""
        async with self.open_documents() as subject:
            length = (await subject.documents()).limits.key
            stored = {"x" * length: b"1", "x" * (length - 1) + "y": b"2", "ö" * (length // 2): b"3", "/" * length: b"4"}
            await save(subject, *(Change(key=key, body=body) for key, body in stored.items()))
            assert await bodies(subject, *stored) == stored
            await listed(subject, set(stored), patience=self.patience)

    async def test_a_longer_key_is_refused(self) -> None:
        """A longer key, an empty key and a lone surrogate raise CommitRefused. No change of the call is written."""
        async with self.open_documents() as subject:
            length = (await subject.documents()).limits.key
            for key in ("x" * (length + 1), "ö" * (length // 2) + "xx", "", "\ud800"):
                async with raises(CommitRefused):
                    await save(subject, Change(key=KEY, body=b"first"), Change(key=key, body=b"first"))
            assert await bodies(subject, KEY) == {}

    # Lists

    async def test_keys_are_listed_by_prefix(self) -> None:
        """`keys` matches the prefix exactly and without wildcards. An empty prefix lists all keys."""
        keys = ("a", "a/", "a/1", "a/2", "A/1", "a%", "a%1", "a_1", "ab", "a\u0301", "ä/1", "b")
        async with self.open_documents() as subject:
            await save(subject, *(Change(key=key, body=b"x") for key in keys))
            for prefix in ("", "a", "a/", "A", "a%", "a_", "ä", "b", "c"):
                await listed(subject, {key for key in keys if key.startswith(prefix)}, prefix, patience=self.patience)

    async def test_keys_are_listed_page_by_page(self) -> None:
        """`keys` returns each key once, in the same order for every page size."""
        keys = {f"{prefix}/{number}" for prefix in ("p", "q") for number in range(11)}
        wanted = {key for key in keys if key.startswith("p/")}
        async with self.open_documents() as subject:
            await save(subject, *(Change(key=key, body=b"x") for key in sorted(keys)))
            whole = await listed(subject, wanted, "p/", patience=self.patience)
            for limit in (1, 2, 5, 11):
                assert await listed(subject, wanted, "p/", limit=limit, patience=self.patience) == whole

    async def test_a_deleted_document_is_not_listed(self) -> None:
        """`keys` does not return deleted documents. `after` may name a deleted key, so that a loop can delete all documents."""
        keys = {f"k{number}" for number in range(9)}
        async with self.open_documents() as subject:
            await save(subject, *(Change(key=key, body=b"x") for key in sorted(keys)))
            await listed(subject, keys, patience=self.patience)
            documents, deleted = await subject.documents(), [""]
            while page := await documents.keys("", after=deleted[-1], limit=2):
                found = await documents.load(page)
                assert set(found) == set(page)
                await documents.save([Change(key=key, body=None, expected=found[key].version) for key in page])
                deleted += page
            assert set(deleted) == {"", *keys}
            await listed(subject, set(), patience=self.patience)

    # Expiry

    async def test_a_document_without_expiry_stays(self) -> None:
        """A document stays if it has no expiry, if its expiry was removed, or if its expiry is in the future."""
        async with self.open_documents() as subject:
            soon = subject.now() + self.lapse
            first = await save(
                subject,
                Change(key="never", body=b"1"),
                Change(key="later", body=b"1", expires=soon + 3_600_000),
                Change(key="taken-away", body=b"1", expires=soon),
            )
            taken_away = Change(key="taken-away", body=b"2", expected=first[2] or "")
            assert None not in (*first, *await save(subject, taken_away))
            await subject.pass_time(self.lapse * 6 // 5)
            assert await bodies(subject, "never", "later", "taken-away") == {"never": b"1", "later": b"1", "taken-away": b"2"}

    async def test_an_expiry_in_the_past_is_no_error(self) -> None:
        """A document with an expiry in the past may be stored or already gone. If it is gone, it can be inserted again."""
        async with self.open_documents() as subject:
            (first,) = await save(subject, Change(key=KEY, body=b"first", expires=subject.now() - 1_000))
            assert first
            if await bodies(subject, KEY) == {}:
                await put(subject)
            assert await bodies(subject, KEY) == {KEY: b"first"}

    # Answers that are lost

    async def test_a_cut_insert_is_unknown(self) -> None:
        """An insert whose response is lost raises OutcomeUnknown. It is not reported as a success or as refused."""
        async with self.open_documents() as subject:
            await cut_off(subject, "after", Change(key=KEY, body=b"first"))
            assert await bodies(subject, KEY) == {KEY: b"first"}

    async def test_a_cut_replace_is_unknown(self) -> None:
        """A replacement whose response is lost raises OutcomeUnknown. It is not reported as a success or as refused."""
        async with self.open_documents() as subject:
            version = await put(subject)
            await cut_off(subject, "after", Change(key=KEY, body=b"second", expected=version))
            assert await bodies(subject, KEY) == {KEY: b"second"}

    async def test_a_cut_delete_is_unknown(self) -> None:
        """A delete whose response is lost raises OutcomeUnknown. It is not reported as a success or as refused."""
        async with self.open_documents() as subject:
            version = await put(subject)
            await cut_off(subject, "after", Change(key=KEY, body=None, expected=version))
            assert await bodies(subject, KEY) == {}

    async def test_many_that_are_cut_are_unknown(self) -> None:
        """A batch whose response is lost raises OutcomeUnknown. Each of its changes is applied once or not at all."""
        keys = [f"k{number}" for number in range(12)]
        async with self.open_documents() as subject:
            before = {key: await put(subject, key) for key in keys[:6]}
            changes = [Change(key=key, body=b"second", expected=before.get(key, "")) for key in keys]
            await cut_off(subject, "after", *changes)
            found = await look(subject, *keys)
            written = [key for key, document in found.items() if document.body == b"second"]
            assert written
            assert all(found[key].version == before[key] for key in before if key not in written)

    async def test_many_of_which_one_never_arrived_are_failed_only_if_none_was_written(self) -> None:
        """If a request of a batch is lost, CommitFailed is allowed only if no change was applied, OutcomeUnknown always."""
        keys = [f"k{number}" for number in range(12)]
        async with self.open_documents() as subject:
            before = {key: await put(subject, key) for key in keys[:6]}
            changes = [Change(key=key, body=b"second", expected=before.get(key, "")) for key in keys]
            documents = await subject.cut("before")
            is_failed = False
            async with raises(OutcomeUnknown, CommitFailed):
                try:
                    await documents.save(changes)
                except CommitFailed:
                    is_failed = True
                    raise
            found = await look(subject, *keys)
            written = [key for key, document in found.items() if document.body == b"second"]
            assert not (written and is_failed), f"`save` raised CommitFailed, but wrote {written}"

    async def test_a_write_cut_before_it_arrived_changes_nothing(self) -> None:
        """A write whose request is lost raises OutcomeUnknown or CommitFailed. It is neither applied nor refused."""
        async with self.open_documents() as subject:
            version = await put(subject)
            for change in (
                Change(key=OTHER_KEY, body=b"second"),
                Change(key=KEY, body=b"second", expected=version),
                Change(key=KEY, body=None, expected=version),
            ):
                await cut_off(subject, "before", change)
            found = await look(subject, KEY, OTHER_KEY)
            assert {key: document.version for key, document in found.items()} == {KEY: version}

    # The place

    async def test_a_good_place_is_passed(self) -> None:
        """`check` accepts a correct collection, may return warnings for people, and changes nothing."""
        async with self.open_documents() as subject:
            documents = await subject.documents()
            for warning in await documents.check():
                assert warning.strip()
            assert await every_key(documents) == []

    async def test_a_missing_place_is_a_setup_error(self) -> None:
        """`check` raises SetupError for a missing collection."""
        async with self.open_documents() as subject, raises(SetupError):
            await (await subject.missing()).check()
