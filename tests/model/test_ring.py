"""The ring's arithmetic: slices, slots, keys, and which label means what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.identity import Identity, timed_id
from onceonly.model.message import Message
from onceonly.model.ring import (
    INSTANT,
    LATEST_INSTANT,
    Slicing,
    Undecidable,
    instant_of,
    label,
    read_instant,
    ring_key,
    slicing_for,
)

WHO = Identity("till", "m1")
instants = st.integers(min_value=1, max_value=LATEST_INSTANT)
slicings = st.builds(
    lambda width, full, spare: Slicing(width, slots=full + 1 + spare, full=full),
    st.integers(1, 10**9),
    st.integers(1, 12),
    st.integers(1, 3),
)


@given(instants, slicings)
def test_an_instant_is_in_its_slice(instant: int, slicing: Slicing) -> None:
    """From its start to before its end; slices follow each other slot by slot."""
    start = slicing.start(instant)
    assert start <= instant < start + slicing.width
    assert slicing.slot(start) == slicing.slot(instant)
    assert slicing.slot(start + slicing.width) == (slicing.slot(instant) + 1) % slicing.slots


@given(instants, slicings)
def test_slots_hold_what_may_still_be_needed(now: int, slicing: Slicing) -> None:
    """Each holds the latest slice whose predecessor may be forgotten: the whole retention, the slice under way, and ahead."""
    wanted = sorted(slicing.wanted(number, now) for number in range(slicing.slots))
    first = slicing.start(now) - slicing.full * slicing.width
    assert wanted == [first + number * slicing.width for number in range(slicing.slots)]
    for number in range(slicing.slots):
        before = slicing.wanted(number, now) - slicing.slots * slicing.width
        assert slicing.slot(slicing.wanted(number, now)) == number
        assert slicing.may_forget(before, now)
        assert not slicing.may_forget(slicing.wanted(number, now), now)


@given(instants, instants, slicings)
def test_what_was_handled_within_the_retention_is_never_forgotten(instant: int, now: int, slicing: Slicing) -> None:
    """A slice may be forgotten only when its last instant is a retention ago."""
    if slicing.may_forget(slicing.start(instant), now):
        assert instant + slicing.retention < now


@given(instants, instants, slicings)
def test_labels_are_judged(instant: int, now: int, slicing: Slicing) -> None:
    """The message's slice: nothing is the matter. A newer one: behind. An older one or none: wait, or too early."""
    start, lap = slicing.start(instant), slicing.slots * slicing.width
    assert slicing.undecidable_reason(instant, start, now) is None
    assert slicing.undecidable_reason(instant, start + lap, now) is Undecidable.TOO_OLD
    ahead = start > slicing.start(now) + (slicing.slots - slicing.full - 1) * slicing.width
    for held in (start - lap, None):
        assert slicing.undecidable_reason(instant, held, now) is (Undecidable.TOO_NEW if ahead else Undecidable.SLOT_NOT_READY)


@given(st.integers(1, LATEST_INSTANT - 60_000), st.text(), st.text())
def test_keys_sort_by_instant_behind_their_label(instant: int, source: str, id_: str) -> None:
    """A label is the lowest key of its slice, and no message's."""
    slicing = Slicing(60_000)
    key = ring_key("shop", Identity(source, id_), instant)
    start = slicing.start(instant)
    assert label(start) < key < label(start + slicing.width)
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


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "0", "00", " 1", "\u0661", "1e3", str(LATEST_INSTANT + 1), "9" * 400])
def test_what_no_endpoint_writes_is_no_instant(text: str) -> None:
    """The message is claimed as one without."""
    assert read_instant(text) == 0


def test_an_instant_is_read_from_the_id_of_a_message() -> None:
    """None is 0. The header counts where the id is of another form, and only for what older versions did."""
    own = timed_id("till", 17, bytes(10))
    made = [Message(id=id_, source="till", type="t", body=b"", extensions=((INSTANT, "18"),)) for id_ in ("m1", own)]
    plain = Message(id="m1", source="till", type="t", body=b"")
    assert [(each.instant, each.former_instant) for each in (*made, plain)] == [(0, 18), (17, 0), (0, 0)]
    assert read_instant(str(LATEST_INSTANT)) == LATEST_INSTANT


def test_time_is_cut_so_that_the_retention_is_kept() -> None:
    """Rounded up."""
    assert slicing_for(7 * 86_400_000).width == 14 * 3_600_000
    assert slicing_for(1).retention >= 1
    assert slicing_for(25).retention >= 25


def test_messages_of_before_the_ring_are_not_in_it() -> None:
    """Nor those without an instant."""
    slicing = Slicing(10, since=100)
    assert [slicing.has(instant) for instant in (0, 99, 100)] == [False, False, True]
