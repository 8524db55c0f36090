"""Dead letters grouped by failure."""

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.world import Live
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.failure_group import failure_group
from onceonly.model.message import Message
from onceonly.operations import letters as module
from onceonly.operations.letters import complete_group, read_groups
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly_conformance.clock import START, ManualClock


def letter(number: int, reason: str = "no order", *, endpoint: str = "shop", type_: str = "PlaceOrder") -> DeadLetter:
    """Make a letter, stored at its number."""
    message = Message(id=str(number), source="cli", type=type_, body=b"%d" % number)
    words = f"{reason} {number}"
    return DeadLetter(endpoint=endpoint, reason=words, headers=(), body=message.body, message=message, at=START + number)


@pytest.fixture(params=["memory", "documents"])
def letters(request: pytest.FixtureRequest) -> DeadLetters:
    """Return dead letters without an index."""
    clock, driver = ManualClock(), Live()
    if request.param == "memory":
        return MemoryDeadLetters(driver, clock=clock)
    return DocumentDeadLetters(MemoryDocuments(driver), clock=clock, page=3)


async def test_groups_have_their_count_their_times_and_their_last_letter(letters: DeadLetters) -> None:
    """The largest is first. Another endpoint has its own."""
    given = [letter(1, "gone"), *(letter(number) for number in (2, 3, 4)), letter(5, endpoint="billing")]
    for each in given:
        await letters.add(each)
    found = await read_groups(letters, "shop")
    assert [(each.count, str(each.group), each.first - START, each.last - START) for each in found.groups] == [
        (3, "no order …", 2, 4),
        (1, "gone …", 1, 1),
    ]
    assert found.complete
    assert found.groups[0].latest == given[3].key
    assert sorted(each.endpoint for each in (await read_groups(letters)).groups) == ["billing", "shop", "shop"]


async def test_a_group_selects_its_letters(letters: DeadLetters) -> None:
    """On pages and in counts."""
    for each in (letter(1, "gone"), letter(2), letter(3), letter(4, "gone")):
        await letters.add(each)
    key = failure_group(letter(9, "gone")).key.hex()
    chosen = Filter(endpoint="shop", failure=key)
    assert [each.reason for each in await letters.page(chosen)] == ["gone 1", "gone 4"]
    assert await letters.count(chosen) == 2
    assert await letters.count(replace(chosen, type="Other")) == 0


async def test_only_the_newest_letters_are_grouped_where_there_is_no_index(
    letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the answer says so."""
    for number in range(9):
        await letters.add(letter(number, "old" if number < 4 else "new"))
    monkeypatch.setattr(module, "NEWEST", 5)
    found = await read_groups(letters)
    assert [(each.count, str(each.group)) for each in found.groups] == [(5, "new …")]
    assert not found.complete
    monkeypatch.setattr(module, "NEWEST", 9)
    assert (await read_groups(letters)).complete


async def test_the_first_digits_of_a_group_are_enough(letters: DeadLetters) -> None:
    """If no other group has them."""
    for each in (letter(1, "gone"), letter(2)):
        await letters.add(each)
    key = failure_group(letter(9, "gone")).key.hex()
    assert await complete_group(letters, Filter(failure=key[:9].upper())) == Filter(failure=key)
    assert await complete_group(letters, Filter(failure=key)) == Filter(failure=key)
    assert await complete_group(letters, Filter(type="a")) == Filter(type="a")
    with pytest.raises(SetupError, match="no group has the key 'xyz'"):
        await complete_group(letters, Filter(failure="xyz"))
