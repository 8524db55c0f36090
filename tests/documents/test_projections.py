"""Projections on documents: the newest version of a key stays, whatever comes late, twice or at the same time."""

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.projection_effects import OwnProjection, ProjectionEffects
from onceonly.documents.projections import KEPT, DocumentProjection, ProjectedValue
from onceonly.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer, Record
from onceonly.model.remote import RemoteRequest, Verb
from onceonly.ports.documents import Change, Document, Version
from onceonly.testing.environment import START, RunClock

TAKEN, AWAY, REFUSED = Answer.TAKEN, Answer.AWAY, Answer.REFUSED
JSON = "application/json"


def put(key: str, version: int, value: object = None, *, projection: str = "cache") -> ProjectedWrite:
    """Return a write of a JSON value, by default one that shows the version."""
    return ProjectedWrite(projection, key, version, json.dumps(version if value is None else value).encode(), JSON)


def delete(key: str, version: int) -> ProjectedWrite:
    """Return a write that deletes a key."""
    return ProjectedWrite("cache", key, version)


class Failing(MemoryDocuments):
    """Documents whose next saves fail before or after they were made."""

    before: CommitFailed | OutcomeUnknown | None = None
    after: OutcomeUnknown | None = None

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Save, and fail."""
        if self.before:
            raise self.before
        answers = await super().save(changes)
        if self.after:
            raise self.after
        return answers


class Interrupted(MemoryDocuments):
    """Documents that another write changes between a load and the save that follows it."""

    meanwhile: ProjectedWrite | None = None

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Load, and let the other write happen."""
        found = await super().load(keys)
        write, self.meanwhile = self.meanwhile, None
        if write is not None:
            await DocumentProjection(self, "cache", clock=RunClock()).write([write])
        return found


@pytest.fixture
def clock() -> RunClock:
    """Return a clock that stands still."""
    return RunClock()


@pytest.fixture
def documents() -> Failing:
    """Return an empty place."""
    return Failing(Live())


@pytest.fixture
def projection(documents: Failing, clock: RunClock) -> DocumentProjection:
    """Return a projection whose service drops nothing."""
    return DocumentProjection(documents, "cache", clock=clock, lists_tombstones=True)


async def test_a_value_is_read_as_it_was_written(projection: DocumentProjection) -> None:
    """JSON, text and bytes, with the version and the content type."""
    writes = [
        put("json", 3, {"a": [1, "é"]}),
        ProjectedWrite("cache", "bytes", 4, b"\x00\xff", "application/octet-stream"),
        ProjectedWrite("cache", "a/b c%2F", 5, b"", ""),
    ]
    assert await projection.write(writes) == (TAKEN,) * 3
    found = await projection.get("json")
    assert found is not None
    assert (found.json(), found.version, found.content_type) == ({"a": [1, "é"]}, 3, JSON)
    assert await projection.get("bytes") == ProjectedValue(b"\x00\xff", 4, "application/octet-stream")
    assert await projection.get("a/b c%2F") == ProjectedValue(b"", 5)
    assert await projection.get("other") is None
    assert set(await projection.names()) == {"json", "bytes", "a/b c%2F"}


@pytest.mark.parametrize("order", [*itertools.permutations([put("k", 1), put("k", 2), delete("k", 3), put("k", 4)])])
async def test_the_newest_version_stays_in_whatever_order_writes_come(
    projection: DocumentProjection, order: Sequence[ProjectedWrite]
) -> None:
    """Each comes twice, alone and together with all others."""
    for write in order:
        assert await projection.write([write, write]) == (TAKEN, TAKEN)
    assert await projection.write(order) == (TAKEN,) * 4
    assert await projection.get("k") == ProjectedValue(b"4", 4, JSON)


async def test_of_two_values_with_one_version_the_first_stays(projection: DocumentProjection) -> None:
    """A write that comes again has the version that is stored."""
    await projection.write([put("k", 1, "first")])
    assert await projection.write([put("k", 1, "second")]) == (TAKEN,)
    assert await projection.get("k") == ProjectedValue(b'"first"', 1, JSON)


