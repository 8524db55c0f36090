"""Dead letters on documents keep every promise of their port, and what crashes and rivals leave is repaired."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import OutcomeUnknown
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Change, DocumentLimits, Documents
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_subject import DocumentsSubject
from onceonly_conformance.samples import rich_message
from tests.conformance.memory_subjects import MemoryPlace
from tests.conformance.sql_documents_subjects import SqlitePlace, make_documents_table

ALL = Filter()


class OnDocuments(NamedTuple):
    """Dead letters in a place for documents, under test; short pages, so that letters are on several."""

    place: DocumentsSubject
    page: int

    async def dead_letters(self) -> DocumentDeadLetters:
        """Open them."""
        return DocumentDeadLetters(await self.place.documents(), clock=self.place, page=self.page)

    def now(self) -> int:
        """Return the time."""
        return self.place.now()


class TestDeadLettersOnMemoryDocuments(DeadLetterSuite):
    """On documents in memory, with pages that hold all."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[OnDocuments]:
        """Open a new world."""
        yield OnDocuments(MemoryPlace(), 100)


class TestDeadLettersOnShortPages(DeadLetterSuite):
    """The same, where two letters fill a page."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[OnDocuments]:
        """Open a new world."""
        yield OnDocuments(MemoryPlace(), 2)


class TestDeadLettersOnSqliteDocuments(DeadLetterSuite):
    """On documents in SQLite."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.file = tmp_path / "subject.db"

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[OnDocuments]:
        """Open a new file."""
        await make_documents_table(self.file)
        async with SqlitePlace.open(f"sqlite:///{self.file}") as place:
            yield OnDocuments(place, 2)


class Cut(MemoryDocuments):
    """Documents whose save with this number does not come back: it was made, or it was not."""

    def __init__(self, driver: Live, at: int, *, applied: bool, body: int = 1 << 20) -> None:
        super().__init__(driver, limits=DocumentLimits(service="memory", key=1024, body=body))
        self.left, self.applied = at, applied

    async def save(self, changes: Sequence[Change]) -> tuple[str | None, ...]:
        """Save, and perhaps not."""
        self.left -= 1
        if self.left != 0:
            return await super().save(changes)
        if self.applied:
            await super().save(changes)
        raise OutcomeUnknown("cut")


def letter(name: str, body: bytes = b"{}") -> DeadLetter:
    """Make a letter."""
    return DeadLetter(endpoint="shop", reason="gave up", headers=(), body=body, message=rich_message(name, body))


def on(documents: Documents) -> DocumentDeadLetters:
    """Open dead letters whose pages hold two."""
    return DocumentDeadLetters(documents, clock=ManualClock(), page=2)


async def ids(letters: DocumentDeadLetters) -> list[str]:
    """Name what is listed."""
    return [each.message.id for each in await letters.page(ALL) if each.message]


async def keys(driver: Live) -> list[str]:
    """Name every document there is."""
    return list(await MemoryDocuments(driver).keys(""))


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("applied", [True, False])
async def test_adding_again_repairs_what_a_crash_left(at: int, applied: bool) -> None:  # noqa: FBT001 - pytest's
    """Crash here, at every write of an add that begins a page: 1 anything of it is there, 2 the message comes again."""
    driver = Live()
    await on(MemoryDocuments(driver)).add(letter("m1"))
    await on(MemoryDocuments(driver)).add(letter("m2"))
    try:
        await on(Cut(driver, at, applied=applied)).add(letter("m3"))
    except OutcomeUnknown:
        await on(MemoryDocuments(driver)).add(letter("m4"))
        await on(MemoryDocuments(driver)).add(letter("m3"))
        await on(MemoryDocuments(driver)).add(letter("m3"))
    found = await ids(on(MemoryDocuments(driver)))
    assert sorted(found)[:3] == ["m1", "m2", "m3"]
    assert len(found) == len(set(found)) == await on(MemoryDocuments(driver)).count(ALL)


