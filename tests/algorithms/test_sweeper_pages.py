"""How far the sweeper looks when nothing on a page could be swept."""

from collections.abc import Sequence

import pytest

from onceonly.algorithms.sweeper import sweep_each
from onceonly.model.errors import ConflictError, OutcomeUnknown, PeerAway

LEFT = list(range(8))


class Pages:
    """The first of what is left, however many are asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def __call__(self, limit: int) -> Sequence[int]:
        """Return a page."""
        self.asked.append(limit)
        return LEFT[:limit]


async def test_it_looks_further_when_something_is_in_the_way() -> None:
    """Each time at twice as many."""
    pages = Pages()

    async def sweep_one(number: int) -> bool:
        if number < 3:
            raise ConflictError("somebody is at it")
        return True

    assert await sweep_each(pages, sweep_one, 2) == 1
    assert pages.asked == [2, 4]


async def test_it_looks_no_further_when_a_peer_is_away() -> None:
    """Each attempt behind it may have asked the same peer. It is no failure."""
    pages = Pages()

    async def sweep_one(_number: int) -> bool:
        raise PeerAway("no answer", "http://peer.example")

    assert await sweep_each(pages, sweep_one, 2) == 0
    assert pages.asked == [2]


@pytest.mark.parametrize("free", [True, False])
async def test_an_outage_is_raised_if_nothing_was_swept(*, free: bool) -> None:
    """It looks no further either way."""
    pages = Pages()

    async def sweep_one(number: int) -> bool:
        if number:
            raise OutcomeUnknown("no answer")
        return free

    if free:
        assert await sweep_each(pages, sweep_one, 2) == 1
    else:
        with pytest.raises(OutcomeUnknown):
            await sweep_each(pages, sweep_one, 2)
    assert pages.asked == [2]
