"""The janitor sweeps: what was never committed goes once it is old; what is confirmed, live or young stays, whatever fails."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from onceonly.adapters.memory.artifacts import MemoryArtifacts
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.effects import RegisteredEffects
from onceonly.documents.register import DocumentRegister
from onceonly.documents.store import DocumentStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.bundle import Ports
from onceonly.ports.maintenance import Maintenance
from onceonly.runtime.environment import Environment, SystemIdGenerator
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly_conformance.clock import ManualClock
from tests.log_events import events
from tests.runtime.harness import SHOP, FixedRandomSource
from tests.runtime.relay.harness import PassingTimer

AFTER = 600.0
OLD = int(AFTER * 1000) + 1
ORDER = Identity("web", "m1")
A, B = Token("a", "mail"), Token("b", "mail")


class Attic:
    """An endpoint on documents in memory, of which only what is swept is used."""

    def __init__(self) -> None:
        live, self.clock, self.timer = Live(), ManualClock(), PassingTimer()
        passing = self.timer.sleep

        async def sleep(seconds: float) -> None:
            self.clock.advance(round(seconds * 1000))
            await passing(seconds)

        self.timer.sleep = sleep  # type: ignore[method-assign] # the wall clock goes with it
        self.documents = MemoryDocuments(live)
        self.store = DocumentStore(self.documents, SHOP, clock=self.clock, history=None)
        self.tokens = WatchedTokens(self.documents, clock=self.clock)
        self.artifacts = MemoryArtifacts(live)
        register = DocumentRegister(self.store)
        self.effects = RegisteredEffects(
            self.store, register, {"blob": self.artifacts}, ids=SystemIdGenerator(), clock=self.clock
        )
        self.unit = self.store.unit_key(message())

    async def prepare(self, *tokens: Token) -> None:
        """Prepare tokens in the name of the order."""
        await self.tokens.prepare(dict.fromkeys(tokens, Owner(SHOP, self.unit, ORDER)))

    async def run(self, until: Callable[[], bool]) -> None:
        """Run a janitor until a condition holds at one of its looks."""
        stop = asyncio.Event()
        self.tokens.looked = lambda: stop.set() if until() else None
        nothing = object()
        ports = Ports(SHOP, self.store, self.store, None, *[nothing] * 5, Maintenance(AFTER, self.tokens, self.effects))  # type: ignore[arg-type] # unused
        environment = Environment(clock=self.clock, random=FixedRandomSource(), timer=self.timer)
        async with asyncio.timeout(20):
            await MaintenanceLoop(ports, grace=5.0, environment=environment).run(stop)

    async def left(self) -> list[str]:
        """List the tokens there are."""
        return list(await self.documents.keys("token/"))

    def looks(self, times: int) -> Callable[[], bool]:
        """Make the condition that it looked so often."""
        return lambda: len(self.tokens.looks) >= times


class WatchedTokens(DocumentTokens):
    """Tokens that fail as often as a test wants, and tell when they are looked at."""

    def __init__(self, documents: MemoryDocuments, *, clock: ManualClock) -> None:
        super().__init__(documents, clock=clock)
        self.looks: list[int] = []
        self.failures = 0
        self.looked: Callable[[], object] = lambda: None

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List, or fail."""
        self.looks.append(older_than)
        self.looked()
        if len(self.looks) <= self.failures:
            raise CommitFailed("the place is away")
        return await super().prepared(older_than, limit)


def message() -> Message:
    """Make the order."""
    return Message(id=ORDER.id, source=ORDER.source, type="order", body=b"{}")


async def test_tokens_of_an_attempt_that_was_never_committed_go_once_they_are_old() -> None:
    """And not before."""
    attic = Attic()
    await attic.prepare(A, B)
    attic.clock.advance(OLD - 2)
    await attic.run(attic.looks(1))
    assert len(await attic.left()) == 2
    attic.clock.advance(2)
    await attic.run(attic.looks(2))
    assert await attic.left() == []


async def test_tokens_that_a_record_confirms_stay() -> None:
    """Its message is to be sent yet, and comes with one of them."""
    attic = Attic()
    await attic.prepare(A)
    unit = await attic.store.begin([message()])
    await unit.commit([Record(ORDER, issued=(A,), unit=unit.key)])
    attic.clock.advance(OLD)
    await attic.run(attic.looks(2))
    assert await attic.left() == ["token/mail/a"]


