"""Dead letters: selections of them, page by page, and their groups by failure, also where the store has no index of groups."""

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.failure_group import FailureGroup, failure_group
from onceonly.ports.dead_letters import DeadLetters, Filter, GroupCount, GroupCounts, LetterIndex, ReadsNewest

PAGE = 100
KEY_DIGITS = 32
NEWEST = 1000
"""Without an index, groups cover this number of dead letters: the newest."""
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds since 1970: the years 1 to 9999


async def choose(letters: DeadLetters, chosen: Filter, *, limit: int) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    async for letter in _read_all(letters, chosen):
        if len(found) == limit:
            break
        found.append(letter)
    return found


async def find(letters: DeadLetters, key: str) -> DeadLetter:
    """Return one letter by its key, or by its first digits. Raises SetupError if there is none, or more than one."""
    exact = await letters.get(key)
    if exact is not None:
        return exact
    found = [letter async for letter in _read_all(letters, Filter()) if key and letter.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SetupError(f"{len(found)} dead letters have keys that begin with {key!r}: write more digits of the key")
    raise SetupError(f"no dead letter has the key {key!r}: `onceonly dead list module:endpoint` lists the keys")


async def pages(letters: DeadLetters, chosen: Filter) -> AsyncIterator[Sequence[DeadLetter]]:
    """Yield the selected letters that exist now, page by page. The caller may remove each page.

    No letter is yielded twice, even if it was removed and stored again.
    """
    left, seen = await letters.count(chosen), set[str]()
    page = await letters.page(chosen, limit=PAGE)
    while page and left > 0:
        # read before this page is yielded: the next one is found by the last key of this one
        following = await letters.page(chosen, after=page[-1].key, limit=PAGE)
        fresh = [letter for letter in page if letter.key not in seen][:left]
        seen.update(letter.key for letter in fresh)
        left -= len(fresh)
        if fresh:
            yield fresh
        page = following


def moment(milliseconds: int) -> str:
    """Format an instant for people. Instants before the year 1 or after 9999 become the nearest in that range."""
    seconds = min(max(milliseconds // 1000, _FIRST), _LAST)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def _read_all(letters: DeadLetters, chosen: Filter) -> AsyncIterator[DeadLetter]:
    after = ""
    while page := await letters.page(chosen, after=after, limit=PAGE):
        for letter in page:
            yield letter
        after = page[-1].key


async def read_groups(letters: DeadLetters, endpoint: str = "") -> GroupCounts:
    """Count the dead letters of an endpoint, or of all, by failure group. Raises CommitFailed, OutcomeUnknown.

    Documents cannot be searched: there the newest 1,000 letters are grouped, and the result reports whether these are all.
    """
    if isinstance(letters, LetterIndex):
        return await letters.groups(endpoint)
    newest, are_all = await newest_letters(letters, endpoint)
    return GroupCounts(_count_groups(reversed(newest)), complete=are_all)


async def newest_letters(letters: DeadLetters, endpoint: str = "") -> tuple[tuple[DeadLetter, ...], bool]:
    """Return the newest dead letters of an endpoint, or of all, and whether these are all. At most 1,000 are read.

    Raises CommitFailed, OutcomeUnknown.
    """
    chosen = Filter(endpoint=endpoint)
    if isinstance(letters, ReadsNewest):
        found = await letters.newest(Filter(), NEWEST + 1)
        return tuple(letter for letter in found[:NEWEST] if chosen.matches(letter)), len(found) <= NEWEST
    page = await letters.page(chosen, limit=NEWEST + 1)
    return page[:NEWEST][::-1], len(page) <= NEWEST


def _count_groups(letters: Iterable[DeadLetter]) -> tuple[GroupCount, ...]:
    """Group letters that are given in the order they were stored."""
    found: dict[tuple[str, FailureGroup], list[DeadLetter]] = {}
    for letter in letters:
        found.setdefault((letter.endpoint, failure_group(letter)), []).append(letter)
    counts = [
        GroupCount(endpoint, group, len(some), some[0].at, some[-1].at, some[-1].key)
        for (endpoint, group), some in found.items()
    ]
    return tuple(sorted(counts, key=lambda each: -each.count))


async def complete_group(letters: DeadLetters, chosen: Filter) -> Filter:
    """Return a filter with the whole key of its failure group, of which the first digits are enough.

    Raises SetupError if no group, or more than one, has a key that begins with them; CommitFailed, OutcomeUnknown.
    """
    begin = chosen.failure.lower()
    if not begin or len(begin) == KEY_DIGITS:
        return replace(chosen, failure=begin)
    counts = await read_groups(letters, chosen.endpoint)
    keys = sorted({count.key for count in counts.groups if count.key.startswith(begin)})
    if len(keys) == 1:
        return replace(chosen, failure=keys[0])
    if keys:
        raise SetupError(f"{len(keys)} groups have keys that begin with {begin!r}: write more digits of the key")
    raise SetupError(f"no group has the key {begin!r}: `onceonly dead groups module:endpoint` lists the keys")