async def test_a_tombstone_refuses_older_writes_until_it_is_removed(projection: DocumentProjection, clock: RunClock) -> None:
    """It is kept for a week, and leaves nothing."""
    await projection.write([put("k", 1), delete("k", 3)])
    assert await projection.get("k") is None
    clock.advance(KEPT.total_seconds())
    assert await projection.remove_expired() == 0
    await projection.write([put("k", 2)])
    assert await projection.get("k") is None
    clock.advance(1)
    assert await projection.remove_expired() == 1
    assert await projection.names() == ()


async def test_removing_tombstones_leaves_what_was_put_again(
    projection: DocumentProjection, documents: Failing, clock: RunClock
) -> None:
    """The list has an entry for the time when the key was deleted."""
    await projection.write([delete("k", 1), delete("other", 1)])
    await projection.write([put("k", 2)])
    clock.advance(KEPT.total_seconds() + 1)
    assert await projection.remove_expired() == 2
    assert await projection.get("k") == ProjectedValue(b"2", 2, JSON)
    assert await documents.keys("") == ("projection/cache/k",)


async def test_a_key_deleted_again_is_kept_for_its_last_tombstone(projection: DocumentProjection, clock: RunClock) -> None:
    """The entry of the first one does not remove the second one."""
    await projection.write([delete("k", 1)])
    clock.advance(KEPT.total_seconds() / 2)
    await projection.write([delete("k", 3)])
    clock.advance(KEPT.total_seconds() / 2 + 1)
    assert await projection.remove_expired() == 1
    await projection.write([put("k", 2)])
    assert await projection.get("k") is None


async def test_where_the_service_drops_documents_a_tombstone_has_a_time_and_no_entry(clock: RunClock) -> None:
    """A value that is put again has none."""
    saved: list[Change] = []

    class Noting(Failing):
        async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
            saved.extend(changes)
            return await super().save(changes)

    projection = DocumentProjection(Noting(Live()), "cache", clock=clock, tombstones=timedelta(days=30))
    await projection.write([delete("k", 1)])
    await projection.write([put("k", 2)])
    days = timedelta(days=30) // timedelta(milliseconds=1)
    assert [(each.key, each.expires) for each in saved] == [("projection/cache/k", START + days), ("projection/cache/k", 0)]
    assert await projection.remove_expired() == 0


@pytest.mark.parametrize("other", [put("k", 1, "older"), put("k", 9, "newer"), delete("k", 9)])
async def test_another_process_may_write_in_between(clock: RunClock, other: ProjectedWrite) -> None:
    """The write names the version it has read, so it is decided again."""
    documents = Interrupted(Live())
    documents.meanwhile = other
    projection = DocumentProjection(documents, "cache", clock=clock)
    assert await projection.write([put("k", 5)]) == (TAKEN,)
    found = await projection.get("k")
    assert (found and found.version) == {1: 5, 9: 9 if other.body else None}[other.version]


@pytest.mark.parametrize("is_made", [False, True])
async def test_what_failed_or_is_unknown_is_to_be_repeated(
    projection: DocumentProjection, documents: Failing, *, is_made: bool
) -> None:
    """And changes nothing more when it is."""
    if is_made:
        documents.after = OutcomeUnknown("the answer is lost")
    else:
        documents.before = CommitFailed("away")
    assert await projection.write([put("a", 1), put("b", 1)]) == (AWAY, AWAY)
    documents.before = documents.after = None
    assert await projection.write([put("a", 1), put("b", 1)]) == (TAKEN, TAKEN)
    assert set(await projection.names()) == {"a", "b"}


async def test_a_write_that_is_refused_refuses_no_other(projection: DocumentProjection, documents: Failing) -> None:
    """A document of somebody else, and one that is too large."""
    await documents.save([Change(key="projection/cache/foreign", body=b"not ours")])
    large = put("large", 1, "x" * documents.limits.body)
    assert await projection.write([put("a", 1), put("foreign", 1), large]) == (TAKEN, REFUSED, REFUSED)
    assert await projection.get("a") is not None
    assert (await documents.load(["projection/cache/foreign"]))["projection/cache/foreign"].body == b"not ours"


async def test_what_is_too_long_or_too_large_is_told_before(projection: DocumentProjection, documents: Failing) -> None:
    """By the limits of the service, with what is stored around it."""
    longest = documents.limits.key - len("projection/cache/")
    assert projection.problem(put("k" * longest, 1)) == ""
    assert "its key has" in projection.problem(put("k" * (longest + 1), 1))
    around = len(b'{"version":1,"type":"application/json","value":""}')
    assert projection.problem(put("k", 1, "x" * (documents.limits.body - around))) == ""
    assert "it takes" in projection.problem(put("k", 1, "x" * (documents.limits.body - around + 1)))


