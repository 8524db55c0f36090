"""Documents that cannot be read cost themselves: counters, journals, runs, marks, tokens, register rows and entities."""

import logging
from contextlib import suppress
from datetime import timedelta

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentCounter, DocumentEventCounts, DocumentJournals, DocumentRunMarkers
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.formats import undecodable
from onceonly.formats.documents import (
    ClientKey,
    EntityDocument,
    MessageState,
    StoredReservation,
    decode_entity,
    encode_entity,
)
from onceonly.formats.log_events import LoggedKeys
from onceonly.model.errors import CommitRefused, PermanentFailure, UpgradeRequired
from onceonly.model.identity import Identity
from onceonly.model.maintenance_journal import LateBucket, MaintenanceJournal, TaskRun
from onceonly.model.record import Record
from onceonly.model.token import Owner, Token
from onceonly.ports.documents import Change
from onceonly.ports.run_markers import BEGUN
from onceonly_conformance.clock import ManualClock
from tests.documents.test_register import LATER, StoreHarness, effects_of, row
from tests.fuzzing import Inputs
from tests.log_events import event_in
from tests.sql.harness import ONE_EFFECT

UNREADABLE = (b"", b"\xff", b"[9]", b"{}", b'"\xff"', b"[" * 5000, b'{"a":' * 5000, b'{"count":1e99}', b'{"until":"for ever"}')
OURS, OTHERS = Identity("till", "1"), Identity("till", "2")
RETENTION = timedelta(days=1)


@pytest.fixture(autouse=True)
def _none_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecodable, "_REPORTED", LoggedKeys())


class Place:
    """Documents that others write to."""

    def __init__(self) -> None:
        self.documents, self.clock = MemoryDocuments(Live()), ManualClock()

    async def write(self, key: str, body: bytes) -> None:
        """Write whatever this is."""
        found = (await self.documents.load([key])).get(key)
        await self.documents.save([Change(key=key, body=body, expected=found.version if found else "")])

    async def body(self, key: str) -> bytes:
        """Return what is there."""
        return (await self.documents.load([key]))[key].body


