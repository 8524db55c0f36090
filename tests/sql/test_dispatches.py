"""Copies in another process: a young record is most likely being dispatched, an old one has lost its process."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onceonly.config.deduplication import ClaimMode
from onceonly.model.message import Message
from onceonly.model.token import Token
from onceonly.ports.store import Unit
from onceonly.runtime.worker.dispatches import MOST_POLL_SECONDS, YOUNG_SECONDS, CopyAwareStore, Dispatches
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.tokens import SqlTokens
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.sql.every_database import emptied, on
from tests.sql.harness import opened, records, statements, url

YOUNG_MS = round(YOUNG_SECONDS * 1000)


class PassingTimer:
    """Every sleep ends at once, and moves the clock. Something may happen in each."""

    def __init__(self, clock: ManualClock, during: Callable[[], Awaitable[object]] | None = None) -> None:
        self.slept: list[float] = []
        self._clock, self._during = clock, during

    def seconds(self) -> float:
        """Return what has been slept."""
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.slept.append(seconds)
        self._clock.advance(round(seconds * 1000))
        if self._during is not None:
            await self._during()
        await asyncio.sleep(0)


def copy_aware(database: Database, timer: PassingTimer) -> CopyAwareStore:
    """Return the store as a batch in another process has it."""
    return CopyAwareStore(SqlStore(database, "shop"), Dispatches(), timer)


@pytest.mark.parametrize("claim_mode", list(ClaimMode)[:3])
async def test_the_age_of_a_pending_record_is_known(place: str, claim_mode: ClaimMode) -> None:
    """Since its commit, and since a relay took it; in the statement that reads the record anyway."""
    clock = ManualClock()
    async with emptied(place, clock=clock) as database:
        store = SqlStore(database, "shop", claim_mode=claim_mode, clock=clock)
        one = on("", "m1", token="t1")  # noqa: S106 - no password
        if claim_mode is ClaimMode.TOKENS:
            await SqlTokens(database).add([Token("t1", "shop")])
        await commit(store, one)
        clock.advance(700)
        assert await ages(store.begin([one])) == (700,)
        clock.advance(60_000)
        await store.take(clock.now(), 10, lease=10_000)
        clock.advance(300)
        assert await ages(store.begin([one])) == (300,)
        await store.forget(records(one))
        assert await ages(store.begin([one])) == ()


async def commit(store: SqlStore, one: Message) -> None:
    """Commit a record of the message, and dispatch nothing."""
    unit = await store.begin([one])
    await unit.commit(records(*unit.found.new, decided=True))


async def ages(beginning: Awaitable[Unit]) -> tuple[int, ...]:
    """Begin, and return the ages that were found."""
    unit = await beginning
    unit.abandon()
    return unit.found.ages


async def test_a_copy_in_another_process_waits_until_the_record_is_deleted(place: str) -> None:
    """It holds no lock meanwhile, so the first process can delete it. It is done then, and sends nothing."""
    clock, m1 = ManualClock(), message("m1")
    async with emptied(place, clock=clock) as database, opened(place, clock=clock) as other:
        first = SqlStore(database, "shop")
        await commit(first, m1)
        timer = PassingTimer(clock, lambda: first.forget(records(m1)))
        unit = await copy_aware(other, timer).begin([m1, message("m2")])
        unit.abandon()
        assert (unit.found.done, [each.id for each in unit.found.new]) == ((m1,), ["m2"])
        assert len(timer.slept) == 1


async def test_a_record_whose_process_died_is_dispatched_when_it_is_no_longer_young(place: str) -> None:
    """Crash here, "after-commit": 1 committed, 2 nothing sent, 3 redelivered at once, 4 pending after two seconds."""
    clock, m1 = ManualClock(), message("m1")
    async with emptied(place, clock=clock) as database, opened(place, clock=clock) as other:
        await commit(SqlStore(database, "shop"), m1)
        timer = PassingTimer(clock)
        unit = await copy_aware(other, timer).begin([m1])
        unit.abandon()
        assert [each.identity for each in unit.found.pending] == [m1.identity]
        assert timer.seconds() == pytest.approx(YOUNG_SECONDS, abs=0.01)
        assert max(timer.slept) <= MOST_POLL_SECONDS


@pytest.mark.parametrize("ahead", [-YOUNG_MS, YOUNG_MS, 10 * YOUNG_MS])
async def test_a_clock_that_is_wrong_ends_no_promise(ahead: int, file: Path) -> None:
    """The record is dispatched at once, or after two seconds of this process's own timer at most."""
    clock, m1 = ManualClock(), message("m1")
    async with emptied(url(file), clock=clock) as database:
        await commit(SqlStore(database, "shop"), m1)
        clock.advance(-ahead)
        timer = PassingTimer(ManualClock())
        unit = await copy_aware(database, timer).begin([m1])
        assert unit.found.pending
        unit.abandon()
        assert timer.seconds() <= YOUNG_SECONDS


async def test_messages_without_a_copy_take_no_statement_more(place: str) -> None:
    """The ages come with the records, and nothing else is read or written."""
    async with emptied(place) as database:
        heard: dict[str, list[str]] = {}
        await SqlStore(database, "shop").prepare()  # decides the retention
        for name, store in (
            ("plain", SqlStore(database, "shop")),
            ("aware", copy_aware(database, PassingTimer(ManualClock()))),
        ):
            handled = [message(f"{name}-{number}") for number in range(5)]
            with statements(database) as heard[name]:
                unit = await store.begin(handled)
                await unit.commit(records(*handled, decided=True))
                await store.forget(records(*handled, decided=True))
        assert heard["aware"] == heard["plain"] != []
