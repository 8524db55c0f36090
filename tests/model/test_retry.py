"""The retry policy is arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.message import Failure, FailureKind
from onceonly.model.retry import BLAMED, HISTORY_KEPT, SURE, Retry, RetryDecision, decide_retry, is_blamed

BOOM = Failure(kind=FailureKind.EXCEPTION, reason="boom", traceback="...")


def decide(policy: Retry, failure: Failure = BOOM, *, attempts: int = 0, fraction: float = 0.0) -> RetryDecision:
    """Judge one failure at instant 1,000,000."""
    return decide_retry(policy, failure, attempts=attempts, history=(), now=1_000_000, fraction=fraction)


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
def test_jitter_only_lengthens_and_stays_in_its_bounds(fraction: float, attempts: int) -> None:
    """Between the plain delay and the plain delay plus its fraction."""
    policy = Retry(immediate=0, delayed=50, first_delay=1, factor=2, max_delay=60, jitter=0.5)
    plain, spread = policy.delay_after(attempts, 0.0), policy.delay_after(attempts, fraction)
    assert plain is not None
    assert spread is not None
    assert plain <= spread <= 60 * 1.5


def test_a_rejected_message_is_given_up_at_once() -> None:
    """No retry helps."""
    rejected = Failure(kind=FailureKind.REJECTED, reason="no such customer")
    decision = decide(Retry(immediate=9), rejected)
    assert decision.give_up
    assert decision.history[-1].reason == "no such customer"


def test_retry_later_counts_nothing() -> None:
    """Asked for by the handler: same count, same history, due later."""
    later = Failure(kind=FailureKind.LATER, reason="later", delay=5)
    assert decide(Retry(), later, attempts=3) == RetryDecision(give_up=False, due=1_005_000, attempts=3, history=())


def test_the_history_keeps_the_last_failures_with_their_instants() -> None:
    """Old ones make room, so a copy's headers stay small."""
    history = tuple(Failure(kind=FailureKind.EXCEPTION, reason=str(n)) for n in range(HISTORY_KEPT))
    decision = decide_retry(Retry(immediate=99), BOOM, attempts=10, history=history, now=77, fraction=0)
    assert len(decision.history) == HISTORY_KEPT
    assert (decision.history[0].reason, decision.history[-1].reason, decision.history[-1].at) == ("1", "boom", 77)


@pytest.mark.parametrize(
    "wrong", [Retry(immediate=-1), Retry(first_delay=0), Retry(max_delay=1), Retry(factor=0.5), Retry(jitter=2)]
)
def test_impossible_numbers_are_named(wrong: Retry) -> None:
    """Each problem is one sentence."""
    assert len(wrong.problems()) == 1
    assert Retry().problems() == ()


UNKNOWN = Failure(kind=FailureKind.UNKNOWN, reason=f"{BLAMED}: Failed: backend 4711 is gone")
LOCKED = Failure(kind=FailureKind.LOCKED, reason="LockTimeout: canceling statement due to lock timeout")


def fail(*failures: Failure, policy: Retry = Retry(immediate=1, delayed=0, jitter=0)) -> list[RetryDecision]:  # noqa: B008 - frozen
    """Judge one failure after another, of one message, at instant 1,000,000."""
    decisions: list[RetryDecision] = []
    attempts, history = 0, tuple[Failure, ...]()
    for failure in failures:
        decisions.append(decide_retry(policy, failure, attempts=attempts, history=history, now=1_000_000, fraction=0.0))
        attempts, history = decisions[-1].attempts, decisions[-1].history
    return decisions


def test_an_unsure_failure_counts_when_it_repeats_itself() -> None:
    """Five in a row count as one, and begin anew; the policy gives the message up after so many counts as ever."""
    decisions = fail(*[UNKNOWN] * SURE * 2)
    assert [decision.attempts for decision in decisions] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert [decision.give_up for decision in decisions] == [False] * 9 + [True]
    assert [decision.due for decision in decisions[:5]] == [0, 0, 1_001_000, 1_002_000, 0]
    assert [failure.kind for failure in decisions[-1].history] == [FailureKind.COMMIT, FailureKind.COMMIT]
    assert decisions[-1].history[-1].reason == UNKNOWN.reason


def test_numbers_do_not_make_unsure_failures_different() -> None:
    """Each attempt has another process, port or address."""
    others = [Failure(kind=FailureKind.UNKNOWN, reason=UNKNOWN.reason.replace("4711", str(n))) for n in range(SURE)]
    assert fail(*others)[-1].attempts == 1


def test_another_failure_between_makes_unsure_ones_begin_anew() -> None:
    """Neither a different one, nor one of its own, is the same trouble."""
    other = Failure(kind=FailureKind.UNKNOWN, reason=f"{BLAMED}: Conflict: lost")
    assert fail(*[UNKNOWN] * (SURE - 1), other, UNKNOWN)[-1].attempts == 0
    assert fail(*[UNKNOWN] * (SURE - 1), BOOM, UNKNOWN)[-1].attempts == 1


def test_waiting_for_a_lock_is_never_counted_and_waits_longer_each_time() -> None:
    """A quarter of a second first, eight at most."""
    decisions = fail(*[LOCKED] * 50)
    assert {(decision.attempts, decision.give_up) for decision in decisions} == {(0, False)}
    waits = [decision.due - 1_000_000 for decision in decisions]
    assert waits == [250, 500, 1000, 2000, 4000, *[8000] * 45]
    assert len(decisions[-1].history) < HISTORY_KEPT


def test_older_versions_can_read_what_is_not_counted_yet() -> None:
    """They know RetryLater; the history before stays."""
    decisions = fail(BOOM, UNKNOWN, LOCKED)
    assert [failure.kind for failure in decisions[-1].history] == [FailureKind.EXCEPTION, FailureKind.LATER]


def test_a_message_is_blamed_from_the_first_unsure_failure_until_it_counts() -> None:
    """While it is, it runs in a unit of its own."""
    histories = [decision.history for decision in fail(*[UNKNOWN] * SURE, LOCKED)]
    assert [is_blamed(history) for history in histories] == [True, True, True, True, False, False]
    assert not is_blamed(())


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Retry(delayed=[1, 2]), "Retry: delayed must be a number of retries, such as 5, not [1, 2]"),  # type: ignore[arg-type]
        (Retry(immediate=1.5), "Retry: immediate must be a number of retries, such as 5, not 1.5"),  # type: ignore[arg-type]
        (Retry(factor="4"), "Retry: factor must be a number, not '4'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_a_number_is_named(policy: Retry, problem: str) -> None:
    """A list of delays is a natural guess."""
    assert policy.problems() == (problem,)
