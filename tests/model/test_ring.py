"""The ring's arithmetic: slices, buckets, keys, and which label means what."""

from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.identity import Identity
from onceonly.model.ring import (
    Bucketing,
    Undecidable,
    bucketing_for,
    instant_of,
    label,
    ring_key,
    width_of,
)

WHO = Identity("till", "m1")
LATEST_INSTANT = (1 << 48) - 1
instants = st.integers(min_value=1, max_value=LATEST_INSTANT)
bucketings = st.builds(
    lambda width, full, spare: Bucketing(width, buckets=full + 1 + spare, full=full),
    st.integers(1, 10**9),
    st.integers(1, 12),
    st.integers(1, 3),
)


@given(instants, bucketings)
def test_an_instant_is_in_its_slice(instant: int, bucketing: Bucketing) -> None:
    """From its start to before its end; slices follow each other bucket by bucket."""
    start = bucketing.start(instant)
    assert start <= instant < start + bucketing.width
    assert bucketing.bucket(start) == bucketing.bucket(instant)
    assert bucketing.bucket(start + bucketing.width) == (bucketing.bucket(instant) + 1) % bucketing.buckets


@given(instants, bucketings)
def test_buckets_hold_what_may_still_be_needed(now: int, bucketing: Bucketing) -> None:
    """Each holds the latest slice whose predecessor may be forgotten: the whole retention, the slice under way, and ahead."""
    wanted = sorted(bucketing.wanted(number, now) for number in range(bucketing.buckets))
    first = bucketing.start(now) - bucketing.full * bucketing.width
    assert wanted == [first + number * bucketing.width for number in range(bucketing.buckets)]
    for number in range(bucketing.buckets):
        before = bucketing.wanted(number, now) - bucketing.buckets * bucketing.width
        assert bucketing.bucket(bucketing.wanted(number, now)) == number
        assert bucketing.may_forget(before, now)
        assert not bucketing.may_forget(bucketing.wanted(number, now), now)


@given(instants, instants, bucketings)
def test_what_was_handled_within_the_retention_is_never_forgotten(instant: int, now: int, bucketing: Bucketing) -> None:
    """A slice may be forgotten only when its last instant is a retention ago."""
    if bucketing.may_forget(bucketing.start(instant), now):
        assert instant + bucketing.retention < now


@given(
    bucketings,
    st.integers(1, 10**12),
    st.integers(1, 10**11),
    st.lists(st.tuples(st.integers(0, 10**11), st.booleans()), max_size=12),
)
def test_a_closed_ring_is_never_labelled_for_messages_of_the_next_one(
    bucketing: Bucketing, now: int, keep: int, steps: list[tuple[int, bool]]
) -> None:
    """However late a janitor comes, and whatever label it finds or misses. No last slice goes before its time."""
    held = [bucketing.wanted(number, now) for number in range(bucketing.buckets)]
    closed = bucketing.closed(held, 0, now, keep)
    assert closed.closes == bucketing.wanted(bucketing.bucket(closed.closes - 1), now) + bucketing.width
    for step, is_lost in steps:
        now += step
        for number, before in enumerate(held):
            may_go = closed.may_forget(before, now)
            wanted = closed.to_hold(number, None if is_lost and may_go else before, now)
            assert wanted < closed.closes or closed.bucket(wanted) != number
            assert wanted == before or before < wanted
            if may_go:
                held[number] = wanted
            if wanted >= closed.closes > before >= closed.closes - closed.buckets * closed.width:
                assert before + closed.width + keep <= now


@given(instants, instants, bucketings)
def test_labels_are_judged(instant: int, now: int, bucketing: Bucketing) -> None:
    """The message's slice: nothing is the matter. A newer one: behind. An older one or none: wait, or too early."""
    start, lap = bucketing.start(instant), bucketing.buckets * bucketing.width
    assert bucketing.undecidable_reason(instant, start, now) is None
    assert bucketing.undecidable_reason(instant, start + lap, now) is Undecidable.TOO_OLD
    ahead = start > bucketing.start(now) + (bucketing.buckets - bucketing.full - 1) * bucketing.width
    for held in (start - lap, None):
        assert bucketing.undecidable_reason(instant, held, now) is (
            Undecidable.TOO_NEW if ahead else Undecidable.SLOT_NOT_READY
        )


@given(st.integers(1, LATEST_INSTANT - 60_000), st.text(), st.text())
def test_keys_sort_by_instant_behind_their_label(instant: int, source: str, id_: str) -> None:
    """A label is the lowest key of its slice, and no message's."""
    bucketing = Bucketing(60_000)
    key = ring_key("shop", Identity(source, id_), instant)
    start = bucketing.start(instant)
    assert label(start) < key < label(start + bucketing.width)
    assert (len(key), instant_of(key), instant_of(label(start))) == (16, instant, start)


def test_keys_tell_endpoints_messages_and_instants_apart() -> None:
    """The same message at another endpoint, another message, another instant."""
    keys = {
        ring_key("shop", WHO, 5),
        ring_key("billing", WHO, 5),
        ring_key("shop", Identity("till", "m2"), 5),
        ring_key("shop", WHO, 6),
    }
    assert len(keys) == 4
    assert ring_key("shop", WHO, 5) in keys


def test_keys_are_the_same_for_ever() -> None:
    """They are stored."""
    assert ring_key("shop", WHO, 1_700_000_000_000).hex() == "018bcfe568007ff5ac48fa35fbfd69fa"
    assert label(1_700_000_000_000).hex() == "018bcfe5680000000000000000000000"


def test_time_is_cut_so_that_the_retention_is_kept() -> None:
    """Rounded up."""
    assert bucketing_for(7 * 86_400_000).width == 14 * 3_600_000
    assert bucketing_for(1).retention >= 1
    assert bucketing_for(25).retention >= 25


@given(st.integers(1000, 10**9), st.integers(10**12, 10**13), st.sets(st.integers(0, 15), max_size=13))
def test_labels_show_the_width_of_their_slices(width: int, now: int, lost: set[int]) -> None:
    """Unless too many are lost to tell; never another width."""
    bucketing = Bucketing(width)
    held = [None if number in lost else bucketing.wanted(number, now) for number in range(bucketing.buckets)]
    assert width_of(held) in ({width} if len(lost) < 8 else {width, None})


def test_labels_that_fit_no_width_show_none() -> None:
    """Such as a single one, or labels in the wrong buckets."""
    held = [Bucketing(1000).wanted(number, 10**12) for number in range(16)]
    assert width_of([held[0], *[None] * 15]) is None
    assert width_of([*held[1:], held[0]]) is None
