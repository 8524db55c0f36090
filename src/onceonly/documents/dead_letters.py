"""Dead letters on documents: each letter a document, and pages of a list that say in which order they were added.

A letter's document names its place in the list, an entry on a page, before the entry is written. So whoever finds the letter
without its entry, after a crash, knows where the entry belongs and writes it. An entry without its letter counts for nothing:
the letter was removed. A page that was full once takes no more entries, so no entry is ever on two pages.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from onceonly.documents.compare_and_set import TRIES, WriteConflict, compare_and_set, removal
from onceonly.formats.dead_letters import (
    LAST_PAGE,
    DeadLetterEntry,
    Head,
    Page,
    Root,
    decode_head,
    decode_page,
    decode_root,
    encode_head,
    encode_page,
    encode_root,
    is_newer,
    pack,
    unpack,
)
from onceonly.formats.undecodable import UNREADABLE, StoredLetter, readable_letter, report_letter, stand_in
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock

ROOT = "dead/last-page"
_LETTER = "dead/letter/"
_NAME = re.compile(f"{_LETTER}[0-9a-f]{{32}}")


class _Listed(NamedTuple):
    """A letter's document as it was found in the list. `problem` is why it cannot be read; then the rest of `head` is empty."""

    name: str
    head: Head
    stored: bytes
    problem: Exception | None = None

    @property
    def key(self) -> str:
        return self.name.removeprefix(_LETTER)

    def as_stored(self, content: bytes = b"") -> StoredLetter:
        return StoredLetter(self.key, content or self.stored, self.head.endpoint)


