"""Documents that are full: what still fits into them, and what a message is told that does not."""

import re
from datetime import timedelta

import pytest

from onceonly.documents.store import DocumentStore
from onceonly.model.artifact import Reservation
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitRefused, PermanentFailure
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly_conformance.samples import message
from tests.documents.harness import ENTITY, ONE_EFFECT, ORDER, WEEK, StoreHarness, about, handle

PLACES = [WEEK, None]


def grown(size: int) -> bytes:
    """Make a state of this many bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


def sends(size: int) -> list[Send]:
    """Send a message of this many bytes."""
    return [Send(message=message("out", body=b"x" * size), to="billing")]


async def grow(store: DocumentStore, asked: Message, size: int) -> None:
    """Handle a message that makes the state this large."""
    unit = await store.begin([asked])
    entities = unit.resources.get(Entities)
    assert isinstance(entities, Entities)
    entities.write(ORDER, grown(size))
    await unit.commit([Record(asked.identity, unit=unit.key)])


async def fill(harness: StoreHarness, history: timedelta | None) -> Record:
    """Handle a message with an effect that leaves the entity as large as a commit lets it become."""
    store = harness.store(history)
    for size in range(harness.documents.limits.body, 0, -16):
        unit = await store.begin([about()])
        entities = unit.resources.get(Entities)
        assert isinstance(entities, Entities)
        entities.write(ORDER, grown(size))
        record = Record(about().identity, ONE_EFFECT, unit=unit.key)
        try:
            await unit.commit([record])
        except CommitRefused:
            continue
        return record
    raise AssertionError("nothing fits")


@pytest.mark.parametrize("history", PLACES)
@pytest.mark.parametrize("body", [8_192, 400_000])
async def test_a_full_document_takes_register_rows(history: timedelta | None, body: int) -> None:
    """Else a message that still has pending its effects could not even begin, and would become a dead letter."""
    harness = StoreHarness(body=body)
    record = await fill(harness, history)
    identity = about(source="s" * 300).identity
    rows = [Reservation(identity=identity, unit=ENTITY, attempt=f"{number:032}", at=harness.clock.now()) for number in range(3)]
    await harness.register().open(rows)
    assert await harness.register().cancel(rows[0])
    await harness.store(history).forget([record])
    await harness.register().remove(rows[0])


@pytest.mark.parametrize("history", PLACES)
async def test_a_full_document_can_be_fenced_and_emptied(history: timedelta | None) -> None:
    """What is finished always fits."""
    harness = StoreHarness(body=8_192)
    record = await fill(harness, history)
    store = harness.store(history)
    assert await store.fence(ENTITY, about("other").identity) is None
    await store.forget([record])
    assert not [each for each in (await harness.entity()).records.values() if each.pending]


async def test_a_document_full_of_history_says_so() -> None:
    """The dead letter names what takes the room, and what to do about it: nothing is changed by trying again."""
    harness = StoreHarness(body=8_192)
    store = harness.store()
    for number in range(90):
        await handle(store, about(f"m{number:02}"))
    with pytest.raises(PermanentFailure) as refused:
        await handle(store, about("one more"))
    assert re.fullmatch(
        r"document 'entity/order/17' would be 7,\d{3} bytes long; the limit is 7,680 \(this service stores 8,192, and 512 are "
        r"reserved\)\. Make room, then retry: "
        r"7,\d{3} bytes are the history of 90 messages \(shorten History\(retention=\.\.\.\), or use a DedupStore or Tokens\)",
        str(refused.value),
    )


@pytest.mark.parametrize("history", PLACES)
async def test_a_state_that_is_too_large_is_told_to_get_smaller(history: timedelta | None) -> None:
    """Whoever keeps what is done elsewhere is not told to do that."""
    harness = StoreHarness(body=8_192)
    with pytest.raises(PermanentFailure) as refused:
        await grow(harness.store(history), about(), 8_000)
    assert str(refused.value).endswith("Make room, then retry: 7,996 bytes are the state (make the entity smaller)")


@pytest.mark.parametrize("history", PLACES)
async def test_what_others_have_not_sent_yet_is_waited_for(history: timedelta | None) -> None:
    """A document that is full of it has room as soon as it is sent: that is a failure like others, and tried again."""
    harness = StoreHarness(body=8_192)
    store = harness.store(history)
    before = await handle(store, about("before"), sends(3_000))
    with pytest.raises(CommitRefused, match=r"bytes become free when its other messages have been sent$") as refused:
        await grow(store, about(), 5_000)
    assert not isinstance(refused.value, PermanentFailure)
    await store.forget([before])
    await grow(store, about(), 5_000)


@pytest.mark.parametrize("history", PLACES)
async def test_what_is_sent_stays_as_history_and_may_still_be_too_much(history: timedelta | None) -> None:
    """Where none is kept it goes altogether."""
    store = StoreHarness(body=8_192).store(history)
    for number in range(8):
        await handle(store, about(f"before {number}"), sends(1))
    with pytest.raises(CommitRefused) as refused:
        await grow(store, about(), 7_000)
    assert isinstance(refused.value, PermanentFailure) == (history is not None)


async def test_what_is_sent_at_once_may_be_too_large() -> None:
    """Its own messages do not go before it is committed."""
    with pytest.raises(PermanentFailure, match=r"bytes are the messages to be sent \(send fewer or smaller messages\)$"):
        await handle(StoreHarness(body=8_192).store(), about(), sends(8_000))


async def test_history_that_an_earlier_setting_left_goes_by_itself() -> None:
    """It is trimmed in the end, whatever is set now."""
    harness = StoreHarness(body=8_192)
    for number in range(90):
        await handle(harness.store(), about(f"m{number:02}"))
    with pytest.raises(
        PermanentFailure, match=r"90 messages finished under an earlier setting \(deleted 30 days after they finished\)$"
    ):
        await handle(harness.store(None), about("one more"), ONE_EFFECT)