@pytest.fixture
def place() -> Place:
    """Make an empty place."""
    return Place()


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged as unreadable."""
    return [each for each in caplog.records if event_in(each) == "stored data unreadable"]


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_count_or_journal_is_replaced(
    place: Place, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What adds to it, and the janitor, go on. It is logged once."""
    counter = DocumentCounter(place.documents, "shop")
    counts, journals = DocumentEventCounts(place.documents, "shop"), DocumentJournals(place.documents, "shop")
    for key in ("count/shop", "unsubscribed/shop", "janitor/shop"):
        await place.write(key, stored)
    for _ in range(2):
        assert (await counter.read(), dict(await counts.read()), await journals.read()) == (0, {}, None)
    assert await journals.longest_retention() == 0
    assert len(told(caplog)) == 3
    await counter.add(2)
    await counts.add({"a": 3})
    await journals.write(MaintenanceJournal(at=1, interval=1, retention=5))
    assert (await counter.read(), dict(await counts.read()), await journals.longest_retention()) == (2, {"a": 3}, 5)


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_run_keeps_no_message_from_its_run(place: Place, stored: bytes) -> None:
    """It is replaced, and removed at the end."""
    run_markers = DocumentRunMarkers(place.documents, "shop", place.clock, 10)
    await run_markers.begin(OURS, 1)
    (key,) = await place.documents.keys("start/")
    await place.write(key, stored)
    assert await run_markers.begin(OURS, 1) == BEGUN
    await place.write(key, stored)
    await run_markers.finish(OURS)
    await run_markers.forget(OURS, 1)
    assert await place.documents.keys("start/") == ()


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_mark_is_a_mark(place: Place, stored: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Its message is done. It keeps no other from being removed, and is written anew when its key is added."""
    marks = DocumentMarkStore(place.documents, retention=RETENTION, clock=place.clock)
    keys = [b"a" * 16, b"b" * 16, b"c" * 16]
    await marks.add(keys)
    name = f"done/{keys[1].hex()}"
    await place.write(name, stored)
    assert set(await marks.contains(keys)) == set(keys)
    place.clock.advance(1 << 40)
    assert await marks.sweep() == f"done/{keys[2].hex()}"
    assert await place.documents.keys("done/") == (name,)
    await marks.add(keys)
    assert len(told(caplog)) == 1
    place.clock.advance(1 << 40)
    await marks.sweep()
    assert await place.documents.keys("done/") == ()


@pytest.mark.parametrize("stored", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_token_costs_its_own_message(place: Place, stored: bytes) -> None:
    """Its message is given up, and the janitor lists, counts and removes the tokens around it."""
    tokens = DocumentTokens(place.documents, clock=place.clock)
    known = [Token(name, "mail") for name in ("a", "b", "c")]
    await tokens.prepare(dict.fromkeys(known, Owner("shop", "", OURS)))
    await place.write("token/mail/b", stored)
    place.clock.advance(1000)
    other = DocumentTokens(place.documents, clock=place.clock)
    assert [each.token for each in await other.prepared(1 << 60, 10)] == [known[0], known[2]]
    assert (await other.census("mail", 10)).prepared == 2
    with pytest.raises(PermanentFailure, match="document 'token/mail/b' is not a readable token"):
        await other.live(known)
    await other.activate([known[0], known[2]])
    assert await other.live([known[0], known[2]]) == {known[0], known[2]}
    await other.discard(known)
    assert await place.body("token/mail/b") == stored
    await other.activate(known)
    assert await other.live(known) == set(known)


async def test_a_token_of_a_newer_version_waits_for_it(place: Place) -> None:
    """Its processes can read it, so its message is not given up."""
    tokens = DocumentTokens(place.documents, clock=place.clock)
    await place.write("token/mail/a", b'{"state":"lent"}')
    for call in (tokens.live, tokens.activate):
        with pytest.raises(UpgradeRequired, match="'token/mail/a'"):
            await call([Token("a", "mail")])


async def test_numbers_that_no_process_writes_are_unreadable(place: Place) -> None:
    """A message would wait for the end of a run, and no difference of times fits into a float."""
    journals = DocumentJournals(place.documents, "shop")
    run_markers = DocumentRunMarkers(place.documents, "shop", place.clock, 10)
    await run_markers.begin(OURS, 1)
    (run,) = await place.documents.keys("start/")
    for number in (10**400, -(10**400), 1 << 63, 1 << 61):
        await place.write(run, b'{"attempts":1,"token":"x","until":%d}' % number)
        assert (await run_markers.begin(OURS, 1)).wait == 0
        await place.write("janitor/shop", b'{"at":1,"interval":%d}' % number)
        found = await journals.read()
        assert (found is None) == (number != 1 << 61)


# Fuzzing: see `tests/fuzzing.py`.


async def test_fuzz_bookkeeping(place: Place) -> None:
    """Counters, event counts, journals and runs."""
    inputs = Inputs()
    counter, counts = DocumentCounter(place.documents, "shop"), DocumentEventCounts(place.documents, "shop")
    journals = DocumentJournals(place.documents, "shop")
    run_markers = DocumentRunMarkers(place.documents, "shop", place.clock, 10)
    await run_markers.begin(OURS, 1)
    (run,) = await place.documents.keys("start/")
    await counter.add(3)
    await counts.add({"a.v1": 3, "b.v1": 1})
    task, bucket = TaskRun(at=1, count=3, failing_since=2, reason="x"), LateBucket(number=1, late=2, reason="y", stops=True)
    await journals.write(MaintenanceJournal(at=1, interval=2, retention=3, by="x", tasks={"a": task}, late=(bucket,), since=4))
    plain = {key: await place.body(key) for key in ("count/shop", "unsubscribed/shop", "janitor/shop", run)}
    for _ in inputs.rounds():
        for key, body in plain.items():
            await place.write(key, inputs.document(body))
        await counter.read()
        await counts.add({"c.v1": 1})
        journal = await journals.read()
        if journal is not None:
            journal.overdue(5)
            list(journal.troubles(5))
            journal.is_due("a", 1, 5)
        await run_markers.begin(OURS, 1)
        await run_markers.finish(OURS)
        await run_markers.forget(OURS, 1)


async def test_fuzz_marks(place: Place) -> None:
    """A page of marks is looked through to its end."""
    inputs, keys = Inputs(), [bytes([number]) * 16 for number in range(10)]
    marks = DocumentMarkStore(place.documents, retention=RETENTION, clock=place.clock)
    await marks.add(keys, dict.fromkeys(keys, b"12345678"))
    plain = await place.body(f"done/{keys[0].hex()}")
    for _ in inputs.rounds(10):
        for key in keys:
            await place.write(f"done/{key.hex()}", inputs.document(plain))
        assert set(await marks.contains(keys)) == set(keys)
        assert await marks.sweep() == f"done/{keys[-1].hex()}"
        await marks.add(keys)
        assert set(await marks.contains(keys)) == set(keys)


async def test_fuzz_tokens(place: Place) -> None:
    """The good one among them is listed, counted, made live and removed."""
    inputs = Inputs()
    good, others = Token("good", "mail"), [Token(f"t{number}", "mail") for number in range(10)]
    owner = Owner("shop", "entity/x", OURS)
    await DocumentTokens(place.documents, clock=place.clock).prepare(dict.fromkeys([*others], owner))
    plain = await place.body("token/mail/t0")
    for _ in inputs.rounds(10):
        tokens = DocumentTokens(place.documents, clock=place.clock)
        await tokens.prepare({good: owner})
        for each in others:
            await place.write(f"token/mail/{each.id}", inputs.document(plain))
        tokens = DocumentTokens(place.documents, clock=place.clock)
        assert good in [each.token for each in await tokens.prepared(1 << 62, 20)]
        assert (await tokens.census("mail", 20)).prepared >= 1
        for each in others:
            for call in (tokens.live, tokens.discard, tokens.activate):
                try:
                    await call([each])
                except (PermanentFailure, UpgradeRequired):
                    continue
        await tokens.activate([good])
        assert await tokens.live([good]) == {good}
        await tokens.remove([good])


async def test_fuzz_register_rows() -> None:
    """A listing that cannot be read keeps no other attempt from being swept."""
    inputs, harness = Inputs(), StoreHarness()
    effects, _ = effects_of(harness)
    await harness.register().open([row(harness)])
    (name,) = await harness.documents.keys("register/")
    plain = (await harness.documents.load([name]))[name].body
    start = name.rpartition("/")[0]
    for number in inputs.rounds(10):
        for other in range(10):
            key = f"{start}/0{other}"
            found = (await harness.documents.load([key])).get(key)
            body = inputs.document(plain)
            await harness.documents.save([Change(key=key, body=body, expected=found.version if found else "")])
        assert "a1" in [each.attempt for each in await harness.register().old(LATER, 20)]
        with suppress(PermanentFailure, UpgradeRequired):  # where nothing else is left to sweep
            await effects.sweep(LATER, 20)
        if number % 100 == 0:
            for key in await harness.documents.keys("entity/"):
                document = (await harness.documents.load([key]))[key]
                await harness.documents.save([Change(key=key, body=None, expected=document.version)])
        await harness.register().open([row(harness)])


def test_fuzz_entities() -> None:
    """A document of an entity, with its records, rows and keys, is read, or refused so that only its messages are given up."""
    inputs = Inputs()
    record = Record(OURS, ONE_EFFECT)
    plain = encode_entity(
        EntityDocument(
            state=b'{"total":1}',
            records={"ab": MessageState.of(b"abcdefgh", record), "cd": MessageState("", done=5, until=9)},
            register={"x": StoredReservation("ab", 4)},
            keys={"k": ClientKey("a", "ff", 3, "YQ==")},
            leads_to="entity/Account/A",
        )
    )
    for _ in inputs.rounds():
        try:
            found = decode_entity("entity/x", inputs.document(plain))
        except (PermanentFailure, UpgradeRequired):
            continue
        for state in found.records.values():
            _read_or_refused(lambda state=state: state.record(OTHERS, "entity/x"))
        for key in found.keys.values():
            _read_or_refused(lambda key=key: key.entry("entity/x"))
        decode_entity("entity/x", encode_entity(found))


def _read_or_refused(read: object) -> None:
    try:
        read()  # type: ignore[operator]
    except (CommitRefused, UpgradeRequired):
        return
