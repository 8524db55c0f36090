"""The benchmark of what is remembered runs, and holds what it finds to its promises."""

import pytest
from msgspec.structs import replace

from benchmarks.retention import others
from benchmarks.retention.emptying import compared
from benchmarks.retention.findings import DatabaseFindings, Emptying, Rate, Sizes, promises
from benchmarks.retention.keys import JITTER, Keys
from benchmarks.retention.measuring import RETENTION, TINY, in_turn, measure_other, measure_postgresql
from benchmarks.retention.sealed import FORMS, SealedSizes, measure
from onceonly.model.ring import instant_of
from tests.servers.available import POSTGRESQL, need

GOOD = DatabaseFindings(
    claims=1,
    batch=1,
    sizes=Sizes(in_order=80, shuffled=90, classic=170),
    full=Rate(claims=[90], wal=[200]),
    empty=Rate(claims=[100], wal=[200]),
    bare=Rate(claims=[100], wal=[200]),
    classic=Rate(claims=[20], wal=[2000]),
    classic_empty=Rate(claims=[80], wal=[400]),
    emptied=[Emptying(seconds=0.1, undisturbed=100, beside=86, longest=0.1, dead_rows=0)],
    control=[Emptying(seconds=0, undisturbed=100, beside=90, longest=0.1, dead_rows=0)],
)
BAD = {
    "bytes a claim, with index and fingerprint": {"sizes": Sizes(in_order=80, shuffled=96, classic=170)},
    "bytes of log a claim, when full": {"full": Rate(claims=[90], wal=[241])},
    "rate over the classic table's, both full": {"classic": Rate(claims=[31], wal=[2000])},
    "rate when full over its own when empty": {"empty": Rate(claims=[110], wal=[200]), "bare": Rate(claims=[110], wal=[0])},
    "rate with the label over without": {"bare": Rate(claims=[110], wal=[200])},
    "seconds to rotate a bucket": {"emptied": [Emptying(seconds=0.3, undisturbed=100, beside=95, longest=0.1, dead_rows=0)]},
    "rate during a rotation over the rate without one": {
        "control": [Emptying(seconds=0, undisturbed=100, beside=91, longest=0.1, dead_rows=0)]
    },
    "dead rows afterwards": {"emptied": [Emptying(seconds=0.1, undisturbed=100, beside=95, longest=0.1, dead_rows=1)]},
}


@pytest.mark.parametrize("what", BAD)
def test_each_promise_can_be_missed(what: str) -> None:
    """All are kept by what is good, and each is missed by what is not."""
    assert {each.what for each in promises(GOOD) if each.is_kept} == BAD.keys()
    assert [each.what for each in promises(replace(GOOD, **BAD[what])) if not each.is_kept] == [what]


def test_keys_are_in_their_slice_and_in_order() -> None:
    """As the library's are: the instant comes first."""
    (batch,) = Keys(7_200_000, 3_600_000).batches(500, 500)
    assert batch.keys == sorted(batch.keys)
    assert len({*batch.keys}) == len(batch.keys)
    assert all(7_200_000 <= instant_of(key) < 10_800_000 for key in batch.keys)


def test_keys_come_at_the_pace_of_a_table_that_is_filled() -> None:
    """A table of so many claims is older than the claims of a few seconds: they go on within its time, and no faster."""
    keys = [key for batch in Keys(0, 1 << 40, pace=5000.0).batches(1000, 100) for key in batch.keys]
    assert 4_500_000 < max(map(instant_of, keys)) < 5_000_000 + JITTER


def test_each_table_is_the_first_in_one_round() -> None:
    """What comes first has the memory of the server as the round before left it."""
    assert [in_turn("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_claiming_that_only_grows_faster_is_not_disturbed() -> None:
    """What is beside the work is compared with both sides of it; a pause in it is seen."""
    ended = [(10 * (number / 5000) ** 0.5, 0.001) for number in range(5000)]
    undisturbed, beside, longest = compared(ended, 5.0, 6.0)
    assert undisturbed == pytest.approx(beside, rel=0.01)
    assert longest == 0.001
    undisturbed, beside, longest = compared([(at, took) for at, took in ended if not 5.1 < at < 5.3] + [(5.3, 0.2)], 5.0, 6.0)
    assert 0.75 < beside / undisturbed < 0.85
    assert longest == 0.2


@pytest.mark.timeout(120)
async def test_sqlite_is_measured_through_the_library() -> None:
    """Claims are made, counted and forgotten."""
    async with others.opened_sqlite(RETENTION) as ground:
        found = await measure_other(ground, "SQLite", replace(TINY, others=1200, each=1000), lambda _: None)
    assert found.claims == 1200
    assert min(*found.full.claims, *found.empty.claims, *found.classic.claims) > 0
    assert 0 < found.sizes.in_order < 1000


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_postgresql_is_measured_with_the_statement_that_is_shipped() -> None:
    """Every claim is new, the oldest bucket is empty afterwards without a dead row, and the classic table has them all."""
    url = need(POSTGRESQL)
    found, version = await measure_postgresql(url, replace(TINY, bucket=1200, claims=2400, each=200, rounds=1), lambda _: None)
    assert version
    assert [each.dead_rows for each in found.emptied] == [0]
    assert len(found.control) == len(found.emptied)
    assert all(each.dead_rows for each in found.deleted)
    assert min(*found.full.claims, *found.bare.claims, *found.classic.claims) > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_denser_forms_know_what_they_hold_and_nothing_else() -> None:
    """Each form refuses every claim that it holds and takes every other one, or the run ends with an error."""
    plan = SealedSizes(claims=12_000, asked=500, rounds=1)
    found = await measure(need(POSTGRESQL), plan, lambda _: None)
    assert [each.name for each in found.forms] == ["today", *(form.name for form in FORMS)]
    assert found.claims == 12_000
    assert all(min(*each.known, *each.late) > 0 for each in found.forms)
    today, *denser = (each.bytes_each(found.claims) for each in found.forms)
    assert today > max(denser)
