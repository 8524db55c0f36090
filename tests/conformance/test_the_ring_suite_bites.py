"""Every rule about rings fails on a broken adapter, and every broken adapter is caught by a rule."""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Row, Table, select
from sqlalchemy.util import await_only

from onceonly.model.ring import Undecidable
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly_conformance.ring_subject import RETENTION_MS, WIDTH_MS, Seen, at, begun, see
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.store_subject import handle
from onceonly_conformance.suite import ENDPOINT, broken, rules
from tests.broken_adapters import rings
from tests.broken_adapters.wrapped_rings import WrappedRings
from tests.conformance.memory_subjects import MemoryRings
from tests.conformance.sql_subjects import SqlRings, make_tables

RINGS = {
    rings.AnySliceRing: ["a_pending_record_of_an_earlier_slice_keeps_no_later_bucket"],
    rings.DecidingRing: ["processes_that_begin_at_once_cut_time_alike"],
    rings.BlandRing: ["buckets_say_what_they_hold_and_what_keeps_them"],
    rings.BoastingRing: ["a_bucket_that_holds_the_slice_it_should_is_left_alone", "a_bucket_that_owes_is_not_rotated"],
    rings.BoldRing: ["a_message_whose_bucket_is_not_rotated_waits"],
    rings.BreakingRing: ["a_bucket_in_use_is_not_rotated_under_a_unit"],
    rings.CarelessRing: ["a_bucket_that_owes_is_not_rotated"],
    rings.ClockRing: ["what_is_not_rotated_is_known_however_late_a_copy_comes"],
    rings.DatingRing: ["a_message_without_an_instant_is_in_no_bucket"],
    rings.EarlierLookRing: ["rotating_beside_copies_never_makes_one_new"],
    rings.EdgyRing: ["the_ends_of_a_slice_are_in_it"],
    rings.EverRing: ["a_rotated_bucket_has_forgotten_and_refuses"],
    rings.FarsightedRing: ["a_message_from_the_future_is_undecidable"],
    rings.FirstInstantRing: ["a_batch_may_mix_messages_with_and_without_an_instant"],
    rings.FirstCheckRing: ["what_is_committed_while_a_rotation_waits_is_not_deleted"],
    rings.FirstMismatchRing: ["every_message_with_another_body_is_a_payload_mismatch"],
    rings.OffendedRing: ["a_unit_that_waits_for_long_gets_the_result_or_a_conflict"],
    rings.ForgetfulRing: ["a_message_with_an_instant_is_handled_once", "every_slice_of_the_retention_has_its_bucket"],
    rings.GreedyRing: ["a_message_left_out_of_a_commit_is_new_again"],
    rings.HastyRing: ["a_claim_without_an_instant_expires_after_the_retention"],
    rings.IdleRing: ["a_rotated_bucket_has_forgotten_and_refuses", "a_bucket_is_not_rotated_before_its_time"],
    rings.ImpatientRing: ["a_bucket_is_not_rotated_before_its_time"],
    rings.InstantlessRing: ["a_message_behind_the_horizon_is_undecidable", "a_rotated_bucket_has_forgotten_and_refuses"],
    rings.LabelBlindRing: ["a_message_behind_the_horizon_is_undecidable", "a_message_from_the_future_is_undecidable"],
    rings.LabellingRing: ["a_unit_never_labels_a_bucket"],
    rings.LosingRing: ["two_units_never_both_handle_a_message_with_an_instant"],
    rings.ManyHeadedRing: ["there_is_one_leader_at_a_time"],
    rings.ObedientRing: [
        "what_a_person_sends_back_is_new_although_its_bucket_refuses_it",
        "what_a_person_sends_back_waits_for_its_bucket",
    ],
    rings.RelabellingRing: ["what_is_handled_while_its_bucket_is_rotated_stays"],
    rings.RoundingRing: ["a_slice_decides_alike_from_its_first_to_its_last_millisecond"],
    rings.ObeyingRing: ["a_bucket_that_is_ahead_of_the_clock_is_not_rotated"],
    rings.SharingRing: ["endpoints_do_not_share_claims_in_a_bucket"],
    rings.StallingRing: ["a_undecidable_message_does_not_hold_up_its_batch"],
    rings.StoppedRing: ["the_ring_tells_the_time_that_decides"],
    rings.StrictRing: ["what_a_person_sends_back_is_new_although_its_bucket_refuses_it"],
    rings.TwiceRing: ["two_who_rotate_one_bucket_rotate_it_once"],
    rings.UnlimitedRing: ["a_claim_without_an_instant_expires_after_the_retention"],
}


