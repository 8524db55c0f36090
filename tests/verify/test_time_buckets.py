"""The worlds in which claims are forgotten: what their clock shows, who waits for it, and that it has to pass."""

import pytest
from msgspec.structs import replace

from onceonly.model.ring import Undecidable
from onceonly_verify import CHECKS, Check
from onceonly_verify.actors.maintenance import maintenance_roles
from onceonly_verify.clock import BUCKETING, END, NEXT, OLD, START, TimedRing, bar_of, first_ring, tick
from onceonly_verify.environment import CheckEnvironment
from onceonly_verify.explorer import Exploration, Explorer
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.programs import shipped
from onceonly_verify.roles import Role

NAMED = {check.name: check for check in CHECKS}
LATE, AHEAD = NAMED["a ring, copies that come late, and nothing to send"], NAMED["a ring, and a bucket's next slice"]


def explored(check: Check, roles: tuple[Role, ...]) -> Exploration:
    """Explore a check with other roles than its own."""
    world = CheckEnvironment(check.workload, check.bounds, programs=shipped(), roles=roles)
    found = Explorer(world, Auditor(world, check.workload, check.patience)).explore(100_000)
    world.trie.close()
    return found


def ring_at(now: int) -> TimedRing:
    """Return an empty ring, labelled at the beginning, when its clock shows this."""
    ring: TimedRing = replace(first_ring(shipped()), now=now)
    return ring


def test_the_clock_ends_when_the_old_slice_may_just_be_forgotten() -> None:
    """Not at the beginning; and both slices are of one bucket, so the one makes room for the other."""
    assert not BUCKETING.may_forget(BUCKETING.start(OLD), START)
    assert BUCKETING.may_forget(BUCKETING.start(OLD), END)
    assert BUCKETING.bucket(OLD) == BUCKETING.bucket(NEXT)
    assert BUCKETING.wanted(BUCKETING.bucket(OLD), END) == BUCKETING.start(NEXT)
    assert tick(ring_at(START))[0].now == tick(ring_at(END))[0].now == END


def test_messages_of_the_worlds_meet_every_answer_of_a_bucket() -> None:
    """Held, not rotated yet, and behind the horizon once it is rotated; never from the future."""
    rotated, _ = shipped().ring.rotate(ring_at(END), BUCKETING.bucket(OLD), shipped().ring.RingSettings(BUCKETING, END))
    assert [bar_of(ring_at(START), OLD), bar_of(ring_at(END), OLD), bar_of(rotated, OLD)] == [None, None, Undecidable.TOO_OLD]
    assert [bar_of(ring_at(END), NEXT), bar_of(rotated, NEXT)] == [Undecidable.SLOT_NOT_READY, None]


def test_a_message_is_not_received_before_its_sender_could_send_it() -> None:
    """Else it would be from the future, and rightly refused."""
    eager = tuple(replace(role, waits=None) if role.queue == "shop" else role for role in AHEAD.roles)
    violation = explored(AHEAD, eager).violation
    assert "'b' is not behind the horizon" in violation
    assert Undecidable.TOO_NEW.value in violation


@pytest.mark.parametrize("gone", ["clock of shop", "janitor of shop"])
def test_without_time_or_a_janitor_what_waits_for_its_bucket_never_rests(gone: str) -> None:
    """So both are needed, and a bucket that nobody rotates is seen as what it is."""
    found = explored(AHEAD, tuple(role for role in AHEAD.roles if role.queue != gone))
    assert found.stuck


def test_without_a_janitor_nothing_is_forgotten_and_nothing_refused() -> None:
    """However late a copy comes: the label decides, not the clock."""
    found = explored(LATE, tuple(role for role in LATE.roles if role.queue != "janitor of shop"))
    assert (found.complete, found.violation, found.stuck) == (True, "", 0)


def test_other_worlds_have_neither_clock_nor_janitor() -> None:
    """Nothing is forgotten there."""
    assert maintenance_roles(NAMED["one message"].workload, janitors=2) == ()
