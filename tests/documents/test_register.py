"""Register rows in documents: whatever happens, what an attempt made can be found."""

import pytest

from onceonly.adapters.memory.artifacts import MemoryArtifacts
from onceonly.algorithms.effects import RegisteredEffects as Effects
from onceonly.documents.register import DocumentRegister
from onceonly.model.artifact import Artifact, Reservation
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown, PermanentFailure
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.documents import Change
from onceonly_conformance.suite import ENDPOINT
from tests.documents.fakes import RecordingDocuments
from tests.documents.harness import ENTITY, ONE_EFFECT, WEEK, StoreHarness, about, handle

LATER = 1 << 52
HOUR = 3_600_000
PLACES = [WEEK, None]


class Counter:
    """Fresh ids."""

    def __init__(self) -> None:
        self.last = 0

    def new_id(self) -> str:
        """Count."""
        self.last += 1
        return f"a{self.last}"


def row(harness: StoreHarness, attempt: str = "a1", name: str = "m1", unit: str = ENTITY) -> Reservation:
    """Make a row."""
    return Reservation(identity=Identity("till", name), unit=unit, attempt=attempt, at=harness.clock.now())


def effects_of(harness: StoreHarness) -> tuple[Effects, MemoryArtifacts]:
    """Make the effects of a process."""
    artifacts = MemoryArtifacts(harness.documents.inner._driver)
    return Effects(harness.store(), harness.register(), {"blob": artifacts}, ids=Counter(), clock=harness.clock), artifacts


async def test_what_a_stalled_attempt_makes_can_be_found() -> None:
    """It stalls between any two writes of its row, a sweeper comes, it goes on, makes its artifact, and dies."""
    for stalls_at in (1, 2, 3):
        harness = StoreHarness()
        effects, artifacts = effects_of(harness)
        stall(harness.documents, stalls_at, effects)
        try:
            attempts = await effects.register([about()])
        except ConflictError:
            continue
        attempt = attempts[about().identity]
        artifact = Artifact(kind="blob", name=f"{attempt}/invoice", data=b"x")
        await effects.create([Record(about().identity, attempt=attempt, artifacts=(artifact,))])
        assert await effects_of(harness)[0].sweep(LATER, 10) == 1
        assert (await artifacts.names(), await harness.register().old(LATER, 10)) == ((), ())
        assert (await harness.entity()).register == {}


def stall(documents: RecordingDocuments, call: int, effects: Effects) -> None:
    """Let a sweeper run before this call of the documents."""
    inner, calls = documents.inner, 0
    load, save = documents.load, documents.save

    async def before() -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            documents.load, documents.save = inner.load, inner.save  # type: ignore[method-assign]
            await effects.sweep(LATER, 10)

    async def loading(keys: list[str]) -> object:
        await before()
        return await load(keys)

    async def saving(changes: list[Change]) -> object:
        await before()
        return await save(changes)

    documents.load, documents.save = loading, saving  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("write", [1, 2])
async def test_a_row_is_listed_before_it_is_written(write: int) -> None:
    """Whichever of the two writes is the last, another attempt handles the message and a sweep leaves nothing."""
    harness = StoreHarness()
    harness.documents.spoils = {write: CommitFailed("the process ends here")}
    with pytest.raises(CommitFailed):
        await harness.register().open([row(harness, "a0")])
    written, found = (await harness.entity()).register, await harness.register().old(LATER, 10)
    assert set(written) <= {each.attempt for each in found}
    effects, _ = effects_of(harness)
    attempts = await effects.register([about()])
    unit = await harness.store().begin([about()])
    record = Record(about().identity, unit=unit.key, attempt=attempts[about().identity])
    await unit.commit([record])
    await effects.clean([record])
    await effects.sweep(LATER, 10)
    assert ((await harness.entity()).register, await harness.register().old(LATER, 10)) == ({}, ())


async def test_a_row_that_lands_after_its_listing_was_swept_is_refused() -> None:
    """The sweeper cannot see a write that is under way, so it makes it come too late."""
    harness = StoreHarness()
    late: list[Change] = []
    save = harness.documents.save

    async def saving(changes: list[Change]) -> object:
        if any(change.key == ENTITY for change in changes):
            late.extend(changes)
            raise OutcomeUnknown("no answer")
        return await save(changes)

    harness.documents.save = saving  # type: ignore[assignment, method-assign]
    with pytest.raises(OutcomeUnknown):
        await harness.register().open([row(harness)])
    harness.documents.save = save  # type: ignore[method-assign]
    await effects_of(harness)[0].sweep(LATER, 10)
    assert await harness.register().old(LATER, 10) == ()
    assert await harness.documents.save(late) == (None,)
    assert (await harness.entity()).register == {}


async def test_a_sweep_of_committed_attempts_changes_no_document() -> None:
    """Their rows went with a write, so nothing has to be fenced, and no handler loses a race to the sweeper."""
    harness = StoreHarness()
    await harness.register().open([row(harness)])
    unit = await harness.store().begin([about()])
    await unit.commit([Record(about().identity, attempt="a1", unit=unit.key)])
    before = await harness.documents.load([ENTITY])
    await effects_of(harness)[0].sweep(LATER, 10)
    assert await harness.documents.load([ENTITY]) == before
    assert await harness.register().old(LATER, 10) == ()


