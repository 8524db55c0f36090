"""Dead letters grouped by failure, also where the store has no index of groups."""

from collections.abc import Iterable

from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.failure_group import FailureGroup, failure_group
from onceonly.ports.dead_letters import DeadLetters, Filter, GroupCount, GroupCounts, LetterIndex, ReadsNewest

KEY_DIGITS = 32
NEWEST = 1000
"""Without an index, groups cover this number of dead letters: the newest."""


async def read_groups(letters: DeadLetters, endpoint: str = "") -> GroupCounts:
    """Count the dead letters of an endpoint, or of all, by failure group. Raises CommitFailed, OutcomeUnknown.

    Documents cannot be searched: there the newest 1,000 letters are grouped, and the result reports whether these are all.
    """
    if isinstance(letters, LetterIndex):
        return await letters.groups(endpoint)
    newest, are_all = await newest_letters(letters, endpoint)
    return GroupCounts(_count(reversed(newest)), complete=are_all)


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


def _count(letters: Iterable[DeadLetter]) -> tuple[GroupCount, ...]:
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
