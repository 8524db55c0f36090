"""Shadow mode in SQL databases: every message is new, claims are those of `History`, and what it would have done is counted."""

import logging

import pytest
from msgspec.structs import replace
from sqlalchemy import delete

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.store import ClaimMode, SqlStore
from onceonly.sql.store.shadow import NAMED, ShadowOutcome, ShadowReport
from onceonly.sql.store.tables import tables
from onceonly_conformance.ring_subject import RETENTION_MS, at
from onceonly_conformance.samples import message
from tests.log_events import event_in
from tests.sql.every_database import emptied
from tests.sql.harness import ONE_EFFECT, counted, look
from tests.sql.test_ring import now_in

A, B, C = message("a"), message("b"), message("c")
OTHER_A = replace(A, body=b'{"changed": 1}')


def shadow_in(database: Database) -> SqlStore:
    """Make a store in shadow mode."""
    return SqlStore(database, "shop", claim_mode=ClaimMode.SHADOW)


async def handled(store: SqlStore, *asked: Message, only: tuple[Message, ...] | None = None) -> None:
    """Take messages through a unit, which handles `only` these of them."""
    unit = await store.begin(asked)
    assert unit.found.new == asked
    await unit.commit([Record(each.identity, ONE_EFFECT) for each in (asked if only is None else only)])


def counts(store: SqlStore) -> dict[str, int]:
    """Return what was counted and not taken."""
    assert store.shadow is not None
    return dict(store.shadow.counts)


async def test_copies_are_new_and_counted(place: str) -> None:
    """A message is counted once for each time that `History` would have skipped it."""
    async with emptied(place) as database:
        store = shadow_in(database)
        await handled(store, A, B)
        assert counts(store) == {}
        await handled(store, A, C)
        await handled(store, A)
        await handled(store, OTHER_A)
        assert counts(store) == {"known": 2, "mismatched": 1}
        assert await counted(database, "claims") == 3


async def test_a_message_that_was_not_handled_is_not_counted_and_has_no_claim(place: str) -> None:
    """Whether its unit is given up, or commits the others. The claims of other units stay."""
    async with emptied(place) as database:
        store = shadow_in(database)
        await handled(store, A)
        unit = await store.begin((A, B))
        unit.abandon()
        await handled(store, A, B, C, only=(C,))
        assert counts(store) == {}
        assert await look(SqlStore(database, "shop"), A, B, C) == {"pending": ["a", "c"], "new": ["b"]}


async def test_history_goes_on_with_the_claims_and_records_of_shadow_mode(place: str) -> None:
    """At once: what was not dispatched is pending, what was is done, and another body is a mismatch."""
    async with emptied(place) as database:
        shadow = shadow_in(database)
        await handled(shadow, A, B)
        await handled(shadow, B)  # its first record waits: a copy neither replaces it nor fails
        await shadow.forget([Record(A.identity, ONE_EFFECT)])
        history = SqlStore(database, "shop")
        assert await look(history, A, B, C) == {"new": ["c"], "pending": ["b"], "done": ["a"]}
        assert await look(history, OTHER_A) == {"mismatched": ["a"]}


async def test_a_record_that_outlived_its_claim_does_not_fail_the_unit(place: str) -> None:
    """A crash left it, its message did not come again, and its claim was deleted."""
    async with emptied(place) as database:
        store = shadow_in(database)
        await handled(store, A)
        own = tables(database.prefix, database.schema)
        async with database.writing() as connection:
            await connection.execute(delete(own.claims))
        await handled(store, A)
        assert counts(store) == {}
        assert await counted(database, "records") == 1


async def test_a_message_that_is_older_than_the_retention_is_handled_and_counted(place: str) -> None:
    """`History` would store it as a dead letter."""
    async with emptied(place) as database:
        store = SqlStore(database, "shop", claim_mode=ClaimMode.SHADOW, retention=RETENTION_MS)
        now = await now_in(database)
        old, fresh = at(now - 3 * RETENTION_MS, "old"), at(now, "fresh")
        await handled(store, old, fresh)
        assert counts(store) == {"undecidable": 1}
        await handled(store, fresh)
        assert counts(store) == {"undecidable": 1, "known": 1}


async def test_nothing_fences_a_message(place: str) -> None:
    """So a message that fails for good becomes a dead letter as with `Off()`, although an earlier copy was handled."""
    async with emptied(place) as database:
        store = shadow_in(database)
        await handled(store, A)
        assert await store.fence("", A.identity, A) is None


async def test_what_would_not_have_been_handled_is_logged(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """Each message up to a number, more of them together."""
    caplog.set_level(logging.INFO, "onceonly.shadow")
    many = [message(f"m{number}") for number in range(NAMED + 1)]
    async with emptied(place) as database:
        store = shadow_in(database)
        await handled(store, *many)
        assert not caplog.records
        await handled(store, *many)
        await handled(store, many[0], replace(many[1], body=b"{}"))
    found = [(event_in(record), vars(record).get("message_id"), vars(record).get("count")) for record in caplog.records]
    assert found == [
        ("shadow: messages handled that would not have been", None, NAMED + 1),
        ("shadow: message handled that would not have been", "m0", None),
        ("shadow: message id reused with another body, handled", "m1", None),
    ]


def test_counts_that_could_not_be_stored_are_kept() -> None:
    """Together with those that were counted meanwhile."""
    report = ShadowReport("shop")
    identity = Identity(A.source, A.id)
    report.add({identity: ShadowOutcome.KNOWN}, [A], [Record(identity)])
    taken = report.take()
    report.add({identity: ShadowOutcome.KNOWN}, [A], [Record(identity)])
    report.put_back(taken)
    assert report.take() == {"known": 2}
    assert not report.take()