async def test_live_tokens_stay_however_old() -> None:
    """Their messages are under way."""
    attic = Attic()
    await attic.prepare(A)
    await attic.tokens.activate([A])
    attic.clock.advance(OLD)
    await attic.run(attic.looks(2))
    assert await attic.left() == ["token/mail/a"]


async def test_an_attempt_that_was_swept_can_not_be_committed_any_more() -> None:
    """Its tokens are gone: a message that carried one would be dropped."""
    attic = Attic()
    unit = await attic.store.begin([message()])
    await attic.prepare(A)
    attic.clock.advance(OLD)
    await attic.run(attic.looks(2))
    with pytest.raises(Exception, match="another worker changed"):
        await unit.commit([Record(ORDER, issued=(A,), unit=unit.key)])


async def test_what_an_attempt_made_is_unmade_once_it_is_old() -> None:
    """With its register row; a young attempt's stays."""
    attic = Attic()
    attempts = [(await attic.effects.register([message()]))[ORDER]]
    await attic.artifacts.create(Artifact(kind="blob", name=f"{attempts[0]}/receipt", data=b"1"))
    attic.clock.advance(OLD // 2)
    attempts += [(await attic.effects.register([message()]))[ORDER]]
    await attic.artifacts.create(Artifact(kind="blob", name=f"{attempts[1]}/receipt", data=b"1"))
    attic.clock.advance(OLD // 2 + 1)
    await attic.run(attic.looks(1))
    assert await attic.artifacts.names() == (f"{attempts[1]}/receipt",)
    assert list(await attic.documents.keys("register/")) == [f"register/{SHOP}/{attempts[1]}"]


async def test_it_looks_twice_in_the_time_after_which_something_is_old() -> None:
    """The first time at its start."""
    attic = Attic()
    await attic.run(attic.looks(5))
    assert attic.timer.seconds() == pytest.approx(4 * AFTER / 2)


async def test_an_outage_ends_no_janitor(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and so is its end."""
    caplog.set_level(logging.INFO, "onceonly.janitor")
    attic = Attic()
    attic.tokens.failures = 3
    await attic.prepare(A)
    attic.clock.advance(OLD)
    await attic.run(attic.looks(5))
    assert await attic.left() == []
    assert words(caplog.records) == [
        "janitor task failing",
        "janitor task recovered",
    ]


async def test_tokens_that_are_away_keep_nothing_else_from_being_swept() -> None:
    """Attempts are in the store, which answers."""
    attic = Attic()
    attempt = (await attic.effects.register([message()]))[ORDER]
    await attic.artifacts.create(Artifact(kind="blob", name=f"{attempt}/receipt", data=b"1"))
    attic.tokens.failures = 1_000_000
    attic.clock.advance(OLD)
    await attic.run(attic.looks(2))
    assert await attic.artifacts.names() == ()


def words(records: Sequence[logging.LogRecord]) -> list[str]:
    """Return what was logged."""
    return events(records)


async def test_a_stop_during_its_rest_ends_it_at_once() -> None:
    """However long the rest would be."""
    attic = Attic()
    attic.timer.sleep = forever  # type: ignore[method-assign] # time stands still
    await attic.run(attic.looks(1))
    assert len(attic.tokens.looks) == 1


async def forever(_seconds: float) -> None:
    """Sleep for ever."""
    await asyncio.Event().wait()


async def test_an_artifact_that_lands_after_its_attempt_has_lost_is_deleted() -> None:
    """A proxy repeats the request that makes it. The attempt loses and cleans up, then the repetition arrives."""
    attic = Attic()
    attempt = (await attic.effects.register([message()]))[ORDER]
    artifact = Artifact(kind="blob", name=f"{attempt}/0", data=b"data")
    lost = Record(ORDER, unit=attic.unit, attempt=attempt, artifacts=(artifact,))
    await attic.effects.create([lost])
    await attic.effects.discard([lost])
    assert await attic.artifacts.names("") == ()
    await attic.artifacts.create(artifact)
    attic.clock.advance(OLD)
    await attic.run(attic.looks(2))
    assert await attic.artifacts.names("") == ()
    assert await attic.documents.keys("register/") == ()
