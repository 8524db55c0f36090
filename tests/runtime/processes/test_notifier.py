"""Notifications that come before their listener."""

from collections.abc import Sequence

from onceonly.model.identity import Identity
from onceonly.runtime.processes.notifier import MOST_EARLY, CommittedRecord, Notifier

FIRST, SECOND = (Identity("shop", "1"),), (Identity("shop", "2"),)


async def test_a_listener_that_is_expected_gets_what_came_before() -> None:
    """Once, and in order."""
    notifier, heard = Notifier(), list[Sequence[CommittedRecord]]()
    with notifier.expected():
        notifier.notify(FIRST)
        notifier.notify(SECOND)
    with notifier.listen(heard.append):
        assert heard == [FIRST, SECOND]
    with notifier.listen(heard.append):
        assert heard == [FIRST, SECOND]


async def test_without_an_expected_listener_nothing_is_kept() -> None:
    """The next look into the store finds it."""
    notifier, heard = Notifier(), list[Sequence[CommittedRecord]]()
    notifier.notify(FIRST)
    with notifier.listen(heard.append):
        assert heard == []


async def test_no_more_is_kept_than_the_limit() -> None:
    """The oldest are dropped."""
    notifier, heard = Notifier(), list[Sequence[CommittedRecord]]()
    with notifier.expected():
        for _ in range(MOST_EARLY + 1):
            notifier.notify(FIRST)
        notifier.notify(SECOND)
    with notifier.listen(heard.append):
        assert len(heard) == MOST_EARLY
        assert heard[-1] == SECOND