async def test_workers_that_add_at_once_lose_nothing_and_list_nothing_twice() -> None:
    """Also the same letters."""
    driver = Live()
    names = [f"m{number}" for number in range(12)]
    await asyncio.gather(*(on(Yielding(driver)).add(letter(name)) for name in (*names, *names)))
    assert sorted(await ids(on(MemoryDocuments(driver)))) == sorted(names)
    assert await on(MemoryDocuments(driver)).count(ALL) == 12


class Yielding(MemoryDocuments):
    """Documents that let others go first, now and then."""

    async def save(self, changes: Sequence[Change]) -> tuple[str | None, ...]:
        """Save after others."""
        await asyncio.sleep(0)
        return await super().save(changes)


async def test_a_letter_that_is_added_again_while_it_is_removed_stays_listed() -> None:
    """Its new entry is not the one that is removed."""
    driver = Live()
    await on(MemoryDocuments(driver)).add(letter("m1"))
    removing = Meanwhile(driver, letter("m1"))
    assert await on(removing).remove([letter("m1").key]) == 1
    assert await ids(on(MemoryDocuments(driver))) == ["m1"]


class Meanwhile(MemoryDocuments):
    """Documents to which another worker adds a letter after the first save."""

    def __init__(self, driver: Live, letter: DeadLetter) -> None:
        super().__init__(driver)
        self._live, self._letter = driver, [letter]

    async def save(self, changes: Sequence[Change]) -> tuple[str | None, ...]:
        """Save, and let the other one add."""
        answers = await super().save(changes)
        if self._letter:
            await on(MemoryDocuments(self._live)).add(self._letter.pop())
        return answers


async def test_a_removal_that_was_cut_off_leaves_no_letter_to_be_seen() -> None:
    """Crash here: 1 the letter is gone, 2 its entry is there, 3 neither pages nor counts show it."""
    driver = Live()
    await on(MemoryDocuments(driver)).add(letter("m1"))
    await on(MemoryDocuments(driver)).add(letter("m2"))
    with pytest.raises(OutcomeUnknown):
        await on(Cut(driver, 2, applied=False)).remove([letter("m1").key])
    assert await ids(on(MemoryDocuments(driver))) == ["m2"]
    assert await on(MemoryDocuments(driver)).count(ALL) == 1


async def test_a_letter_larger_than_a_document_comes_back_whole() -> None:
    """In several documents, which go with it."""
    driver = Live()
    documents = Cut(driver, -1, applied=True, body=4096)
    large = letter("m1", b"0123456789" * 1000)
    await on(documents).add(large)
    before = await keys(driver)
    (found,) = await on(documents).page(ALL)
    assert (found.body, found.message) == (large.body, large.message)
    assert sum(key.startswith("dead/part/") for key in before) == 3
    assert await on(documents).remove([large.key]) == 1
    assert not [key for key in await keys(driver) if key.startswith(("dead/part/", "dead/letter/"))]


async def test_the_list_has_a_document_for_many_letters() -> None:
    """And nothing else but the letters themselves, and where it ends."""
    driver = Live()
    letters = DocumentDeadLetters(MemoryDocuments(driver), clock=ManualClock(), page=100)
    for number in range(50):
        await letters.add(letter(f"m{number}"))
    assert len(await keys(driver)) == 51


async def test_a_page_takes_no_more_than_it_may() -> None:
    """The next one is begun."""
    driver = Live()
    for number in range(5):
        await on(MemoryDocuments(driver)).add(letter(f"m{number}"))
    assert [key for key in await keys(driver) if key.startswith("dead/page/")] == [f"dead/page/{n:08}" for n in range(3)]


async def test_a_letter_that_came_back_after_a_cut_off_removal_is_listed_once() -> None:
    """Crash here: 1 the letter is gone, 2 its entry is there, 3 the letter is added again, under another entry."""
    driver = Live()
    await on(MemoryDocuments(driver)).add(letter("m1"))
    with pytest.raises(OutcomeUnknown):
        await on(Cut(driver, 2, applied=False)).remove([letter("m1").key])
    await on(MemoryDocuments(driver)).add(letter("m1"))
    assert await ids(on(MemoryDocuments(driver))) == ["m1"]
