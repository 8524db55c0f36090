"""How long units wait for locks after one of them met a row that is locked for long."""

from onceonly.sql.time_limits import CAREFUL_FOR, FIRST, MOST, LockWait, LongLocks


def test_units_wait_fully_until_one_of_them_meets_a_lock() -> None:
    """Isolated or not."""
    locks = LongLocks()
    assert waits(locks, 3) == [LockWait.FULL] * 3
    assert locks.wait(isolated=True) is LockWait.FULL


def test_after_a_lock_time_out_units_do_not_wait_and_then_wait_briefly() -> None:
    """Then they wait fully again."""
    locks = LongLocks()
    locks.met()
    assert waits(locks, FIRST - 1) == [LockWait.NONE] * (FIRST - 1)
    assert waits(locks, CAREFUL_FOR) == [LockWait.BRIEF] * CAREFUL_FOR
    assert waits(locks, 1) == [LockWait.FULL]


def test_an_isolated_unit_waits_as_long_as_the_one_that_it_repeats() -> None:
    """Also the last one that does not wait."""
    locks = LongLocks()
    locks.met()
    locks.wait(isolated=True)
    for _ in range(FIRST - 1):
        assert waits(locks, 1) == [LockWait.NONE]
        locks.met(waited=False)
        assert locks.wait(isolated=True) is LockWait.NONE


def test_units_that_are_isolated_from_the_start_are_counted() -> None:
    """They repeat nothing, so they find out whether the row is still locked."""
    locks = LongLocks()
    locks.met(isolated=True)
    assert [locks.wait(isolated=True) for _ in range(FIRST)] == [*[LockWait.NONE] * (FIRST - 1), LockWait.BRIEF]
    locks.met(isolated=True)
    assert [locks.wait(isolated=True) for _ in range(2 * FIRST)][-2:] == [LockWait.NONE, LockWait.BRIEF]


def test_a_row_that_stays_locked_is_waited_for_less_and_less_often() -> None:
    """Up to a limit; a row that is locked later is waited for as at first."""
    locks = LongLocks()
    for number in (FIRST, 2 * FIRST, 4 * FIRST, *[MOST] * 3):
        locks.met()
        assert waits(locks, number)[-2:] == [LockWait.NONE, LockWait.BRIEF]
    waits(locks, CAREFUL_FOR)
    locks.met()
    assert waits(locks, FIRST)[-2:] == [LockWait.NONE, LockWait.BRIEF]


def test_units_that_meet_the_same_lock_together_count_once() -> None:
    """They all waited."""
    locks = LongLocks()
    for _ in range(5):
        locks.met()
    assert waits(locks, FIRST)[-1] is LockWait.BRIEF


def waits(locks: LongLocks, number: int) -> list[LockWait]:
    """Begin so many units."""
    return [locks.wait(isolated=False) for _ in range(number)]