class DocumentDeadLetters:
    """Dead letters of all endpoints that use this place. A letter that one document cannot hold has its bytes in several.

    Everything here raises CommitFailed, OutcomeUnknown; what is repeated after either repairs what a crash left.
    """

    def __init__(self, documents: Documents, *, clock: Clock, page: int = 100) -> None:
        """Use a place for documents; keys begin with `dead/`, and a page of the list takes `page` entries."""
        self._documents = documents
        self._clock = clock
        self._most = page

    async def add(self, letter: DeadLetter) -> None:
        """Store it and list it; see the port. The letter comes first: an entry never names what is not there yet."""
        key = _letter(letter.key)
        found = await self._documents.load([key, ROOT])
        document = found.get(key)
        if document is None:
            await self._create(key, letter, await self._last_page(found.get(ROOT)))
        elif _listed(key, document).problem is not None and not is_newer(document.body):
            await self._create(key, letter, await self._last_page(found.get(ROOT)), damaged=document.version)
        await self._list(key)

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order of their entries; from the beginning when no letter has the key `after`."""
        letters: list[DeadLetter] = []
        async for heads in self._heads(after):
            for each in heads:
                if len(letters) < limit and (letter := await self._matching(chosen, each)) is not None:
                    letters.append(letter)
            if len(letters) >= limit:
                break
        return tuple(letters)

    async def get(self, key: str) -> DeadLetter | None:
        listed = await self._head(_letter(key))
        return None if listed is None else await self._whole(listed)

    async def count(self, chosen: Filter) -> int:
        if chosen.failure:
            return len([each async for heads in self._heads("") for each in heads if await self._matching(chosen, each)])
        return sum([sum(_matches(chosen, each.head) for each in heads) async for heads in self._heads("")])

    async def newest(self, chosen: Filter, limit: int) -> tuple[DeadLetter, ...]:
        """List the newest letters; see the port. Pages of the list are read from its end."""
        letters: list[DeadLetter] = []
        root, read = (await self._documents.load([ROOT])).get(ROOT), 0
        for number in range(await self._last_page(root), -1, -1):
            heads = (await self._heads_on(number))[::-1][: limit - read]
            read += len(heads)
            letters += [letter for each in heads if (letter := await self._matching(chosen, each)) is not None]
            if read >= limit:
                break
        return tuple(letters)

    async def remove(self, keys: Sequence[str]) -> int:
        settled = await compare_and_set(self._documents, map(_letter, keys), removal)
        gone = [_listed(name, document) for name, document in settled.seen.items() if document]
        heads = [each.head for each in gone if each.problem is None]  # the entry of another one counts for nothing now
        await self._unlist(heads)
        await compare_and_set(self._documents, [part for head in heads for part in head.parts], removal)
        return len(gone)

    async def _create(self, key: str, letter: DeadLetter, page: int, *, damaged: str = "") -> None:
        """Create a letter's document, unless another worker just did: the first one is kept. Replace a `damaged` version."""
        stamped = replace(letter, at=letter.at or self._clock.now())
        entry, room = uuid4().hex, self._documents.limits.body
        head, parts = pack(stamped, entry=entry, page=page, room=room)
        await compare_and_set(
            self._documents,
            parts,
            lambda name, document: None if document else Change(key=name, body=parts[name]),
            guesses=dict.fromkeys(parts),
        )
        created = (await self._documents.save([Change(key=key, body=encode_head(head), expected=damaged)]))[0]
        if created is None:
            await compare_and_set(self._documents, parts, removal)

    async def _list(self, key: str) -> None:
        """Make sure that the letter's entry is on its page; a page that is full is changed for the next one first."""
        for _ in range(TRIES):
            found = (await self._documents.load([key])).get(key)
            if found is None:
                return  # removed meanwhile, by a person who has seen it
            head = decode_head(key, found.body)
            if await self._has_room(head, key):
                return
            await self._move_to_new_page(key, head, found)
        raise WriteConflict(f"other workers kept changing the list of dead letters: gave up after {TRIES} attempts")

    async def _has_room(self, head: Head, letter: str) -> bool:
        """Write the entry on its page, unless it is there already. False: the page is full, and the entry is not on it."""
        entry, has_room = DeadLetterEntry(head.entry, letter), True

        def with_entry(name: str, document: Document | None) -> Change | None:
            nonlocal has_room
            page = _page_in(name, document)
            has_room = entry in page.entries or not page.full
            if entry in page.entries or page.full:
                return None
            entries = (*page.entries, entry)
            body = encode_page(Page(entries, full=len(entries) >= self._most))
            return Change(key=name, body=body, expected=document.version if document else "")

        await compare_and_set(self._documents, [_page(head.page)], with_entry)
        return has_room

    async def _move_to_new_page(self, key: str, head: Head, found: Document) -> None:
        """Put the letter on the last page there is, or on a new one behind its own."""
        root = (await self._documents.load([ROOT])).get(ROOT)
        known = await self._last_page(root)
        last = max(known, head.page + 1)
        if last > known:
            await self._documents.save([Change(key=ROOT, body=encode_root(Root(last)), expected=root.version if root else "")])
        await self._documents.save([Change(key=key, body=encode_head(replace(head, page=last)), expected=found.version)])

    async def _unlist(self, heads: Sequence[Head]) -> None:
        gone = {head.entry for head in heads}

        def without(name: str, document: Document | None) -> Change | None:
            if document is None:
                return None
            page = _page_in(name, document)
            left = tuple(entry for entry in page.entries if entry.entry not in gone)
            if left == page.entries:
                return None
            return Change(key=name, body=encode_page(replace(page, entries=left)), expected=document.version)

        await compare_and_set(self._documents, [_page(head.page) for head in heads], without)

    async def _heads(self, after: str) -> AsyncIterator[Sequence[_Listed]]:
        """Return the letters page by page, those behind `after`, each looked at after its entry."""
        begin = await self._head(_letter(after)) if after else None
        root = (await self._documents.load([ROOT])).get(ROOT)
        last = await self._last_page(root)
        first = 0 if begin is None else begin.head.page if begin.problem is None else await self._page_of(begin.name, last)
        for number in range(first, last + 1):
            yield await self._heads_on(number, begin)

    async def _page_of(self, letter: str, last: int) -> int:
        """Return the page that lists a letter without a page of its own, or the first one."""
        for number in range(last + 1):
            name = _page(number)
            if any(entry.letter == letter for entry in _page_in(name, (await self._documents.load([name])).get(name)).entries):
                return number
        return 0

    async def _heads_on(self, number: int, begin: _Listed | None = None) -> Sequence[_Listed]:
        """Read the letters of one page, those behind `begin` if that is on the page."""
        name = _page(number)
        entries = _page_in(name, (await self._documents.load([name])).get(name)).entries
        places = [place for place, entry in enumerate(entries) if begin is not None and _is_of(entry, begin)]
        if places:
            entries = entries[places[-1] + 1 :]
        # names that a damaged page has may be names of other documents, or none
        entries = tuple(entry for entry in entries if _NAME.fullmatch(entry.letter))
        found = await self._documents.load([entry.letter for entry in entries]) if entries else {}
        heads = {name: _listed(name, document) for name, document in found.items()}
        listed = {entry.letter: heads[entry.letter] for entry in entries if _names(entry, heads)}
        return tuple(listed.values())

    async def _head(self, name: str) -> _Listed | None:
        found = (await self._documents.load([name])).get(name)
        return None if found is None else _listed(name, found)

    async def _last_page(self, root: Document | None) -> int:
        """Return the number of the last page. Where the document that has it is unreadable, pages are looked for."""
        if root is None:
            return 0
        try:
            return decode_root(ROOT, root.body).last
        except UNREADABLE as error:
            report_letter(ROOT, str(error))
        last = 0
        while last < LAST_PAGE and (name := _page(last + 1)) in await self._documents.load([name]):
            last += 1
        return last

    async def _matching(self, chosen: Filter, listed: _Listed) -> DeadLetter | None:
        """Return a whole letter if it is selected. Its failure group is known only from all of it."""
        if not _matches(chosen, listed.head):
            return None
        letter = await self._whole(listed)
        return letter if letter is not None and (not chosen.failure or chosen.matches(letter)) else None

    async def _whole(self, listed: _Listed) -> DeadLetter | None:
        """Return a letter with all its parts, or what stands for an unreadable one; None when it is being removed."""
        if listed.problem is not None:
            return stand_in(listed.as_stored(), listed.problem)
        head = listed.head
        parts = await self._documents.load(head.parts) if head.parts else {}
        if len(parts) < len(head.parts):
            return None
        content = [parts[name].body for name in head.parts]
        return readable_letter(listed.as_stored(b"".join(content)), lambda: unpack(head, content))


