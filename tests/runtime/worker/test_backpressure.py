"""The pace: less after a lost race, slower in an outage, back to full when all is well."""

from hypothesis import given
from hypothesis import strategies as st

from onceonly.algorithms.settlement import BatchReport
from onceonly.runtime.worker.backpressure import CONFLICTED_MOST_SECONDS, UNKNOWN_MOST_SECONDS, Backpressure


class Fixed:
    """The same number every time."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def fraction(self) -> float:
        """Return it."""
        return self._fraction


def test_a_lost_race_halves_what_was_taken_down_to_one() -> None:
    """What was really taken counts, not what might have been."""
    backpressure = Backpressure(100, Fixed(0.5))
    limits = []
    for taken in (40, 20, 10, 5, 2, 1):
        backpressure.after(BatchReport(conflicted=taken), taken)
        limits.append(backpressure.limit)
    assert limits == [20, 10, 5, 2, 1, 1]


def test_a_race_for_an_entity_halves_nothing_and_waits() -> None:
    """A smaller unit loses it as well, and then there are more of them."""
    backpressure = Backpressure(100, Fixed(0.5))
    assert backpressure.after(BatchReport(conflicted=40, lost_race=40), 40) > 0.0
    assert backpressure.limit == 100
    backpressure.after(BatchReport(conflicted=40, lost_race=39), 40)
    assert backpressure.limit == 20


def test_good_batches_bring_it_back_to_full_size() -> None:
    """Doubling, and never beyond."""
    backpressure = Backpressure(10, Fixed(0.0))
    backpressure.after(BatchReport(conflicted=4), 4)
    limits = []
    for _ in range(4):
        assert backpressure.after(BatchReport(handled=1), 1) == 0.0
        limits.append(backpressure.limit)
    assert limits == [4, 8, 10, 10]


def test_batches_that_began_with_the_same_limit_double_it_once() -> None:
    """Twenty small batches end at once, and no sample saw their handlers wait: the next batch must not be a full one."""
    backpressure = Backpressure(100, Fixed(0.0), first=1)
    for _ in range(20):
        backpressure.after(BatchReport(handled=1), 1, asked=1)
    assert backpressure.limit == 2
    backpressure.after(BatchReport(handled=2), 2, asked=2)
    assert backpressure.limit == 4


def test_slow_handlers_get_as_many_as_they_can_take() -> None:
    """Three of ten were handled in time: three next time, and one at least."""
    backpressure = Backpressure(10, Fixed(0.0))
    assert backpressure.after(BatchReport(handled=3, postponed=7), 10) == 0.0
    assert backpressure.limit == 3
    backpressure.after(BatchReport(postponed=3), 3)
    assert backpressure.limit == 1


def test_an_outage_waits_longer_each_time_and_forgets_when_it_is_over() -> None:
    """Doubling to a cap; one good batch begins anew."""
    backpressure = Backpressure(10, Fixed(1.0))
    waits = [backpressure.after(BatchReport(unknown=1), 1) for _ in range(8)]
    assert waits[:3] == [0.1, 0.2, 0.4]
    assert waits[-1] == UNKNOWN_MOST_SECONDS
    backpressure.after(BatchReport(handled=1), 1)
    assert backpressure.after_outage() == 0.1


@given(st.lists(st.sampled_from(["conflicted", "unknown", "handled", "postponed"])), st.floats(0, 0.999))
def test_limits_and_waits_stay_in_their_bounds(turns: list[str], random: float) -> None:
    """Whatever happens, at least one message is taken, at most a full batch, and no wait is longer than the cap."""
    backpressure = Backpressure(64, Fixed(random))
    for turn in turns:
        taken = backpressure.limit
        wait = backpressure.after(BatchReport(**{turn: taken}), taken)
        assert 1 <= backpressure.limit <= 64
        assert 0 <= wait <= max(UNKNOWN_MOST_SECONDS, CONFLICTED_MOST_SECONDS)
        assert (wait == 0) == (turn in ("handled", "postponed"))
