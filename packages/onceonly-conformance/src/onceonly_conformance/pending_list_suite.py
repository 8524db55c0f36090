"""The contract of the ListsPending port, rule by rule, for documents that list those with unsent messages."""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from random import Random
from typing import ClassVar

from onceonly.ports.documents import Change, Documents, ListsPending, PendingDocument, Version
from onceonly_conformance.documents_subject import KEY, OTHER_KEY, DocumentsSubject, cut_off, look, save
from onceonly_conformance.documents_suite import ODD_KEYS
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite

BEFORE = 1 << 50
"""An instant later than any entry of the rules."""
FIRST = 1_700_000_000_000
"""The time of the first entry, in milliseconds since 1970."""


class PendingListSuite(Suite):
    """The additional rules of documents that list what is pending. Override `open_documents`.

    `rounds` is the number of attempts for rules that depend on timing.
    """

    rounds: ClassVar[int] = 20

    def open_documents(self) -> AbstractAsyncContextManager[DocumentsSubject]:
        """Open an empty collection of documents for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_good_place_has_a_list(self) -> None:
        """`why_unlisted` returns an empty string for a place that was created with its list."""
        async with self.open_documents() as subject:
            assert await _lists(await subject.documents()).why_unlisted() == ""

    async def test_a_pending_document_is_listed_for_its_endpoints(self) -> None:
        """An insert and a replacement list a document with its time, for each endpoint that it names and no other."""
        async with self.open_documents() as subject:
            await self._listed(subject, [])
            version = await _put(subject, KEY, FIRST)
            await _put(subject, OTHER_KEY)
            await self._listed(subject, [PendingDocument(KEY, FIRST)])
            await self._listed(subject, [], OTHER)
            await _put(subject, KEY, FIRST + 5, ENDPOINT, OTHER, expected=version)
            await self._listed(subject, [PendingDocument(KEY, FIRST + 5)])
            await self._listed(subject, [PendingDocument(KEY, FIRST + 5)], OTHER)

    async def test_a_document_that_is_no_longer_pending_is_not_listed(self) -> None:
        """A replacement that names no endpoint takes the document out of the list."""
        async with self.open_documents() as subject:
            version = await _put(subject, KEY, FIRST)
            await self._listed(subject, [PendingDocument(KEY, FIRST)])
            version = await _put(subject, KEY, expected=version)
            await self._listed(subject, [])
            await _put(subject, KEY, FIRST + 1, expected=version)
            await self._listed(subject, [PendingDocument(KEY, FIRST + 1)])

    async def test_a_document_stays_listed_for_the_endpoints_that_are_left(self) -> None:
        """A replacement that names fewer endpoints takes the document out of the lists of the others only."""
        async with self.open_documents() as subject:
            version = await _put(subject, KEY, FIRST, ENDPOINT, OTHER)
            await self._listed(subject, [PendingDocument(KEY, FIRST)], OTHER)
            await _put(subject, KEY, FIRST, OTHER, expected=version)
            await self._listed(subject, [])
            await self._listed(subject, [PendingDocument(KEY, FIRST)], OTHER)

    async def test_a_deleted_document_is_not_pending(self) -> None:
        """A delete takes the document out of the list. A new document with its key is not listed because of the old one."""
        async with self.open_documents() as subject:
            version = await _put(subject, KEY, FIRST)
            await self._listed(subject, [PendingDocument(KEY, FIRST)])
            await save(subject, Change(key=KEY, body=None, expected=version))
            await self._listed(subject, [])
            await _put(subject, KEY)
            await self._listed(subject, [])

    async def test_a_refused_write_changes_no_list(self) -> None:
        """A write at another version neither lists a document nor takes it out of a list."""
        async with self.open_documents() as subject:
            await _put(subject, KEY, FIRST)
            await _put(subject, OTHER_KEY)
            refused = [
                Change(key=KEY, body=b"2"),
                Change(key=KEY, body=b"2", expected="other"),
                Change(key=KEY, body=None, expected="other"),
                Change(key=OTHER_KEY, body=b"2", pending_for=(ENDPOINT,), pending_since=FIRST),
                Change(key=OTHER_KEY, body=b"2", expected="other", pending_for=(ENDPOINT,), pending_since=FIRST),
                Change(key="order/19", body=b"2", expected="other", pending_for=(ENDPOINT,), pending_since=FIRST),
            ]
            for change in refused:
                assert await save(subject, change) == (None,)
            await self._listed(subject, [PendingDocument(KEY, FIRST)])

    async def test_the_earliest_come_first(self) -> None:
        """The list is in the order of times, not of keys or writes, and `before` is exclusive."""
        times = {"order/2": FIRST, "order/9": FIRST + 1, "order/10": FIRST + 2, "order/1": FIRST + 3}
        async with self.open_documents() as subject:
            for key in sorted(times):
                await _put(subject, key, times[key])
            entries = [PendingDocument(key, since) for key, since in times.items()]
            await self._listed(subject, entries)
            lists = _lists(await subject.documents())
            assert [*await lists.pending(ENDPOINT, FIRST + 2)] == entries[:2]
            assert [*await lists.pending(ENDPOINT, FIRST)] == []

    async def test_pages_follow_each_other(self) -> None:
        """With `after` each entry is in one page, also among equal times. Only the last page may be shorter."""
        async with self.open_documents() as subject:
            entries = [PendingDocument(f"order/{number}", FIRST + number // 4) for number in range(11)]
            await save(subject, *(_change(entry.key, entry.since) for entry in entries))
            await self._listed(subject, entries, exactly=False)
            lists = _lists(await subject.documents())
            for limit in (1, 3, 4):
                pages = await _pages(lists, limit)
                found = [entry for page in pages for entry in page]
                assert sorted(found, key=_order) == sorted(entries, key=_order)
                assert [entry.since for entry in found] == sorted(entry.since for entry in entries)
                assert all(len(page) == limit for page in pages[:-1]), "a page before the last one was short"

    async def test_a_page_goes_on_behind_an_entry_that_is_gone(self) -> None:
        """`after` may name a document that is listed no longer, or with another time."""
        async with self.open_documents() as subject:
            versions = [await _put(subject, f"order/{number}", FIRST + number) for number in range(4)]
            entries = [PendingDocument(f"order/{number}", FIRST + number) for number in range(4)]
            await self._listed(subject, entries)
            await _put(subject, "order/0", expected=versions[0])
            await _put(subject, "order/1", FIRST + 9, expected=versions[1])
            left = [*entries[2:], PendingDocument("order/1", FIRST + 9)]
            await self._listed(subject, left)
            lists = _lists(await subject.documents())
            assert [*await lists.pending(ENDPOINT, BEFORE, after=entries[0])] == left
            assert [*await lists.pending(ENDPOINT, BEFORE, after=entries[1])] == left

    async def test_very_many_are_listed(self) -> None:
        """Documents that are written together are listed as those that are written alone."""
        entries = [PendingDocument(f"order/{number}", FIRST + number) for number in range(self.many)]
        async with self.open_documents() as subject:
            versions = await save(subject, *(_change(entry.key, entry.since) for entry in entries))
            await self._listed(subject, entries)
            done = [
                Change(key=entry.key, body=b"sent", expected=version or "")
                for entry, version in zip(entries[::2], versions[::2], strict=True)
            ]
            await save(subject, *done)
            await self._listed(subject, entries[1::2])

    async def test_listed_keys_are_exact(self) -> None:
        """A key of any text is listed as it was written."""
        async with self.open_documents() as subject:
            entries = [PendingDocument(key, FIRST + number) for number, key in enumerate(ODD_KEYS)]
            await save(subject, *(_change(entry.key, entry.since) for entry in entries))
            await self._listed(subject, entries)

    async def test_a_write_whose_answer_was_lost_is_listed(self) -> None:
        """The list is part of the write: what was applied is listed, and what was not is not."""
        async with self.open_documents() as subject:
            await cut_off(subject, "after", _change(KEY, FIRST))
            await self._listed(subject, [PendingDocument(KEY, FIRST)])
            (document,) = (await look(subject, KEY)).values()
            await cut_off(subject, "after", Change(key=KEY, body=b"sent", expected=document.version))
            await self._listed(subject, [])
            await cut_off(subject, "before", _change(OTHER_KEY, FIRST))
            await self._listed(subject, [])

    async def test_the_list_is_as_the_documents_are(self) -> None:
        """After writes that raced, a document is in the list exactly if its last write said so."""
        async with self.open_documents() as subject:
            keys = [f"order/{number}" for number in range(3)]
            opened = [await subject.documents() for _ in range(3)]
            await asyncio.gather(
                *(_write_at_random(each, Random(seed), keys, self.rounds) for seed, each in enumerate(opened))  # noqa: S311
            )
            found = await look(subject, *keys)
            said = [PendingDocument(key, int(each.body)) for key, each in found.items() if each.body != b"0"]
            await self._listed(subject, said, exactly=False)

    async def _listed(
        self, subject: DocumentsSubject, expected: list[PendingDocument], endpoint: str = ENDPOINT, *, exactly: bool = True
    ) -> None:
        """List until exactly these are returned, for at most `patience` seconds. The list may be some seconds old."""
        lists = _lists(await subject.documents())
        found: list[PendingDocument] = []
        wanted = expected if exactly else sorted(expected, key=_order)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while True:
                    found = [*await lists.pending(endpoint, BEFORE, limit=len(expected) + 1)]
                    if (found if exactly else sorted(found, key=_order)) == wanted:
                        return
                    await subject.pass_time(100)
                    await asyncio.sleep(0)
        raise AssertionError(f"the list of {endpoint!r} is {found}, and should be {wanted}")


def _lists(documents: Documents) -> ListsPending:
    assert isinstance(documents, ListsPending), "these documents do not list what is pending"
    return documents


def _order(entry: PendingDocument) -> tuple[int, str]:
    return entry.since, entry.key


def _change(key: str, since: int = 0, *endpoints: str, expected: Version = "", body: bytes = b"{}") -> Change:
    names = (endpoints or (ENDPOINT,)) if since else ()
    return Change(key=key, body=body, expected=expected, pending_for=names, pending_since=since)


async def _put(subject: DocumentsSubject, key: str, since: int = 0, *endpoints: str, expected: Version = "") -> Version:
    (version,) = await save(subject, _change(key, since, *endpoints, expected=expected))
    assert version, f"the write of {key!r} was refused"
    return version


async def _pages(lists: ListsPending, limit: int) -> list[tuple[PendingDocument, ...]]:
    pages = [await lists.pending(ENDPOINT, BEFORE, limit=limit)]
    while pages[-1]:
        pages.append(await lists.pending(ENDPOINT, BEFORE, after=pages[-1][-1], limit=limit))
        assert len(pages) < 100, "the list does not end"
    return pages[:-1]


async def _write_at_random(documents: Documents, dice: Random, keys: list[str], times: int) -> None:
    """Insert, replace and delete documents. The body of each is the time in the list, 0 for none."""
    for number in range(times):
        key = dice.choice(keys)
        found = (await documents.load([key])).get(key)
        since = dice.choice((0, FIRST + number))
        change = _change(key, since, expected=found.version if found else "", body=b"%d" % since)
        is_deleted = found is not None and dice.random() < 0.2
        await documents.save([Change(key=key, body=None, expected=change.expected) if is_deleted else change])
