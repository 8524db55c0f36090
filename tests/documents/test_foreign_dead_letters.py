"""Documents of dead letters that cannot be read cost themselves: letters, pages of their list, and where it ends."""

import random

import msgspec
import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.dead_letters import ROOT, DocumentDeadLetters
from onceonly.formats import undecodable
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.message import Message
from onceonly.operations.letters import pages
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import failures, rich_message
from tests.fuzzing import inputs
from tests.sql.test_foreign_store_rows import changed

UNREADABLE = (b"", b"\xff", b"[]", b"{}", b"[" * 5000, b'{"onceonly": 2}', b'{"last": -1}', b'{"last": 1e99}', b'"\xff"')


@pytest.fixture(autouse=True)
def _none_reported() -> None:
    undecodable._REPORTED_LETTERS.clear()


@pytest.fixture
def documents() -> MemoryDocuments:
    """Make a place."""
    return MemoryDocuments(Live())


@pytest.fixture
def letters(documents: MemoryDocuments) -> DocumentDeadLetters:
    """Use it, with two letters on a page."""
    return DocumentDeadLetters(documents, clock=ManualClock(), page=2)


def letter(name: str) -> DeadLetter:
    """Make a letter."""
    message = Message(id=name, source="test", type="PlaceOrder", body=b"{}")
    return DeadLetter(endpoint="shop", reason=f"no order {name}", headers=(), body=b"{}", message=message)


async def write(documents: MemoryDocuments, key: str, body: bytes) -> bytes:
    """Change a document, and return what it was."""
    found = (await documents.load([key]))[key]
    await documents.save([Change(key=key, body=body, expected=found.version)])
    return found.body


async def selected(letters: DocumentDeadLetters) -> list[str]:
    """Return the keys of all letters, as each command reads them."""
    return [each.key async for page in pages(letters, Filter()) for each in page]


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_letter_is_shown_with_its_key(
    documents: MemoryDocuments, letters: DocumentDeadLetters, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """And exported with its bytes, deleted, and logged once. The letters before and behind it are read."""
    keys = [letter(name).key for name in "abcde"]
    for name in "abcde":
        await letters.add(letter(name))
    await write(documents, f"dead/letter/{keys[2]}", stored)
    assert await selected(letters) == keys
    assert [each.key for each in await letters.page(Filter(), after=keys[2])] == keys[3:]
    assert [each.key for each in await letters.newest(Filter(), 10)] == [keys[4], keys[3], keys[2], keys[1], keys[0]]
    assert await letters.count(Filter(endpoint="shop")) == 4
    bad = await letters.get(keys[2])
    assert isinstance(bad, UnreadableLetter)
    assert bad.body == stored
    (entry,) = [each for each in caplog.records if getattr(each, "event", "") == "dead letter unreadable"]
    assert entry.key == ascii(keys[2])
    assert await letters.remove([keys[2], keys[3]]) == 2
    assert await selected(letters) == [keys[0], keys[1], keys[4]]


async def test_a_damaged_letter_is_replaced_when_its_message_fails_again(
    documents: MemoryDocuments, letters: DocumentDeadLetters
) -> None:
    """Its message would be lost otherwise. It is listed once."""
    for name in "ab":
        await letters.add(letter(name))
    await write(documents, f"dead/letter/{letter('a').key}", b"{}")
    await letters.add(letter("a"))
    found = await letters.get(letter("a").key)
    assert found is not None
    assert found.message == letter("a").message
    assert sorted(await selected(letters)) == sorted([letter("a").key, letter("b").key])


async def test_parts_that_are_not_its_own_are_not_deleted(documents: MemoryDocuments, letters: DocumentDeadLetters) -> None:
    """A letter's document that names documents of others deletes none of them."""
    await letters.add(letter("a"))
    await documents.save([Change(key="entity/of-others", body=b"1")])
    name = f"dead/letter/{letter('a').key}"
    head = msgspec.json.decode((await documents.load([name]))[name].body)
    await write(documents, name, msgspec.json.encode(head | {"letter": "", "parts": ["entity/of-others"]}))
    assert await letters.remove([letter("a").key]) == 1
    assert "entity/of-others" in await documents.load(["entity/of-others"])


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
@pytest.mark.parametrize("name", [ROOT, "dead/page/00000001"])
async def test_an_unreadable_list_hides_only_its_letters(
    documents: MemoryDocuments, letters: DocumentDeadLetters, name: str, stored: bytes
) -> None:
    """Letters of other pages are listed, and later letters get a page."""
    keys = [letter(name).key for name in "abcdef"]
    for each in "abcde":
        await letters.add(letter(each))
    await write(documents, name, stored)
    await letters.add(letter("f"))
    hidden = set() if name == ROOT else set(keys[2:4])
    assert set(await selected(letters)) >= set(keys) - hidden
    assert await letters.remove(keys) == 6


async def test_fuzz_documents_of_letters(documents: MemoryDocuments, letters: DocumentDeadLetters) -> None:
    """Cut and changed documents, and bytes that never were one: the letters around them are listed, and each can be deleted."""
    rng = random.Random(38)  # noqa: S311 - inputs
    rich = DeadLetter(
        endpoint="shop", reason="ValueError", headers=(("x", "é"),), body=b"\0", message=rich_message(), history=failures()
    )
    some = [letter("a"), rich, letter("b")]
    for each in some:
        await letters.add(each)
    name = f"dead/letter/{rich.key}"
    plain = (await documents.load([name]))[name].body
    for _ in range(inputs()):
        await write(documents, name, changed(plain, rng))
        found = await letters.page(Filter())
        assert {some[0].key, some[2].key} <= {each.key for each in found} <= {each.key for each in some}
        got = await letters.get(rich.key)
        assert got is None or got.key == rich.key
    assert await letters.remove([rich.key]) == 1


async def test_fuzz_documents_of_the_list(documents: MemoryDocuments, letters: DocumentDeadLetters) -> None:
    """A page that is cut or changed: the letters of the others are listed."""
    rng = random.Random(38)  # noqa: S311 - inputs
    keys = [letter(name).key for name in "abcde"]
    for each in "abcde":
        await letters.add(letter(each))
    name = "dead/page/00000001"
    plain = (await documents.load([name]))[name].body
    for _ in range(inputs()):
        await write(documents, name, changed(plain, rng))
        assert {keys[0], keys[1], keys[4]} <= {each.key for each in await letters.page(Filter())}