async def test_projections_of_one_place_have_keys_of_their_own(documents: Failing, clock: RunClock) -> None:
    """Of other names, and of a name that begins alike."""
    one, two, three = (DocumentProjection(documents, name, clock=clock) for name in ("cache", "cache2", "search"))
    for each in (one, two, three):
        await each.write([put("k", 1)])
    await one.write([delete("k", 2)])
    assert [await each.names() for each in (one, two, three)] == [(), ("k",), ("k",)]


class Index:
    """A user's own projection, which compares versions as it should; it fails when told to."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[int, bytes | None]] = {}
        self.calls: list[tuple[str, int]] = []
        self.error: Exception | None = None

    async def put(self, key: str, body: bytes, version: int) -> None:
        """Store a body."""
        self._store(key, body, version)

    async def delete(self, key: str, version: int) -> None:
        """Store a tombstone."""
        self._store(key, None, version)

    def _store(self, key: str, body: bytes | None, version: int) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((key, version))
        if self.values.get(key, (0, None))[0] < version:
            self.values[key] = (version, body)


async def test_a_projection_of_ones_own_is_called_for_each_write() -> None:
    """Once for a write that comes twice, and of one key in the order of versions."""
    index = Index()
    writes = [put("a", 2), put("b", 1), put("a", 1), delete("b", 2), put("a", 2)]
    assert await OwnProjection(index).write(writes) == (TAKEN,) * 5
    assert index.values == {"a": (2, b"2"), "b": (2, None)}
    assert [version for key, version in index.calls if key == "a"] == [1, 2]
    assert len(index.calls) == 4


@pytest.mark.parametrize(
    ("error", "answer"),
    [(RuntimeError("connection lost"), AWAY), (OutcomeUnknown("?"), AWAY), (CommitRefused("never"), REFUSED)],
)
async def test_what_a_users_projection_raises_is_an_answer(error: Exception, answer: Answer) -> None:
    """And it is told, and so is that it works again."""
    index, told = Index(), []
    index.error = error
    own = OwnProjection(index, tell=lambda count, error: told.append((count, error)))
    assert await own.write([put("a", 1)]) == (answer,)
    index.error = None
    await own.write([put("a", 1)])
    assert told == [(1, error), (0, None)]


def record(name: str, *writes: ProjectedWrite, peers: int = 0) -> Record:
    """Return a committed record with these writes, and calls of peers."""
    calls = [RemoteRequest(Verb.WRITE, write.url, write) for write in writes]
    calls += [RemoteRequest(Verb.POST, f"https://peer/{name}.{index}") for index in range(peers)]
    return Record(Identity("web", name), requests=tuple(calls))


class Peers:
    """Inner effects that note what they are asked to call."""

    def __init__(self) -> None:
        self.called: list[Record] = []
        self.register = self.create = self.discard = self.clean = self.responses = self._nothing

    async def _nothing(self, *_: object) -> None:
        return None

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Take all."""
        self.called += records
        return {record.identity: TAKEN for record in records}


async def test_requests_are_made_when_the_writes_are_done(projection: DocumentProjection, documents: Failing) -> None:
    """A record whose write is to be repeated calls nobody; the requests of others have no writes among them."""
    peers = Peers()
    effects = ProjectionEffects(peers, {"cache": projection})  # type: ignore[arg-type]
    lost = put("k", 1, projection="removed-from-the-settings")
    records = [record("a", put("a", 1), peers=1), record("b", lost, peers=1), record("c", peers=1), record("d", put("d", 1))]
    assert await effects.call(records) == {
        Identity("web", "a"): TAKEN,
        Identity("web", "b"): AWAY,
        Identity("web", "c"): TAKEN,
        Identity("web", "d"): TAKEN,
    }
    assert [each.identity.id for each in peers.called] == ["a", "c"]
    assert all(call.write is None for each in peers.called for call in each.requests)
    documents.before = CommitFailed("away")
    assert await effects.call([record("e", put("e", 1), peers=1)]) == {Identity("web", "e"): AWAY}
    assert len(peers.called) == 2
