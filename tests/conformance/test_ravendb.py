"""RavenDB keeps every promise of documents and of what is built on them, as far as version 4.1 on one node can tell.

The server needs a runtime that is out of support, so these tests are in `make test-slow` only.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import ClassVar, Literal
from uuid import uuid4

import msgspec
import pytest

from onceonly.adapters.ravendb.documents import INDEX, RavenDBDocuments, create, open_documents
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentTokenSuite, DocumentTransactionSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.saves_together_suite import KEYS, Key, SavesTogetherSuite
from tests.conformance.document_subject import ServiceSubject
from tests.conformance.test_document_dead_letters import OnDocuments
from tests.endpoint import entity_harness
from tests.endpoint import test_application_documents as application
from tests.servers.ravendb import own_ravendb, remove_database

pytestmark = [pytest.mark.slow, pytest.mark.repeated]
WRITE = re.compile(rb"(?:PUT|DELETE) [^ ]*/docs\?|POST [^ ]*/bulk_docs")


@pytest.fixture(scope="module")
def database(ravendb_server: str) -> Iterator[str]:
    """Make a database; gives its URL, to which a prefix is added."""
    url = f"{ravendb_server}/onceonly-{uuid4().hex[:12]}"
    asyncio.run(create(url))
    yield url
    remove_database(url)


@pytest.fixture
def url(database: str) -> str:
    """Choose a prefix of its own."""
    return f"{database}?prefix=t{uuid4().hex[:12]}"


class InRavenDB:
    """A prefix in a database."""

    service: ClassVar[str] = "ravendb"

    @pytest.fixture(autouse=True)
    def _use(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a place of its own."""
        async with ServiceSubject.open(
            open_documents,
            self._url,
            missing=self._url.replace("?", "-missing?"),
            is_write=lambda data: WRITE.search(data) is not None,
        ) as subject:
            yield subject


class TestRavenDB(InRavenDB, DocumentsSuite):
    """Documents themselves."""

    many: ClassVar[int] = 300  # a read has 128


class TestPendingInRavenDB(InRavenDB, PendingListSuite):
    """The list of documents with unsent messages."""

    many: ClassVar[int] = 100


class TestSavedTogetherInRavenDB(InRavenDB, SavesTogetherSuite):
    """Documents of the application. Ids are those of the whole database, and ignore case."""

    lapse: ClassVar[int] = 5_000
    keys: ClassVar[tuple[Key, ...]] = tuple(key for key in KEYS if key != ("K",))
    rounds: ClassVar[int] = 10

    def collections(self) -> Sequence[str]:
        """Name one: the same id in another collection is the same document."""
        return ("Receipts",)

    def address(self, number: int) -> DocumentAddress:
        """Return an address that no other rule has."""
        return DocumentAddress("Receipts", (f"receipts/{self._url.rpartition('=')[2]}-{number}",))