def _listed(name: str, document: Document) -> _Listed:
    """Read a letter's document. What stands for one that cannot be read matches only a selection of all letters."""
    try:
        return _Listed(name, decode_head(name, document.body), document.body)
    except UNREADABLE as error:
        report_letter(name.removeprefix(_LETTER), str(error))
        return _Listed(name, Head(onceonly=0, entry="", page=0, endpoint="", type="", reason=""), document.body, error)


def _page_in(name: str, document: Document | None) -> Page:
    """Read a page of the list. One that cannot be read is logged, and counts as full: it is not changed."""
    if document is None:
        return Page()
    try:
        return decode_page(name, document.body)
    except UNREADABLE as error:
        report_letter(name, str(error))
        return Page(full=True)


def _is_of(entry: DeadLetterEntry, listed: _Listed) -> bool:
    """Return whether this letter is the one that was listed here, and no later one. An unreadable one has only its name."""
    return listed.name == entry.letter if listed.problem is not None else listed.head.entry == entry.entry


def _names(entry: DeadLetterEntry, heads: Mapping[str, _Listed]) -> bool:
    return entry.letter in heads and _is_of(entry, heads[entry.letter])


def _matches(chosen: Filter, head: Head) -> bool:
    return chosen.endpoint in {"", head.endpoint} and chosen.type in {"", head.type} and chosen.reason in head.reason


def _letter(key: str) -> str:
    return f"{_LETTER}{key}"


def _page(number: int) -> str:
    return f"dead/page/{number:08}"