async def test_a_committed_row_is_gone_for_whoever_cancels_it() -> None:
    """So what it made is published, and the list forgets it."""
    harness = StoreHarness()
    await harness.register().open([row(harness)])
    unit = await harness.store().begin([about()])
    await unit.commit([Record(about().identity, attempt="a1", unit=unit.key)])
    assert not await harness.register().cancel(row(harness))
    assert await harness.register().old(LATER, 10) == ()


async def test_a_cancelled_row_makes_the_commit_a_conflict() -> None:
    """Whether it was cancelled after the unit had loaded it, or before."""
    for early in (True, False):
        harness = StoreHarness()
        await harness.register().open([row(harness)])
        if early:
            await harness.register().cancel(row(harness))
        unit = await harness.store().begin([about()])
        if not early:
            await harness.register().cancel(row(harness))
        with pytest.raises(ConflictError):
            await unit.commit([Record(about().identity, attempt="a1", unit=unit.key)])
        await harness.register().remove(row(harness))
        with pytest.raises(ConflictError):
            await (await harness.store().begin([about()])).commit([Record(about().identity, attempt="a1")])


async def test_one_bad_document_does_not_stop_the_sweeper() -> None:
    """Somebody changed it by hand; what was left in others is cleaned all the same."""
    harness = StoreHarness()
    effects, artifacts = effects_of(harness)
    await harness.register().open([row(harness, "a1"), row(harness, "a2", unit="entity/other")])
    await artifacts.create(Artifact(kind="blob", name="a2/invoice", data=b"x"))
    (found,) = (await harness.documents.load([ENTITY])).values()
    await harness.documents.save([Change(key=ENTITY, body=b"by hand", expected=found.version)])
    assert await effects.sweep(LATER, 10) == 1
    assert await artifacts.names() == ()


async def test_bad_documents_do_not_stand_before_all_others() -> None:
    """However many pages of them there are."""
    harness = StoreHarness()
    effects, artifacts = effects_of(harness)
    await harness.register().open([row(harness, f"a{number}", unit=f"entity/{number}") for number in range(7)])
    await harness.register().open([row(harness, "b")])
    await artifacts.create(Artifact(kind="blob", name="b/invoice", data=b"x"))
    for number in range(7):
        (found,) = (await harness.documents.load([f"entity/{number}"])).values()
        await harness.documents.save([Change(key=f"entity/{number}", body=b"by hand", expected=found.version)])
    assert await effects.sweep(LATER, 2) == 1
    assert await artifacts.names() == ()
    assert len(await harness.register().old(LATER, 10)) == 7


async def test_a_listed_row_that_nobody_can_read_is_passed_over_and_told() -> None:
    """Somebody else wrote it where rows are listed; no attempt is lost for it, and it is named where there is nothing else."""
    harness = StoreHarness()
    effects, _ = effects_of(harness)
    await harness.documents.save([Change(key=f"register/{ENDPOINT}/a0", body=b"by hand")])
    await harness.register().open([row(harness)])
    assert [each.attempt for each in await harness.register().old(LATER, 10)] == ["a1"]
    assert await effects.sweep(LATER, 10) == 1
    with pytest.raises(PermanentFailure, match=f"'register/{ENDPOINT}/a0' is not a readable reservation"):
        await effects.sweep(LATER, 10)


async def test_a_message_that_is_known_gets_no_row() -> None:
    """Its effects may be pending while the document is full, and a copy that comes late leaves nothing behind."""
    for history in PLACES:
        harness = StoreHarness()
        record = await handle(harness.store(history), about(), ONE_EFFECT)
        register = DocumentRegister(harness.store(history))
        await register.open([row(harness)])
        assert (await harness.kept(), (await harness.entity()).register) == ([ENTITY], {})
        await harness.store(history).forget([record])
        unit = await harness.store(history).begin([about()])
        if unit.found.new:  # forgotten in between: without its row the attempt cannot be committed
            with pytest.raises(ConflictError):
                await unit.commit([Record(about().identity, attempt="a1", unit=unit.key)])


async def test_an_pending_message_in_a_full_document_can_begin() -> None:
    """Not one byte more fits: it is never refused, so it never becomes a dead letter."""
    harness = StoreHarness(body=8_192)
    await handle(harness.store(), about(), ONE_EFFECT)
    rows = [row(harness, f"{number:032}", f"other-{number}") for number in range(80)]
    for opened in rows:
        try:
            await harness.register().open([opened])
        except CommitRefused:
            break
    assert len((await harness.entity()).register) > 50
    with pytest.raises(CommitRefused):
        await harness.register().open(rows[-1:])
    await harness.register().open([row(harness, "mine")])
    assert (await harness.store().begin([about()])).found.pending
    assert await harness.register().cancel(rows[0])