class TestDedupInRavenDB(InRavenDB, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInRavenDB(InRavenDB, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInRavenDB(InRavenDB, DocumentTransactionSuite):
    """The transactions for every service, here."""


class TestDeadLettersInRavenDB(InRavenDB, DeadLetterSuite):
    """The dead letters for every service, here."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[OnDocuments]:
        """Open a place of its own."""
        async with self.open_documents() as place:
            place._clock = ManualClock()  # the rules compare times, and RavenDB takes none from its clients
            yield OnDocuments(place, 2)


async def test_a_json_body_can_be_queried(url: str) -> None:
    """It is kept as fields, with the time of its expiry in the metadata."""
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key="k", body=b'{"state":{"total":17}}', expires=4_102_444_800_000)])
        await documents.save([Change(key="l", body=b'{"state":{"total":16}}')])
        name = documents._id_of("k")
        query = "from OnceOnly where body.state.total >= 17 and id() = $id"
        content = {"Query": query, "QueryParameters": {"id": name}, "WaitForNonStaleResults": True}
        answer = await documents._client.read("POST", documents._client.of_database("queries"), content=content)
        (found,) = msgspec.json.decode(answer.body)["Results"]
        assert found["body"] == {"state": {"total": 17}}
        assert found["@metadata"]["@expires"] == "2100-01-01T00:00:00.000000Z"


async def test_creating_again_changes_nothing(url: str) -> None:
    """The documents stay, and so does the list."""
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key="k", body=b"1", pending_for=("shop",), pending_since=5)])
        await create(url)
        assert (await documents.load(["k"]))["k"].body == b"1"
        assert [entry.key for entry in await documents.pending("shop", 6)] == ["k"]
        assert await documents.check() == ()


async def test_places_of_one_database_do_not_see_each_other(database: str) -> None:
    """Also where one prefix begins with another one."""
    prefix = f"t{uuid4().hex[:12]}"
    async with (
        open_documents(f"{database}?prefix={prefix}", clock=ManualClock()) as one,
        open_documents(f"{database}?prefix={prefix}2", clock=ManualClock()) as other,
    ):
        await one.save([Change(key="k", body=b"1", pending_for=("shop",), pending_since=5)])
        await other.save([Change(key="l", body=b"2", pending_for=("shop",), pending_since=5)])
        for documents, key in ((one, "k"), (other, "l")):
            assert await documents.keys("") == (key,)
            assert [entry.key for entry in await documents.pending("shop", 6)] == [key]
        assert await one.load(["l"]) == {}


@pytest.mark.parametrize("seed", range(4))
async def test_a_list_goes_on_behind_a_key_that_is_missing(url: str, seed: int) -> None:
    """The server would leave out another key then. All keys that stay are listed, in order, once."""
    dice = Random(seed)  # noqa: S311 - the same each time
    names = sorted({f"entity/{dice.getrandbits(dice.choice((4, 8, 24))):x}" for _ in range(150)})
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key=name, body=b"1") for name in names])
        left, last, listed = set(names), "", list[str]()
        while page := await documents.keys("entity/", after=last, limit=dice.choice((1, 2, 7))):
            listed += page
            last = page[-1]
            gone = {name for name in left if name == last or (dice.random() < 0.1)}
            left -= gone
            there = await documents.load(list(gone))
            await documents.save([Change(key=name, body=None, expected=found.version) for name, found in there.items()])
        assert listed == sorted(set(listed))
        assert left <= set(listed)
        for after in ("entity/", "entity/8", "entity", "e", "zzz", "entity/zz"):
            expected = tuple(sorted(name for name in left if name > after))
            assert await documents.keys("entity/", after=after) == expected


async def test_a_missing_and_a_stopped_index_are_told(ravendb_server: str) -> None:
    """So the endpoint knows that it has no list."""
    own = f"{ravendb_server}/onceonly-{uuid4().hex[:12]}"
    await create(own)
    try:
        async with open_documents(own, clock=ManualClock()) as documents:
            assert await documents.why_unlisted() == ""
            path = documents._client.of_database(f"admin/indexes/disable?name={INDEX}")
            await documents._client.write("POST", path)
            assert "in state Disabled" in await documents.why_unlisted()
            await documents._client.write("DELETE", documents._client.of_database(f"indexes?name={INDEX}"))
            assert "does not exist" in await documents.why_unlisted()
            with pytest.raises(CommitFailed):
                await documents.pending("shop", 1)
    finally:
        remove_database(own)


# Documents of the application


def _write(name: str, body: bytes | None = b'{"total":1}', expected: str | None = "", collection: str = "") -> DocumentWrite:
    return DocumentWrite(address=DocumentAddress(collection, (name,)), body=body, expected=expected)


async def _read(documents: RavenDBDocuments, *names: str) -> dict[str, Document]:
    found = await documents.read("k", [DocumentAddress("", (name,)) for name in names])
    return {str(address.key[0]): each for address, each in found.items()}


async def test_documents_of_the_application_are_written_with_one_of_the_store(url: str) -> None:
    """New ones, replaced ones, and deleted ones; what is read has nothing of the server."""
    a, b, c = (f"receipts/{uuid4().hex}" for _ in range(3))
    async with open_documents(url, clock=ManualClock()) as documents:
        body = b'{"total":1.50,"big":123456789012345678901,"text":"\\u0001x"}'
        first = await documents.save_together(Change(key="k", body=b"{}"), [_write(a, body, collection="Receipts"), _write(b)])
        assert first == (await documents.load(["k"]))["k"].version
        found = await _read(documents, a, b, c)
        assert (found[a].body, found[b].body, c in found) == (body, b'{"total":1}', False)
        writes = [_write(a, b'{"total":2}', found[a].version), _write(b, None, found[b].version), _write(c, expected=None)]
        second = await documents.save_together(Change(key="k", body=b'{"a":1}', expected=first or ""), writes)
        assert second not in {first, None}
        found = await _read(documents, a, b, c)
        assert {name: each.body for name, each in found.items()} == {a: b'{"total":2}', c: b'{"total":1}'}
        assert (await documents.read("k", [DocumentAddress("Receipts", (a,))])).keys() == {DocumentAddress("Receipts", (a,))}


@pytest.mark.parametrize("stale", ["own", "new", "replaced", "deleted"])
async def test_one_that_was_changed_meanwhile_refuses_all(url: str, stale: str) -> None:
    """Nothing of the batch happens, wherever in it that document is."""
    names = {name: f"receipts/{uuid4().hex}" for name in ("new", "replaced", "deleted", "free")}
    async with open_documents(url, clock=ManualClock()) as documents:
        first = await documents.save_together(
            Change(key="k", body=b"1"), [_write(names["replaced"]), _write(names["deleted"]), _write(names["free"])]
        )
        found = await _read(documents, *names.values())
        versions = {name: found[names[name]].version for name in ("replaced", "deleted")}
        change = Change(key="k", body=b"2", expected=first or "")
        writes = {
            "free": _write(names["free"], b'{"total":2}', None),
            "new": _write(names["new"]),
            "replaced": _write(names["replaced"], b'{"total":2}', versions["replaced"]),
            "deleted": _write(names["deleted"], None, versions["deleted"]),
        }
        other = _write(names.get(stale, names["free"]), b'{"total":9}', None)
        meanwhile = Change(key="k", body=b"9", expected=first or "") if stale == "own" else Change(key="other", body=b"9")
        await documents.save_together(meanwhile, [] if stale == "own" else [other])
        before = await documents.load(["k"]), await _read(documents, *names.values())
        assert await documents.save_together(change, list(writes.values())) is None
        assert (await documents.load(["k"]), await _read(documents, *names.values())) == before


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_batch_that_is_cut_off_is_written_as_a_whole_or_not_at_all(
    url: str, moment: Literal["before", "after"]
) -> None:
    """And it is never said to have failed when it was written."""
    name = f"receipts/{uuid4().hex}"
    in_ravendb = InRavenDB()
    in_ravendb._url = url
    async with in_ravendb.open_documents() as subject:
        documents = await subject.cut(moment)
        assert isinstance(documents, RavenDBDocuments)
        with pytest.raises(OutcomeUnknown):
            await documents.save_together(Change(key="k", body=b"1"), [_write(name)])
        there = bool(await documents.load(["k"])), bool(await _read(documents, name))
        assert there == ((moment == "after",) * 2)


@pytest.mark.parametrize(
    "scenario",
    [
        application.test_a_document_is_written_with_the_entity,
        application.test_nothing_is_written_when_the_handler_fails,
        application.test_a_document_that_another_changed_after_it_was_read_makes_the_message_run_again,
        application.test_a_document_that_was_not_read_is_replaced,
    ],
)
async def test_handlers_write_documents_of_the_application(
    scenario: Callable[[], Awaitable[None]], ravendb_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What holds for them in memory holds here."""
    url = f"{ravendb_server}/onceonly-{uuid4().hex[:12]}"
    await create(url)
    try:
        async with open_documents(url, clock=ManualClock()) as documents:
            monkeypatch.setattr(entity_harness, "MemoryDocuments", lambda _: documents)
            await scenario()
            assert await documents.keys("entity/")
    finally:
        remove_database(url)


# Crashes of the server


@pytest.mark.timeout(400)  # the server starts three times, which takes up to half a minute beside other processes
async def test_what_was_acknowledged_survives_a_crash_of_the_server() -> None:
    """With its version, which no later write has; no batch is there in part, and a lost answer is never a failure."""
    with own_ravendb() as server:
        url = f"{server.url}/shop?timeout=30"
        await create(url)
        acknowledged = Acknowledged()
        async with open_documents(url, clock=ManualClock()) as documents:
            for kill in range(2):
                async with asyncio.timeout(120), asyncio.TaskGroup() as writers:
                    for number in range(4):
                        writers.create_task(_write_until_cut(documents, f"{kill}-{number}", acknowledged))
                    await acknowledged.more()
                    await asyncio.to_thread(server.stop, signal.SIGKILL)
                await asyncio.to_thread(server.start)
                await _check_all(documents, acknowledged.last)


class Acknowledged:
    """What the server has acknowledged: all versions, and for each name the count and the version of the last write."""

    def __init__(self) -> None:
        self.versions: set[str] = set()
        self.last: dict[str, tuple[int, str]] = {}
        self._wanted, self._reached = 0, asyncio.Event()

    def add(self, name: str, count: int, version: str) -> None:
        """Note a write."""
        assert version not in self.versions, "a version came again"
        self.versions.add(version)
        self.last[name] = (count, version)
        if len(self.versions) >= self._wanted:
            self._reached.set()

    async def more(self) -> None:
        """Wait for some more writes."""
        self._wanted = len(self.versions) + 60
        self._reached.clear()
        await self._reached.wait()


async def _write_until_cut(documents: RavenDBDocuments, name: str, acknowledged: Acknowledged) -> None:
    """Count up in a document of the store and one of the application."""
    count, version = 0, ""
    while True:
        count += 1
        body = b'{"count":%d}' % count
        try:
            answer = await documents.save_together(Change(key=name, body=body, expected=version), [_write(name, body, None)])
        except (CommitFailed, OutcomeUnknown):
            return
        assert answer, "nobody else writes this document"
        acknowledged.add(name, count, answer)
        version = answer


async def _check_all(documents: RavenDBDocuments, last: Mapping[str, tuple[int, str]]) -> None:
    """Check each document once the server has loaded its database."""
    found = await _loaded(documents, list(last))
    beside = await _read(documents, *last)
    for name, (count, version) in last.items():
        stored = found[name]
        assert stored.body == beside[name].body, "half a batch"
        assert stored.body in {b'{"count":%d}' % count, b'{"count":%d}' % (count + 1)}
        assert (stored.version == version) == (stored.body == b'{"count":%d}' % count)


async def _loaded(documents: RavenDBDocuments, keys: list[str]) -> Mapping[str, Document]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await documents.load(keys)
            except CommitFailed:
                await asyncio.sleep(0.1)
