"""Finding a message: what an endpoint knows, and what it cannot know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import DedupStore, Endpoint, Off, Tokens
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.world import Live
from onceonly.assembly import open_store
from onceonly.assembly.operations import OpenedOperations, open_operations
from onceonly.assembly.parts import StoreParts
from onceonly.documents.store import DocumentLookup, DocumentStore
from onceonly.model.artifact import Reservation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.operations import overview
from onceonly.operations.knowledge import Found, find_message
from onceonly.operations.overview import list_pending, list_reservations, picture_claims
from onceonly.ports.ring import Rotation
from onceonly.runtime.environment import Environment
from onceonly_conformance.clock import START, ManualClock
from onceonly_conformance.samples import effects
from tests.sql.every_database import emptied

DAY_MS = 86_400_000
ONE_EFFECT = effects()[:1]


class Shop:
    """An endpoint, its store as workers open it, and what operators read."""

    def __init__(self, clock: ManualClock, store: StoreParts, opened: OpenedOperations, place: str) -> None:
        self.clock = clock
        self.store = store
        self.opened = opened
        self.place = place

    async def handle(self, message: Message, *, pending: bool = False) -> None:
        """Commit a message as its worker does."""
        unit = await self.store.store.begin([message])
        await unit.commit([Record(each.identity, ONE_EFFECT if pending else ()) for each in unit.found.new])

    async def find(self, message: Message) -> Found:
        """Return the answer."""
        return (await find_message(self.opened, message.identity)).found


@asynccontextmanager
async def shop(place: str, **settings: Any) -> AsyncIterator[Shop]:
    """Open it with empty tables."""
    clock = ManualClock()
    environment = Environment(clock=clock)
    endpoint = Endpoint("shop", store=place, transport=f"memory://{uuid4()}", **settings)
    async with (
        emptied(place),
        open_store(endpoint.settings, environment=environment) as store,
        open_operations(endpoint.settings, environment=environment) as opened,
    ):
        yield Shop(clock, store, opened, place)


def foreign(name: str = "A-1") -> Message:
    """Make a message of a sender that is no endpoint."""
    return Message(id=name, source="web", type="PlaceOrder", body=b"{}")


def timed(instant: int, name: bytes = b"1") -> Message:
    """Make a message of an endpoint: its id contains its time."""
    id_ = timed_id("web", instant, name * NAME_BYTES)
    return Message(id=id_, source="web", type="PlaceOrder", body=b"{}")


def letter(message: Message) -> DeadLetter:
    """Make its letter."""
    return DeadLetter(endpoint="shop", reason="no", headers=(), body=message.body, message=message)


@pytest.mark.parametrize("message", [foreign(), timed(START)], ids=["foreign", "of an endpoint"])
async def test_a_handled_message_is_found(place: str, message: Message) -> None:
    """With the fingerprint of its body, and its pending messages."""
    async with shop(place) as it:
        await it.handle(message)
        found = await find_message(it.opened, message.identity)
        assert (found.found, found.knowledge.fingerprint) == (Found.HANDLED, message.fingerprint)
        assert found.knowledge.instant == message.instant
        other = foreign("A-2")
        await it.handle(other, pending=True)
        assert await it.find(other) is Found.PENDING


async def test_a_message_of_an_endpoint_is_not_handled_while_its_bucket_is_there(place: str) -> None:
    """Its id says where its claim would be. Once the bucket is rotated, nobody knows."""
    message = timed(START)
    async with shop(place) as it:
        assert await it.find(message) is Found.NO_CLAIM
        it.clock.advance(20 * DAY_MS)
        ring = it.store.ring
        assert ring is not None
        bucketing = await ring.bucketing()
        assert await ring.rotate(bucketing.bucket(START)) is Rotation.ROTATED
        assert await it.find(message) is Found.TOO_OLD


async def test_a_dead_letter_and_a_reservation_are_found(place: str) -> None:
    """A claim proves more than a letter, and a letter more than an open attempt."""
    async with shop(place) as it:
        message = foreign()
        assert it.store.register is not None
        await it.store.register.open([Reservation(identity=message.identity, unit="", attempt="a1", at=1)])
        assert await it.find(message) is Found.RESERVED
        await it.store.dead_letters.add(letter(message))
        found = await find_message(it.opened, message.identity)
        assert (found.found, found.letters_searched) == (Found.DEAD_LETTER, True)
        assert [each.key for each in found.letters] == [letter(message).key]
        await it.handle(message)
        assert await it.find(message) is Found.HANDLED


async def test_without_stored_claims_the_answer_is_unknown(place: str) -> None:
    """Never "not handled"."""
    async with shop(place, deduplication=Off()) as it:
        await it.handle(foreign())
        assert await it.find(foreign()) is Found.UNKNOWN


async def test_with_tokens_a_message_is_known_by_its_token(file: Path) -> None:
    """An id alone is not enough."""
    async with shop(f"sqlite:///{file}", deduplication=Tokens()) as it:
        assert await it.find(foreign()) is Found.UNKNOWN


async def test_a_dedup_store_is_asked(file: Path) -> None:
    """It stores who is done, after the store has forgotten."""
    marks = DedupStore(f"memory://{uuid4()}")
    async with shop(f"sqlite:///{file}", deduplication=marks) as it:
        assert await it.find(foreign()) is Found.NO_CLAIM
        assert it.opened.admission is not None
        await it.opened.admission.retire([Record(foreign().identity, fingerprint=foreign().fingerprint)])
        assert await it.find(foreign()) is Found.HANDLED


async def test_documents_are_read_by_message() -> None:
    """Without its entity, a message that is not found may be in any document."""
    driver, clock = Live(), ManualClock()
    store = DocumentStore(MemoryDocuments(driver), "shop", clock=clock, history=timedelta(days=7))
    letters = MemoryDeadLetters(driver, clock=clock)
    for lookup, absent in (
        (DocumentLookup(store), Found.UNDETERMINED),
        (DocumentLookup(store, entities=False), Found.NO_CLAIM),
    ):
        opened = OpenedOperations("shop", letters, lookup)
        assert (await find_message(opened, timed(START).identity)).found is absent
    message = foreign()
    unit = await store.begin([message])
    await unit.commit([Record(message.identity)])
    found = await find_message(opened, message.identity)
    assert (found.found, found.knowledge.fingerprint) == (Found.HANDLED, message.fingerprint)


async def test_lists_are_limited_and_oldest_first(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending records and reservations. They report when there are more."""
    async with shop(place) as it:
        for number in range(3):
            await it.handle(foreign(f"A-{number}"), pending=True)
            it.clock.advance(1000)
        assert it.store.register is not None
        await it.store.register.open([Reservation(identity=foreign().identity, unit="", attempt="a1", at=START)])
        later = START + DAY_MS
        pending = await list_pending(it.opened, later)
        assert [row.identity.id for row in pending.rows] == ["A-0", "A-1", "A-2"]
        assert not pending.more
        assert [row.identity.id for row in (await list_pending(it.opened, START + 1)).rows] == ["A-0"]
        monkeypatch.setattr(overview, "MOST", 2)
        assert ((await list_pending(it.opened, later)).more, (await list_reservations(it.opened, later)).more) == (True, False)
        bare = OpenedOperations("shop", it.opened.letters)
        assert not (await list_pending(bare, later)).searched
        assert not (await list_reservations(bare, later)).searched
        assert await picture_claims(bare) is None


async def test_claims_are_a_picture_of_time(place: str) -> None:
    """Sixteen buckets in the order of their time. One that could have been rotated long ago is late."""
    async with shop(place) as it:
        picture = await picture_claims(it.opened)
        assert picture is not None
        assert (len(picture.buckets), picture.retention, picture.late) == (16, 7 * DAY_MS, ())
        starts = [bucket.start for bucket in picture.buckets]
        assert starts == sorted(starts)
        it.clock.advance(3 * DAY_MS)
        later = await picture_claims(it.opened)
        assert later is not None
        assert later.now == picture.now + 3 * DAY_MS
        assert set(later.late) <= {bucket.number for bucket in later.buckets if bucket.late}
        assert later.late
