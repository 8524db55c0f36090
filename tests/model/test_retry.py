"""The retry policy is arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.message import Failure, FailureKind
from onceonly.model.retry import HISTORY_KEPT, Retry, Verdict, judge

BOOM = Failure(kind=FailureKind.EXCEPTION, reason="boom", traceback="...")


def decide(policy: Retry, failure: Failure = BOOM, *, attempts: int = 0, chance: float = 0.0) -> Verdict:
    """Judge one failure at instant 1,000,000."""
    return judge(policy, failure, attempts=attempts, history=(), now=1_000_000, chance=chance)


def test_immediate_retries_come_first_then_growing_delays_then_the_end() -> None:
    """Two at once, then 1 s, 3 s, 9 s, then a dead letter."""
    policy = Retry(immediate=2, delayed=3, first_delay=1, factor=3, jitter=0)
    delays = [policy.delay_after(attempts, 0.0) for attempts in range(1, 7)]
    assert delays == [0, 0, 1, 3, 9, None]


def test_a_delay_is_kept_as_an_absolute_instant() -> None:
    """The copy says when it is due, not how long to wait."""
    policy = Retry(immediate=0, delayed=1, first_delay=2, jitter=0)
    assert decide(policy).due == 1_002_000


@given(st.floats(0, 0.999), st.integers(1, 50))
def test_jitter_only_lengthens_and_stays_in_its_bounds(chance: float, attempts: int) -> None:
    """Between the plain delay and the plain delay plus its fraction."""
    policy = Retry(immediate=0, delayed=50, first_delay=1, factor=2, max_delay=60, jitter=0.5)
    plain, spread = policy.delay_after(attempts, 0.0), policy.delay_after(attempts, chance)
    assert plain is not None
    assert spread is not None
    assert plain <= spread <= 60 * 1.5


def test_a_rejected_message_is_given_up_at_once() -> None:
    """No retry helps."""
    rejected = Failure(kind=FailureKind.REJECTED, reason="no such customer")
    verdict = decide(Retry(immediate=9), rejected)
    assert verdict.give_up
    assert verdict.history[-1].reason == "no such customer"


def test_retry_later_counts_nothing() -> None:
    """Asked for by the handler: same count, same history, due later."""
    later = Failure(kind=FailureKind.LATER, reason="later", delay=5)
    assert decide(Retry(), later, attempts=3) == Verdict(give_up=False, due=1_005_000, attempts=3, history=())


def test_the_history_keeps_the_last_failures_with_their_instants() -> None:
    """Old ones make room, so a copy's headers stay small."""
    history = tuple(Failure(kind=FailureKind.EXCEPTION, reason=str(n)) for n in range(HISTORY_KEPT))
    verdict = judge(Retry(immediate=99), BOOM, attempts=10, history=history, now=77, chance=0)
    assert len(verdict.history) == HISTORY_KEPT
    assert (verdict.history[0].reason, verdict.history[-1].reason, verdict.history[-1].at) == ("1", "boom", 77)


@pytest.mark.parametrize(
    "wrong", [Retry(immediate=-1), Retry(first_delay=0), Retry(max_delay=1), Retry(factor=0.5), Retry(jitter=2)]
)
def test_impossible_numbers_are_named(wrong: Retry) -> None:
    """Each problem is one sentence."""
    assert len(wrong.problems()) == 1
    assert Retry().problems() == ()
