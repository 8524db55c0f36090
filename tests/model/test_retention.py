"""The arithmetic of a retention that changes while processes are at work, whose clocks differ."""

from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.retention import CLOCK_MARGIN_MS, GRACE_MS, MOST_ERAS, Retention, always
from onceonly.model.ring import Undecidable
from onceonly.model.wording import FOREVER_MS

HOUR, DAY = 3_600_000, 86_400_000
FIRST = 1_700_000_000_000
REFRESH_MS = 60_000
"""How old what a process has read may be."""
skews = st.integers(-HOUR // 4, HOUR // 4)
"""So two clocks differ by half an hour at most: the margin also covers what was read a minute ago."""


class ChangeAt(NamedTuple):
    """An operator sets a retention, this long after the change before."""

    after: int
    kept: int
    skew: int


changes = st.lists(st.builds(ChangeAt, st.integers(1, 20 * DAY), st.integers(HOUR, 30 * DAY), skews), min_size=1, max_size=5)


class History(NamedTuple):
    """What was stored, from when on: instants of a clock that is right."""

    stored: list[tuple[int, Retention]]

    def read(self, at: int) -> Retention:
        """Return what a process reads at an instant."""
        return next(found for since, found in reversed(self.stored) if since <= at)

    @property
    def end(self) -> int:
        return self.stored[-1][0]


def history_of(made: list[ChangeAt], first: int) -> History:
    """Return what is stored after each change."""
    stored, at = [(0, always(first))], FIRST
    for each in made:
        at += each.after
        stored.append((at, stored[-1][1].changed(each.kept, at + each.skew)))
    return History(stored)


def any_skew(chance: Random) -> int:
    """Return by how much a clock is off."""
    return chance.randint(-HOUR // 4, HOUR // 4)


@pytest.mark.parametrize("seed", range(20))
def test_what_may_be_gone_is_behind_the_horizon(seed: int) -> None:
    """A mark that its service has dropped, and a record that another process has trimmed, by whatever each has read.

    The numbers are uniform: a bug is in the middle of a range as often as at its ends.
    """
    chance = Random(seed)  # noqa: S311 - for a test
    seen = [0, 0]
    for _ in range(500):
        made = [
            ChangeAt(chance.randint(1, 10 * DAY), chance.choice([HOUR, DAY, 7 * DAY, 30 * DAY]), any_skew(chance))
            for _ in range(chance.randint(1, 3))
        ]
        history = history_of(made, chance.choice([HOUR, DAY, 7 * DAY, 30 * DAY]))
        handled = chance.randint(FIRST - 10 * DAY, history.end + 3 * DAY)
        instant = handled - chance.choice([0, HOUR, chance.randint(0, DAY)])
        stamped = handled + any_skew(chance)
        kept = history.read(handled - chance.randint(0, REFRESH_MS)).kept(stamped)
        dropped = max(stamped, instant) + kept + CLOCK_MARGIN_MS + any_skew(chance) + 1
        changed, _ = chance.choice(history.stored[1:])
        moments = [chance.randint(handled, history.end + 10 * DAY), changed + chance.randint(0, REFRESH_MS)]
        at, clock = max(handled, chance.choice(moments)), any_skew(chance)
        oldest = at + clock - CLOCK_MARGIN_MS - history.read(at - chance.randint(0, REFRESH_MS)).kept(at + clock)
        for number, (is_gone, since) in enumerate(((True, max(dropped, handled)), (stamped < oldest, at))):
            if is_gone:
                seen[number] += 1
                now = since + chance.choice([0, HOUR, DAY, 5 * DAY, 20 * DAY])
                read = history.read(now - chance.randint(0, REFRESH_MS))
                assert read.undecidable_reason(instant, now + any_skew(chance)) is Undecidable.TOO_OLD
    assert min(seen) > 100


@given(changes, st.integers(HOUR, 30 * DAY), st.integers(0, 70 * DAY))
def test_what_is_younger_than_every_retention_is_never_refused(made: list[ChangeAt], first: int, later: int) -> None:
    """By a clock that is right: a change refuses no message that each of the retentions covers."""
    history = history_of(made, first)
    now = history.end + later
    shortest = min(first, *(each.kept for each in made))
    assert history.read(now).undecidable_reason(now - shortest + HOUR // 4, now) is None


@given(st.integers(HOUR, 30 * DAY), st.integers(HOUR, 30 * DAY))
def test_a_change_takes_effect_when_all_know_of_it(before: int, after: int) -> None:
    """A shorter one refuses copies at once, and deletes records later. A longer one is not relied on until claims are kept."""
    changed = always(before).changed(after, FIRST)
    assert changed.kept(FIRST) == max(before, after)
    assert changed.kept(FIRST + GRACE_MS) == after
    assert changed.horizon(FIRST) == FIRST - min(before, after)
    assert changed.horizon(FIRST + 90 * DAY) == FIRST + 90 * DAY - after


def test_the_same_again_is_no_change() -> None:
    """No era is added."""
    assert always(DAY).changed(DAY, FIRST) == always(DAY)


def test_eras_that_are_over_are_left_out() -> None:
    """And of very many changes the last ones are kept."""
    changed = always(DAY).changed(2 * DAY, FIRST).changed(DAY, FIRST + 30 * DAY)
    assert [era.kept for era in changed.eras] == [2 * DAY, DAY]
    for number in range(300):
        changed = changed.changed(DAY + number + 1, FIRST + 40 * DAY + number)
    assert len(changed.eras) <= MOST_ERAS + 1


def test_forever_ends_never() -> None:
    """Nothing is ever too old, nor too far ahead."""
    assert always(FOREVER_MS).undecidable_reason(1, FIRST) is None
    assert always(FOREVER_MS).undecidable_reason(FIRST * 9, FIRST) is None
    assert always(DAY).undecidable_reason(0, FIRST) is None
