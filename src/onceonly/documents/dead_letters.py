"""Dead letters on documents: each letter a document, and pages of a list that say in which order they were added.

A letter's document names its place in the list, an entry on a page, before the entry is written. So whoever finds the letter
without its entry, after a crash, knows where the entry belongs and writes it. An entry without its letter counts for nothing:
the letter was removed. A page that was full once takes no more entries, so no entry is ever on two pages.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import uuid4

from msgspec.structs import replace

from onceonly.documents.compare_and_set import TRIES, WriteConflict, compare_and_set
from onceonly.formats.dead_letters import (
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
    pack,
    unpack,
)
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Change, Document, Documents
from onceonly.ports.environment import Clock

ROOT = "dead/last-page"


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
            await self._create(key, letter, _last_page(found.get(ROOT)))
        await self._list(key)

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order of their entries; from the beginning when no letter has the key `after`."""
        letters: list[DeadLetter] = []
        async for heads in self._heads(after):
            for head in heads:
                if len(letters) < limit and (letter := await self._matching(chosen, head)) is not None:
                    letters.append(letter)
            if len(letters) >= limit:
                break
        return tuple(letters)

    async def get(self, key: str) -> DeadLetter | None:
        """Give one letter, or None."""
        head = await self._head(_letter(key))
        return None if head is None else await self._whole(head)

    async def count(self, chosen: Filter) -> int:
        """Count letters, by reading them."""
        if chosen.failure:
            return len([head async for heads in self._heads("") for head in heads if await self._matching(chosen, head)])
        return sum([sum(_matches(chosen, head) for head in heads) async for heads in self._heads("")])

    async def newest(self, chosen: Filter, limit: int) -> tuple[DeadLetter, ...]:
        """List the newest letters; see the port. Pages of the list are read from its end."""
        letters: list[DeadLetter] = []
        root, read = (await self._documents.load([ROOT])).get(ROOT), 0
        for number in range(_last_page(root), -1, -1):
            heads = (await self._heads_on(number))[::-1][: limit - read]
            read += len(heads)
            letters += [letter for head in heads if (letter := await self._matching(chosen, head)) is not None]
            if read >= limit:
                break
        return tuple(letters)

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove letters, then their entries; see the port."""
        settled = await compare_and_set(self._documents, map(_letter, keys), _drop)
        heads = [decode_head(name, document.body) for name, document in settled.seen.items() if document]
        await self._unlist(heads)
        await compare_and_set(self._documents, [part for head in heads for part in head.parts], _drop)
        return len(heads)

    async def _create(self, key: str, letter: DeadLetter, page: int) -> None:
        """Create a letter's document, unless another worker just did: the first one is kept."""
        stamped = replace(letter, at=letter.at or self._clock.now())
        entry, room = uuid4().hex, self._documents.limits.body
        head, parts = pack(stamped, entry=entry, page=page, room=room)
        await compare_and_set(
            self._documents,
            parts,
            lambda name, document: None if document else Change(key=name, body=parts[name]),
            guesses=dict.fromkeys(parts),
        )
        created = (await self._documents.save([Change(key=key, body=encode_head(head))]))[0]
        if created is None:
            await compare_and_set(self._documents, parts, _drop)

    async def _list(self, key: str) -> None:
        """Make sure that the letter's entry is on its page; a page that is full is changed for the next one first."""
        for _ in range(TRIES):
            found = (await self._documents.load([key])).get(key)
            if found is None:
                return  # removed meanwhile, by a person who has seen it
            head = decode_head(key, found.body)
            if await self._has_room(head, key):
                return
            await self._turn_page(key, head, found)
        raise WriteConflict(f"other workers kept changing the list of dead letters: gave up after {TRIES} attempts")

    async def _has_room(self, head: Head, letter: str) -> bool:
        """Write the entry on its page, unless it is there already. False: the page is full, and the entry is not on it."""
        entry, has_room = DeadLetterEntry(head.entry, letter), True

        def with_entry(name: str, document: Document | None) -> Change | None:
            nonlocal has_room
            page = decode_page(name, document.body) if document else Page()
            has_room = entry in page.entries or not page.full
            if entry in page.entries or page.full:
                return None
            entries = (*page.entries, entry)
            body = encode_page(Page(entries, full=len(entries) >= self._most))
            return Change(key=name, body=body, expected=document.version if document else "")

        await compare_and_set(self._documents, [_page(head.page)], with_entry)
        return has_room

    async def _turn_page(self, key: str, head: Head, found: Document) -> None:
        """Give the letter a place on the last page there is, or on a new one behind its own."""
        root = (await self._documents.load([ROOT])).get(ROOT)
        last = max(_last_page(root), head.page + 1)
        if last > _last_page(root):
            await self._documents.save([Change(key=ROOT, body=encode_root(Root(last)), expected=root.version if root else "")])
        await self._documents.save([Change(key=key, body=encode_head(replace(head, page=last)), expected=found.version)])

    async def _unlist(self, heads: Sequence[Head]) -> None:
        gone = {head.entry for head in heads}

        def without(name: str, document: Document | None) -> Change | None:
            if document is None:
                return None
            page = decode_page(name, document.body)
            left = tuple(entry for entry in page.entries if entry.entry not in gone)
            if left == page.entries:
                return None
            return Change(key=name, body=encode_page(replace(page, entries=left)), expected=document.version)

        await compare_and_set(self._documents, [_page(head.page) for head in heads], without)

    async def _heads(self, after: str) -> AsyncIterator[Sequence[Head]]:
        """Give the letters page by page, those behind `after`, each looked at after its entry."""
        begin = await self._head(_letter(after)) if after else None
        root = (await self._documents.load([ROOT])).get(ROOT)
        for number in range(begin.page if begin else 0, _last_page(root) + 1):
            yield await self._heads_on(number, begin)

    async def _heads_on(self, number: int, begin: Head | None = None) -> Sequence[Head]:
        """Read the letters of one page, those behind `begin` if that is on the page."""
        name = _page(number)
        document = (await self._documents.load([name])).get(name)
        entries = decode_page(name, document.body).entries if document else ()
        names = [entry.entry for entry in entries]
        if begin is not None and begin.entry in names:
            entries = entries[names.index(begin.entry) + 1 :]
        found = await self._documents.load([entry.letter for entry in entries]) if entries else {}
        heads = {name: decode_head(name, document.body) for name, document in found.items()}
        return [heads[entry.letter] for entry in entries if _is_of(entry, heads)]

    async def _head(self, name: str) -> Head | None:
        found = (await self._documents.load([name])).get(name)
        return None if found is None else decode_head(name, found.body)

    async def _matching(self, chosen: Filter, head: Head) -> DeadLetter | None:
        """Return a whole letter if it is selected. Its failure group is known only from all of it."""
        if not _matches(chosen, head):
            return None
        letter = await self._whole(head)
        return letter if letter is not None and (not chosen.failure or chosen.matches(letter)) else None

    async def _whole(self, head: Head) -> DeadLetter | None:
        """Give a letter with all its parts; None when it is being removed."""
        parts = await self._documents.load(head.parts) if head.parts else {}
        if len(parts) < len(head.parts):
            return None
        return unpack(head, [parts[name].body for name in head.parts])


def _is_of(entry: DeadLetterEntry, heads: Mapping[str, Head]) -> bool:
    """Return whether the letter with this key is the one that was listed here, and no later one."""
    return entry.letter in heads and heads[entry.letter].entry == entry.entry


def _matches(chosen: Filter, head: Head) -> bool:
    return chosen.endpoint in {"", head.endpoint} and chosen.type in {"", head.type} and chosen.reason in head.reason


def _last_page(root: Document | None) -> int:
    return decode_root(ROOT, root.body).last if root else 0


def _letter(key: str) -> str:
    return f"dead/letter/{key}"


def _page(number: int) -> str:
    return f"dead/page/{number:08}"


def _drop(name: str, found: Document | None) -> Change | None:
    return Change(key=name, body=None, expected=found.version) if found else None
