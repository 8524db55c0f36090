"""A history among the counters of a process, as it is stored."""

import msgspec

from onceonly.formats.minutes import split_history, with_history
from onceonly.model.minutes import NO_WORK, Span, WorkHistory

HISTORY = WorkHistory(
    minutes={
        29_412_345: Span(handled=12, failed=1, duplicates=3, waiting=0, oldest=2500, runs={4: 10, 6: 2}),
        29_412_346: Span(),
    },
    quarters={1_960_823: Span(handled=12)},
)


def test_a_history_is_read_as_it_was_written() -> None:
    """Next to the counters. A span without counts is there: the process ran."""
    stored = with_history({"handled": 12, "held": 0}, HISTORY)
    assert split_history(stored) == ({"handled": 12, "held": 0}, HISTORY)
    assert "m29412345 h12 f1 d3 w0 o2500 4:10 6:2" in stored


def test_earlier_versions_read_the_counters() -> None:
    """They decode names and whole numbers, and use the names that they know."""
    text = msgspec.json.encode(with_history({"handled": 12}, HISTORY))
    assert msgspec.json.decode(text, type=dict[str, int])["handled"] == 12


def test_this_version_reads_what_earlier_ones_wrote() -> None:
    """They have no history."""
    assert split_history({"handled": 12, "messages": 1}) == ({"handled": 12, "messages": 1}, NO_WORK)


def test_fields_of_later_versions_are_ignored_and_broken_spans_left_out() -> None:
    """Whatever is stored, the counters can be read."""
    long = "m" + "9" * 5000
    stored = {long: 0, "m5 h" + "9" * 5000: 0, "m1 h2 z9": 0, "m2 hx": 0, "m3 4:": 0, "q": 5, "m4  h1": 0, "mx h1": 3}
    assert split_history(stored) == ({long: 0, "q": 5, "mx h1": 3}, WorkHistory(minutes={1: Span(handled=2)}))


def test_a_full_history_is_small() -> None:
    """It is written every 10 seconds: less than 16 kB for a busy process."""
    busy = Span(
        handled=123_456, failed=120, duplicates=300, waiting=50_000, oldest=125_000, runs=dict.fromkeys(range(6, 12), 20000)
    )
    full = WorkHistory(
        minutes=dict.fromkeys(range(29_412_000, 29_412_061), busy), quarters=dict.fromkeys(range(1_960_000, 1_960_097), busy)
    )
    assert len(msgspec.json.encode(with_history({}, full))) < 16_000