def brittle(kind: type[WrappedRings]) -> RingSuite:
    """Return the suite for a broken ring in memory."""

    class Brittle(RingSuite):
        @asynccontextmanager
        async def open_ring(self) -> AsyncIterator[WrappedRings]:
            yield kind(MemoryRings(blocking=True))

    return Brittle()


@pytest.mark.parametrize(("kind", "named"), [(kind, rule) for kind, named in RINGS.items() for rule in named])
async def test_a_broken_ring_is_caught(kind: type[WrappedRings], named: str) -> None:
    """By the rule that it breaks."""
    assert await broken(brittle(kind), f"test_{named}")


async def test_what_passes_everything_on_breaks_nothing() -> None:
    """So it is the break that is caught."""
    suite = brittle(WrappedRings)
    assert {rule: said for rule in rules(RingSuite) if (said := await broken(suite, rule))} == {}


def test_every_rule_has_a_ring_that_breaks_it() -> None:
    """A rule that nothing breaks says nothing."""
    assert {f"test_{rule}" for named in RINGS.values() for rule in named} == set(rules(RingSuite))


class Spoiled:
    """A dialect that passes everything on, but for the way in which claims are made behind a label."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        """Pass on."""
        return getattr(self.inner, name)


class Unlooking(Spoiled):
    """Never looks at the label."""

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Claim, whatever is there."""
        found: Sequence[Row[Any]] = self.inner.insert_absent(connection, table, rows, key=[key])
        return found


class LookingBefore(Spoiled):
    """Reads the label in a statement before the claim, in the same database transaction; `between` comes between them."""

    def __init__(self, inner: Any, between: Callable[[], Coroutine[Any, Any, object]]) -> None:
        super().__init__(inner)
        self._between = between

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Look, let somebody else go on, claim."""
        if connection.scalar(select(table.c[key]).where(table.c[key] == first[key])) is None:
            return None
        await_only(self._between())
        found: Sequence[Row[Any]] = self.inner.insert_absent(connection, table, rows, key=[key])
        return found


class Committing(Spoiled):
    """Takes it for nothing when the label was not there: the unit commits it."""

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Offer it, and go on."""
        inserted: Sequence[Row[Any]] = self.inner.insert_absent(connection, table, [first, *rows], key=[key])
        return [row for row in inserted if getattr(row, key) != first[key]]


def spoiled(kind: type[Spoiled], place: Path | str) -> RingSuite:
    """Return the suite for a ring in a SQL database with a spoiled dialect."""

    class Subject(SqlRings):
        async def database(self) -> Database:
            database = await super().database()
            database.dialect = kind(database.dialect)
            return database

    class Brittle(RingSuite):
        @asynccontextmanager
        async def open_ring(self) -> AsyncIterator[SqlRings]:
            async with Subject.open(place) as subject:
                await subject.empty()
                yield subject

    return Brittle()


SPOILED = [
    (Unlooking, "a_message_behind_the_horizon_is_undecidable"),
    (Unlooking, "a_rotated_bucket_has_forgotten_and_refuses"),
    (Committing, "a_unit_never_labels_a_bucket"),
    (Committing, "a_message_behind_the_horizon_is_undecidable"),
]


@pytest.mark.parametrize(("kind", "named"), SPOILED)
async def test_a_store_that_is_wrong_about_labels_is_caught(kind: type[Spoiled], named: str, tmp_path: Path) -> None:
    """The same dialect keeps the rule when it is not spoiled."""
    await make_tables(tmp_path / "ring.db")
    assert await broken(spoiled(kind, tmp_path / "ring.db"), f"test_{named}")
    assert not await broken(spoiled(Spoiled, tmp_path / "ring.db"), f"test_{named}")


async def test_a_label_that_is_read_by_an_earlier_statement_lets_a_copy_through(postgresql_url: str) -> None:
    """Rotation by rows does not wait for who only reads: the bucket is emptied between the look and the claim."""
    place = f"{postgresql_url}?prefix=before_"
    await make_tables(place)
    async with SqlRings.open(place) as subject:
        await subject.empty()  # the business data of other tests is in a table without a prefix
        bucketing, now = await begun(subject)
        await handle(subject, at(now))
        await subject.pass_time(20 * WIDTH_MS)
        ring, database = await subject.ring(), await subject.database()
        store = SqlStore(database, ENDPOINT, retention=RETENTION_MS, clock=subject.clock)
        inner: Any = database.dialect
        database.dialect = LookingBefore(inner, lambda: ring.rotate(bucketing.bucket(now), by_rows=True))
        assert await see(subject, at(now), store=store) == Seen(new=("m1",))  # it would be handled twice
        database.dialect = inner
        assert await see(subject, at(now), store=store) == Seen(undecidable=(("m1", Undecidable.TOO_OLD),))
