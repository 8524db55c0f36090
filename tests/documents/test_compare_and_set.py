"""The loop of compare-and-set, and what used to be loops of their own: nothing is lost, and CommitFailed is true."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

import onceonly.documents
from onceonly.documents.bookkeeping import DocumentCounter, DocumentRunMarkers
from onceonly.documents.compare_and_set import TRIES, WriteConflict, compare_and_set
from onceonly.documents.store import DocumentStore
from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.ports.documents import Change, Document, Documents, Version
from onceonly.ports.run_markers import BEGUN
from onceonly_conformance.clock import ManualClock
from tests.documents.fakes import ContestedDocuments, RecordingDocuments

MESSAGE = Identity("till", "m1")


class Overtaken(RecordingDocuments):
    """Documents of which one is written by another worker before each of our writes, `times` times; `b` never is."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times
        self.other = b"0"

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write what is not overtaken."""
        for change in changes:
            if self.left and change.key != "b":
                self.left -= 1
                found = (await self.inner.load([change.key])).get(change.key)
                body = found.body if found else self.other
                await self.inner.save([Change(key=change.key, body=body, expected=found.version if found else "")])
        return await super().save(changes)


def appended(key: str, found: Document | None) -> Change:
    """Write one more letter, whatever is there."""
    return Change(key=key, body=(found.body if found else b"") + b"x", expected=found.version if found else "")


async def bodies(documents: Documents, *keys: str) -> dict[str, bytes]:
    """Read the bodies."""
    return {key: document.body for key, document in (await documents.load(keys)).items()}


async def test_only_what_lost_its_race_is_decided_anew() -> None:
    """And the versions are those of the last writes."""
    documents = Overtaken(2)
    settled = await compare_and_set(documents, ["a", "b", "a"], appended)
    found = await documents.inner.load(["a", "b"])
    assert {key: each.body for key, each in found.items()} == {"a": b"0x", "b": b"x"}
    assert settled.versions == {key: each.version for key, each in found.items()}
    assert settled.seen["b"] is None
    assert settled.seen["a"] is not None
    assert [change.key for change in documents.written] == ["a", "b", "a", "a"]


async def test_nothing_to_do_sends_nothing() -> None:
    """Neither without keys, nor where each document is as it should be."""
    documents = RecordingDocuments()
    assert not (await compare_and_set(documents, [], appended)).versions
    assert documents.calls == []
    await compare_and_set(documents, ["a"], lambda _key, _found: None)
    assert documents.calls == ["load"]


@pytest.mark.parametrize(("keys", "error"), [(["a"], WriteConflict), (["a", "b"], OutcomeUnknown)])
async def test_losing_every_race_is_failed_only_if_nothing_was_written(keys: list[str], error: type[Exception]) -> None:
    """It was CommitFailed for the store's own loop although another document had been written."""
    documents = Overtaken(TRIES)
    with pytest.raises(error, match="other workers kept changing 'a': gave up after 20 attempts"):
        await compare_and_set(documents, keys, appended)
    assert issubclass(WriteConflict, CommitFailed)
    assert documents.calls.count("save") == TRIES


async def test_the_last_try_counts() -> None:
    """Who wins it has written."""
    documents = Overtaken(TRIES - 1)
    await compare_and_set(documents, ["a"], appended)
    assert await bodies(documents, "a") == {"a": b"0x"}


async def test_what_must_come_before_a_write_is_told_of_each() -> None:
    """With the version that the write expects; an error there ends the call, before anything is written."""
    documents, told = Overtaken(1), list[list[Change]]()

    async def before(changes: Sequence[Change]) -> None:
        told.append(list(changes))
        if len(told) > 2:
            raise ConflictError("enough")

    await compare_and_set(documents, ["a", "b"], appended, before=before)
    assert [[change.key for change in changes] for changes in told] == [["a", "b"], ["a"]]
    assert told == [documents.written[:2], documents.written[2:]]
    with pytest.raises(ConflictError):
        await compare_and_set(documents, ["b"], appended, before=before)
    assert await bodies(documents, "b") == {"b": b"x"}


async def test_a_store_that_edited_one_of_two_documents_does_not_say_failed() -> None:
    """Its caller would take the records for untouched."""
    documents = Overtaken(TRIES)
    documents.other = b"{}"
    store = DocumentStore(documents, "shop", clock=ManualClock(), history=None)
    with pytest.raises(OutcomeUnknown):
        await store.edit(["a", "b"], lambda _key, document: type(document)(state=b'{"n":1}'))


async def test_a_count_loses_no_addition() -> None:
    """Whoever is faster."""
    documents = RecordingDocuments()
    counter = DocumentCounter(documents, "drops")
    await counter.add(2)
    await counter.add(3)
    assert await counter.read() == 5
    with pytest.raises(WriteConflict):
        await DocumentCounter(contested(documents), "drops").add(1)


async def test_a_run_begins_once() -> None:
    """Of two processes that begin the same one, the second waits, in short steps."""
    documents, clock = RecordingDocuments(), ManualClock()
    one, other = (DocumentRunMarkers(documents, "shop", clock, 30.0) for _ in range(2))
    assert await one.begin(MESSAGE, 1) == BEGUN
    assert 0 < (await other.begin(MESSAGE, 1)).wait < 30.0
    await other.finish(MESSAGE)
    assert 0 < (await other.begin(MESSAGE, 1)).wait < 30.0
    await one.finish(MESSAGE)
    assert await other.begin(MESSAGE, 1) == BEGUN


def contested(documents: RecordingDocuments) -> ContestedDocuments:
    """Have somebody else write these documents before every write."""
    found = ContestedDocuments()
    found.inner = documents.inner
    return found


def test_there_is_no_other_loop() -> None:
    """Another loop around conditional writes would be another rule of when to give up, and what that means."""
    folder = Path(onceonly.documents.__file__ or "").parent
    loops = {
        path.name
        for path in folder.glob("*.py")
        for loop in ast.walk(ast.parse(path.read_text()))
        if isinstance(loop, ast.For | ast.While | ast.AsyncFor)
        for statement in loop.body
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "save"
    }
    assert loops == {"compare_and_set.py"}
