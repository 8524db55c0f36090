"""A copy that comes so late that its original may be forgotten is undecidable: it becomes a dead letter, and is not handled."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.store import DocumentLookup
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.retention import CLOCK_MARGIN_MS, FOREVER
from onceonly.model.ring import Undecidable
from onceonly.ports.operators import ClaimState
from onceonly.ports.store import UndecidableMessage
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.ring_subject import at
from tests.documents.harness import ONE_EFFECT, WEEK, StoreHarness, handle

WEEK_MS, DAY_MS = 7 * 86_400_000, 86_400_000
UNITS = ["", "order/17"]


def of(unit: str, asked: Message) -> Message:
    """Return a message about an entity, or about none."""
    return replace(asked, unit=unit)


async def found(harness: StoreHarness, asked: Message, history: timedelta = WEEK) -> tuple[str, ...]:
    """Return what `begin` finds: the names of the groups that are not empty."""
    unit = await harness.store(history).begin([asked])
    unit.abandon()
    groups = ("new", "pending", "done", "mismatched", "undecidable")
    return tuple(name for name in groups if getattr(unit.found, name))


@pytest.mark.parametrize("unit", UNITS)
async def test_a_copy_is_known_as_long_as_its_record_is_there(unit: str) -> None:
    """However old it is: what is stored still tells the truth."""
    harness = StoreHarness()
    asked = of(unit, at(harness.clock.now()))
    await handle(harness.store(), asked)
    harness.clock.advance(3 * WEEK_MS)
    assert await found(harness, asked) == ("done",)


@pytest.mark.parametrize("unit", UNITS)
async def test_a_copy_behind_the_horizon_is_refused(unit: str) -> None:
    """Its record may be trimmed or dropped."""
    harness = StoreHarness()
    asked = of(unit, at(harness.clock.now()))
    harness.clock.advance(WEEK_MS)
    assert await found(harness, asked) == ("new",)
    harness.clock.advance(1)
    begun = await harness.store().begin([asked])
    assert begun.found.undecidable == (UndecidableMessage(asked, Undecidable.TOO_OLD),)
    assert not begun.found.new


async def test_others_of_its_unit_are_handled() -> None:
    """A unit commits what is new without what is refused."""
    harness = StoreHarness()
    old = of("order/17", at(harness.clock.now(), "old"))
    harness.clock.advance(WEEK_MS + 1)
    fresh, plain = of("order/17", at(harness.clock.now(), "fresh")), of("order/17", at(0, "plain"))
    unit = await harness.store().begin([old, fresh, plain])
    assert unit.found.new == (fresh, plain)
    await unit.commit([Record(fresh.identity), Record(plain.identity)])
    assert await found(harness, old) == ("undecidable",)
    assert await found(harness, fresh) == ("done",)


async def test_a_message_without_an_instant_is_new_at_any_time() -> None:
    """Nothing tells it apart from one that was sent today."""
    harness = StoreHarness()
    asked = of("order/17", at(0))
    await handle(harness.store(), asked)
    harness.clock.advance(WEEK_MS + CLOCK_MARGIN_MS + 1)
    await handle(harness.store(), of("order/17", at(0, "other")))  # which trims the first
    assert await found(harness, asked) == ("new",)


async def test_a_trimmed_record_is_always_behind_the_horizon() -> None:
    """Also by a clock that is an hour behind the one that trimmed it."""
    harness = StoreHarness()
    asked = of("order/17", at(harness.clock.now()))
    await handle(harness.store(), asked)
    harness.clock.advance(WEEK_MS + CLOCK_MARGIN_MS + 1)
    await handle(harness.store(), of("order/17", at(harness.clock.now(), "other")))
    assert len((await harness.entity()).records) == 1
    harness.clock.advance(-CLOCK_MARGIN_MS)
    assert await found(harness, asked) == ("undecidable",)


@pytest.mark.parametrize("effects", [(), ONE_EFFECT])
async def test_a_message_from_the_future_is_known_until_it_is_behind_the_horizon(effects: tuple[object, ...]) -> None:
    """Its sender's clock was ahead by a day. Its record is kept for a day longer, in its entity or alone."""
    for unit in UNITS:
        harness = StoreHarness()
        store, asked = harness.store(), of(unit, at(harness.clock.now() + DAY_MS))
        await store.forget([await handle(store, asked, effects)])
        assert not unit or harness.documents.written[-1].expires == 0
        assert unit or harness.documents.written[-1].expires == harness.clock.now() + DAY_MS + WEEK_MS + CLOCK_MARGIN_MS
        harness.clock.advance(WEEK_MS + DAY_MS - 1)
        await handle(store, of(unit, at(harness.clock.now(), "other")))
        assert await found(harness, asked) == ("done",)


async def test_a_message_far_in_the_future_is_refused() -> None:
    """It would be kept for as long as its sender's clock is ahead."""
    harness = StoreHarness()
    unit = await harness.store().begin([at(harness.clock.now() + 2 * DAY_MS)])
    assert [each.reason for each in unit.found.undecidable] == [Undecidable.TOO_NEW]


async def test_a_message_that_a_person_sends_back_is_handled_once() -> None:
    """With `--anyway`: whether it was handled before is the person's decision."""
    harness = StoreHarness()
    asked = at(harness.clock.now(), anyway=True)
    harness.clock.advance(2 * WEEK_MS)
    await handle(harness.store(), asked)
    assert await found(harness, asked) == ("done",)


async def test_nothing_is_refused_or_dropped_where_history_is_kept_forever() -> None:
    """The document of a message has no expiry, and a copy is known after years."""
    harness = StoreHarness()
    asked = at(harness.clock.now())
    await handle(harness.store(FOREVER), asked)
    assert harness.documents.written[-1].expires == 0
    harness.clock.advance(1000 * WEEK_MS)
    assert await found(harness, asked, FOREVER) == ("done",)
    assert await found(harness, at(1000, "other"), FOREVER) == ("new",)


async def test_an_operator_sees_that_it_is_too_old() -> None:
    """And not that the store has no claim."""
    harness = StoreHarness()
    asked = at(harness.clock.now())
    harness.clock.advance(WEEK_MS + 1)
    (known,) = await DocumentLookup(harness.store()).know([asked])
    assert known.claim is ClaimState.TOO_OLD


async def test_a_mark_that_is_kept_forever_has_no_expiry() -> None:
    """And nothing is behind its horizon."""
    harness = StoreHarness()
    marks = DocumentMarkStore(harness.documents, retention=FOREVER, clock=ManualClock(harness.clock.now()))
    await marks.add([bytes(16)])
    assert [change.expires for change in harness.documents.written] == [0]
    assert await marks.undecidable([at(1000)]) == ()
    await marks.sweep()
    assert await marks.contains([bytes(16)])
