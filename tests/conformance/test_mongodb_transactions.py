"""MongoDB writes documents of the application in one transaction with the store's, as far as a look-alike can tell."""

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp, encode
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, BulkWriteError, OperationFailure

from onceonly.adapters.mongodb import application
from onceonly.adapters.mongodb.documents import MongoDBDocuments, create, open_documents
from onceonly.adapters.mongodb.extended_json import NotJson, body_of, fields_of, with_widths
from onceonly.model.errors import CommitFailed, CommitRefused, LockTimeout, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.saves_together_suite import KEYS, Key, SavesTogetherSuite
from onceonly_conformance.suite import raises
from tests.conformance.document_subject import ServiceSubject
from tests.conformance.test_mongodb import WRITES
from tests.servers.mongodb import ReplicaSet, mongodb_replica_set

COMMIT = b"\x10commitTransaction\0"
"""How the command that commits a transaction looks on its way."""


@pytest.fixture
async def url(mongodb_transactions: ReplicaSet) -> AsyncIterator[str]:
    """Make a database of its own, and drop it at the end."""
    url = mongodb_transactions.url(f"t{uuid4().hex[:12]}", collection="onceonly")
    await create(url)
    yield url
    await drop(url)


async def drop(url: str) -> None:
    async with AsyncMongoClient(url.partition("&")[0]) as client:
        await client.drop_database(client.get_default_database())


class InTransactions:
    """A collection of a server with transactions, behind a prefix."""

    service: ClassVar[str] = "mongodb"

    @pytest.fixture(autouse=True)
    def _use(self, url: str) -> None:
        self._url = f"{url}&prefix=shop"

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a place of its own in the collection."""
        async with ServiceSubject.open(
            open_documents,
            self._url,
            missing=f"{self._url}&collection=missing",
            is_write=lambda data: any(write in data for write in (*WRITES, COMMIT)),
        ) as subject:
            yield subject


class TestMongoDBWithTransactions(InTransactions, DocumentsSuite):
    """Documents themselves."""

    many: ClassVar[int] = 600  # a request holds 500 at most
    lapse: ClassVar[int] = 250


class TestPendingInMongoDBWithTransactions(InTransactions, PendingListSuite):
    """The list of documents with unsent messages."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100


class TestSavedTogetherInMongoDB(InTransactions, SavesTogetherSuite):
    """Documents of the application, in collections of the same database."""

    rounds: ClassVar[int] = 8
    lapse: ClassVar[int] = 250
    keys: ClassVar[tuple[Key, ...]] = (*KEYS, (7,), (-1,), (2**63 - 1,))
    equal_versions: ClassVar[str] = "documents of the application have no version in MongoDB, so their content is it"
    cannot_hold: ClassVar[Mapping[str, str]] = {
        "integers beyond 64 bits": "BSON has no such integers",
        "unusual names": "MongoDB reserves names that begin with $",
    }

    def collections(self) -> Sequence[str]:
        """Name some, which are made by their first documents."""
        return ("orders", "Orders", "orders.archive")

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return the `_id`."""
        return {"_id": address.key[0]}


@pytest.fixture
async def documents(url: str) -> AsyncIterator[MongoDBDocuments]:
    async with open_documents(url, clock=ManualClock()) as opened:
        yield opened


def at(key: str | int, collection: str = "orders") -> DocumentAddress:
    return DocumentAddress(collection, (key,))


def write(key: str | int, body: bytes | None = b'{"a":1}', expected: str | None = None, **more: Any) -> DocumentWrite:
    return DocumentWrite(address=at(key), body=body, expected=expected, **more)


async def look(documents: MongoDBDocuments, *keys: str | int) -> dict[str | int, Document]:
    found = await documents.read("k", [at(key) for key in keys])
    return {address.key[0]: document for address, document in found.items()}


async def bodies(documents: MongoDBDocuments, *keys: str | int) -> dict[str | int, bytes]:
    """Return the documents without their `_id`s, after these were compared."""
    found = {}
    for key, document in (await look(documents, *keys)).items():
        fields = msgspec.json.decode(document.body, type=dict[str, msgspec.Raw])
        assert msgspec.json.decode(fields.pop("_id")) == key
        found[key] = msgspec.json.encode(fields)
    return found


async def own(documents: MongoDBDocuments, key: str = "k") -> bytes | None:
    found = (await documents.load([key])).get(key)
    return None if found is None else found.body


async def test_equal_content_is_the_same_version(documents: MongoDBDocuments) -> None:
    """A document that was changed and changed back is as it was read, so a write by that version is right. 1.0 is not 1."""
    await documents.save_together(Change(key="a", body=b"{}"), [write(1, b'{"a":1}')])
    read = (await look(documents, 1))[1]
    for number, body in enumerate((b'{"a":2}', b'{"a":1}')):
        await documents.save_together(Change(key=f"b{number}", body=b"{}"), [write(1, body)])
    assert await documents.save_together(Change(key="c", body=b"{}"), [write(1, b'{"a":1.0}', read.version)]) is not None
    assert await documents.save_together(Change(key="d", body=b"{}"), [write(1, b'{"a":3}', read.version)]) is None


@pytest.mark.slow
async def test_writes_that_race_add_up(url: str) -> None:
    """Four clients count in two documents of the application and one of the store, by what they read: no update is lost."""

    async def add(times: int) -> None:
        async with open_documents(url, clock=ManualClock()) as documents:
            done = 0
            while done < times:
                loaded = (await documents.load(["k"])).get("k")
                read = await look(documents, 1, 2)
                number = int(loaded.body) + 1 if loaded else 1
                body = msgspec.json.encode({"n": number})
                writes = [write(key, body, read[key].version if key in read else "") for key in (1, 2)]
                change = Change(key="k", body=b"%d" % number, expected=loaded.version if loaded else "")
                done += await documents.save_together(change, writes) is not None

    async with asyncio.timeout(60):
        await asyncio.gather(*(add(8) for _ in range(4)))
    async with open_documents(url, clock=ManualClock()) as documents:
        assert await own(documents) == b"32"
        assert await bodies(documents, 1, 2) == {1: b'{"n":32}', 2: b'{"n":32}'}


async def test_unread_documents_that_race_never_fail_for_their_versions(url: str) -> None:
    """Units of other entities replace the same documents at once, in any order: each begins again until it is through."""

    async def put(number: int) -> list[str | None]:
        async with open_documents(url, clock=ManualClock()) as documents:
            keys = [1, 2] if number % 2 else [2, 1]
            writes = [write(key, b'{"by":%d}' % number) for key in keys]
            return [await documents.save_together(Change(key=f"k{number}-{each}", body=b"{}"), writes) for each in range(5)]

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*map(put, range(3)), return_exceptions=True)
    assert all(isinstance(some, list) and None not in some for some in answers), answers
    async with open_documents(url, clock=ManualClock()) as documents:
        found = await bodies(documents, 1, 2)
        assert found[1] == found[2]


async def test_a_conflict_that_lasts_is_a_lock(documents: MongoDBDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has happened. Another program has such a transaction, or a process that died, until the server ends it."""
    monkeypatch.setattr(application, "FIRST_PAUSE_SECONDS", 0.0)
    await documents.save_together(Change(key="a", body=b"{}"), [write(1)])
    async with documents._client.start_session() as session:
        await session.start_transaction()
        orders = documents._client[documents._address.database]["orders"]
        await orders.update_one({"_id": 1}, {"$set": {"a": 2}}, session=session)
        async with raises(LockTimeout):
            await documents.save_together(Change(key="k", body=b"{}"), [write(1, b'{"a":3}')])
        await session.commit_transaction()
    assert await own(documents) is None
    assert await bodies(documents, 1) == {1: b'{"a":2}'}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("command", [b"\x02insert\0", b"\x02update\0", COMMIT])
async def test_what_is_cut_off_happens_once_or_not(url: str, moment: str, command: bytes) -> None:
    """A command before the commit: it did not happen. The commit: the driver sends it again, and it happened once."""
    missing = f"{url}missing"
    async with ServiceSubject.open(open_documents, url, missing=missing, is_write=lambda data: command in data) as subject:
        documents, reader = await subject.documents(), await subject.documents()
        assert isinstance(documents, MongoDBDocuments)
        assert isinstance(reader, MongoDBDocuments)
        await documents.save_together(Change(key="a", body=b"{}"), [write(1)])
        read = (await look(reader, 1))[1]
        cut = await subject.cut(moment)
        assert isinstance(cut, MongoDBDocuments)
        change, writes = Change(key="k", body=b"{}"), [write(1, b'{"a":2}', read.version), write(2, expected="")]
        if command == COMMIT:
            assert await cut.save_together(change, writes) == (await reader.load(["k"]))["k"].version
            assert await bodies(reader, 1, 2) == {1: b'{"a":2}', 2: b'{"a":1}'}
        else:
            async with raises(CommitFailed):
                await cut.save_together(change, writes)
            assert await own(reader) is None
            assert await bodies(reader, 1, 2) == {1: b'{"a":1}'}
        assert await documents.save_together(Change(key="b", body=b"{}"), [write(1)]) is not None  # nothing is held


async def test_a_commit_without_any_answer_is_unknown(documents: MongoDBDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its error is, and the whole is not sent again."""
    sent: list[str] = []

    async def lost(_: Any, command: str) -> None:
        sent.append(command)
        raise errors[0]

    monkeypatch.setattr("pymongo.asynchronous.client_session.AsyncClientSession._finish_transaction_with_retry", lost)
    labels = {"ok": 0, "code": 251, "errorLabels": ["TransientTransactionError"]}
    for error in (AutoReconnect("lost"), OperationFailure("no such transaction", 251, labels), RuntimeError("loop")):
        errors = [error]
        async with raises(OutcomeUnknown):
            await documents.save_together(Change(key="k", body=b"{}"), [write(1)])
    assert sent.count("commitTransaction") == 3


async def test_another_unique_index_is_the_messages_own_fault(documents: MongoDBDocuments) -> None:
    """No version changes that, so the message is to blame; and the same for what a collection does not take."""
    database = documents._client[documents._address.database]
    await database["orders"].create_index("mail", unique=True)
    await documents.save_together(Change(key="a", body=b"{}"), [write(1, b'{"mail":"a"}')])
    for expected in (None, ""):
        async with raises(CommitRefused):
            await documents.save_together(Change(key="k", body=b"{}"), [write(2, b'{"mail":"a"}', expected)])
    assert await own(documents) is None
    assert await bodies(documents, 2) == {}


def test_refusals_of_one_write_are_told_apart() -> None:
    """By the code, and by the index of a duplicate key; a server that names no index says it in its text."""
    unread, new = write(1), write(2, expected="")

    def refusal(wrong: dict[str, Any], index: int = 1) -> bool:
        return application._refusal(BulkWriteError({"writeErrors": [{"index": index, **wrong}]}), [unread, new])

    assert not refusal({"code": 11000, "keyPattern": {"_id": 1}})
    assert not refusal({"code": 11000, "errmsg": "E11000 duplicate key error collection: t.b index: _id_ dup key: { _id: 1 }"})
    for wrong, index, kind in (
        ({"code": 11000, "keyPattern": {"_id": 1}}, 0, application._LostRace),
        ({"code": 112}, 1, application._LostRace),
        ({"code": 11000, "keyPattern": {"mail": 1}}, 1, CommitRefused),
        ({"code": 11000, "errmsg": "index: mail_1 dup key"}, 1, CommitRefused),
        ({"code": 121}, 1, CommitRefused),
        ({"code": 1}, 1, CommitFailed),
    ):
        with pytest.raises(kind) as raised:
            refusal(wrong, index)
        assert raised.type is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AutoReconnect("lost"), CommitFailed),
        (OperationFailure("does not validate", 121, {"ok": 0}), CommitRefused),
        (OperationFailure("what", 1, {"ok": 0}), CommitFailed),
        (OperationFailure("conflict", 112, {"ok": 0, "errorLabels": ["TransientTransactionError"]}), application._LostRace),
    ],
)
def test_every_error_before_the_commit_is_definite(error: Exception, kind: type[Exception]) -> None:
    assert type(application._before_commit(error)) is kind


async def test_a_standalone_server_says_why_not(mongodb_server: str) -> None:
    async with open_documents(f"{mongodb_server}/onceonly", clock=ManualClock()) as documents:
        assert "standalone" in await documents.why_not_together()


async def test_places_of_one_collection_are_apart(url: str) -> None:
    """With prefixes of which one begins the other, and without one: keys, lists and what is pending."""
    places = [url, f"{url}&prefix=a", f"{url}&prefix=ab"]
    keys = ["a", "b k", "köln"]
    for number, place in enumerate(places):
        async with open_documents(place, clock=ManualClock()) as documents:
            changes = [Change(key=key, body=b"%d" % number, pending_for=("shop",), pending_since=1) for key in keys]
            assert None not in await documents.save(changes)
    for number, place in enumerate(places):
        async with open_documents(place, clock=ManualClock()) as documents:
            assert sorted(await documents.keys("")) == sorted(keys)
            assert [*await documents.keys("b"), *await documents.keys("", after="b k")] == ["b k", "köln"]
            assert {each.body for each in (await documents.load(keys)).values()} == {b"%d" % number}
            assert sorted(each.key for each in await documents.pending("shop", 2)) == sorted(keys)
            assert documents.limits.key == 1024 - [0, 2, 3][number]


# What a document can be


TYPES = {
    "date": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "late": DatetimeMS(10**15),
    "oid": ObjectId("6b0d0c387e85297d35354d54"),
    "decimal": Decimal128("1.50"),
    "bytes": b"\0\xff",
    "uuid": Binary(b"x" * 16, 4),
    "regex": Regex("a", "i"),
    "stamp": Timestamp(1, 2),
    "code": Code("x", {"a": 1}),
    "ref": DBRef("orders", ObjectId("6b0d0c387e85297d35354d54")),
    "most": MaxKey(),
    "nan": float("inf"),
    "long": Int64(5),
    "int": 5,
    "float": 1.0,
    "minus": -0.0,
    "none": None,
    "yes": True,
    "deep": [{"a.b": [Int64(1), 2, 3.5]}, "köln \x7f\n"],
}


def test_every_type_comes_back_as_it_was() -> None:
    """Through JSON, and the documented form of a few of them."""
    raw = encode({"_id": 1, **TYPES})
    body, fields = body_of(raw)
    assert encode({"_id": 1, **with_widths(fields_of(body), fields)}) == raw
    shown = msgspec.json.decode(body)
    assert (shown["date"], shown["decimal"]) == ({"$date": "2026-01-01T12:00:00Z"}, {"$numberDecimal": "1.50"})
    assert (shown["oid"], shown["long"]) == ({"$oid": "6b0d0c387e85297d35354d54"}, 5)


async def test_a_changed_document_keeps_its_other_types(documents: MongoDBDocuments) -> None:
    """Also the width of its integers, where it was read."""
    orders = documents._client[documents._address.database]["orders"]
    stored = {name: value for name, value in TYPES.items() if name != "late"}  # which this server cannot read
    await orders.insert_one({"_id": 1, **stored})
    read = (await look(documents, 1))[1]
    changed = {**msgspec.json.decode(read.body), "none": "new"}
    assert await documents.save_together(Change(key="k", body=b"{}"), [write(1, msgspec.json.encode(changed), read.version)])
    (found,) = await documents._application._raw("orders").find({"_id": 1}).to_list()
    assert bytes(found.raw) == encode({"_id": 1, **stored, "none": "new"})


@pytest.mark.parametrize("fields", [{"$a": 1}, {"a": {"$date": "never"}}, {"a": [{"$oid": "x"}]}])
def test_a_stored_document_that_json_cannot_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(NotJson, match="has a field"):
        body_of(encode({"_id": 1, **fields}))


def test_a_stored_document_whose_types_would_be_lost_is_refused() -> None:
    """A symbol, which MongoDB deprecated: the driver reads it as text."""
    symbol = b"\x0ea\0\x02\0\0\0x\0"
    with pytest.raises(NotJson, match="types would be lost"):
        body_of((len(symbol) + 5).to_bytes(4, "little") + symbol + b"\0")


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (write(1, b'{"a":9223372036854775808}'), "has the integer 9223372036854775808"),
        (write(1, b'{"a":{"$set":1}}'), "has the field '$set'"),
        (write(1, b'{"$date":"x"}'), "not Extended JSON"),
        (write(1, b'{"$date":"2026-01-01T00:00:00Z"}'), "not an object with fields"),
        (write(1, b'{"a\\u0000":1}'), "NUL"),
        (write(1, b'{"_id":2}'), "its field `_id` is 2, and its key is 1"),
        (write(1, b'{"_id":"1"}'), "its field `_id` is '1', and its key is 1"),
        (write(1, b'{"_id":1.0}'), "its field `_id` is 1.0, and its key is 1"),
        (write(1, b'{"_id":true}'), "its field `_id` is True, and its key is 1"),
        (write("1", b'{"_id":1}'), "its field `_id` is 1, and its key is '1'"),
        (write("a", b'{"_id":null}'), "its field `_id` is None, and its key is 'a'"),
        (write("a", b'{"_id":{"$oid":"6b0d0c387e85297d35354d54"}}'), "its field `_id` is ObjectId("),
        (write(1, nested(102)), "more than 100 levels"),
        (write(1, b'{"a":"%s"}' % (b"x" * 2**24)), "the limit is 16,777,216"),
        (write(1, b'{"a":"\\ud800"}'), "is not JSON"),
        (write(2**63), "integer of more than 64 bits"),
        (DocumentWrite(address=DocumentAddress("", (1,)), body=b"{}"), "name its collection"),
        (DocumentWrite(address=DocumentAddress("onceonly", (1,)), body=b"{}"), "the store's own documents"),
        (DocumentWrite(address=DocumentAddress("system.x", (1,)), body=b"{}"), "no collection with the name"),
        (DocumentWrite(address=DocumentAddress("x" * 255, (1,)), body=b"{}"), "the limit of MongoDB is 235"),
        (DocumentWrite(address=DocumentAddress("orders", (1, 2)), body=b"{}"), "several parts"),
    ],
)
async def test_what_mongodb_never_takes_is_found_before(documents: MongoDBDocuments, wrong: DocumentWrite, reason: str) -> None:
    """It is the same when it is sent all the same: nothing is written."""
    assert reason in documents.problem_of("k", wrong)
    async with raises(CommitRefused):
        await documents.save_together(Change(key="k", body=b"{}"), [wrong])
    assert await own(documents) is None


@pytest.mark.slow
async def test_what_mongodb_takes_has_no_problem(documents: MongoDBDocuments) -> None:
    """And is taken: the deepest and the largest document, and odd names."""
    most = b'{"a":"%s"}' % (b"x" * (application.MOST_BYTES - len(encode({"_id": 1, "a": ""}))))
    odd = b'{"":1,"a.b":2,"a$":3,"version":4,"body":5}'
    for number, body in enumerate((nested(99), most, odd, b"{}")):
        assert documents.problem_of("k", write(1, body)) == ""
        assert await documents.save_together(Change(key=f"k{number}", body=b"{}"), [write(1, body)]) is not None
        assert await bodies(documents, 1) == {1: body}


async def test_documents_of_others_are_not_read_from_the_stores_collection(documents: MongoDBDocuments) -> None:
    for collection in ("", "onceonly"):
        async with raises(CommitRefused):
            await documents.read("k", [DocumentAddress(collection, (1,))])


async def test_a_change_stream_has_each_committed_write_once(url: str, documents: MongoDBDocuments) -> None:
    """And none of a transaction that was refused. Who reads changes instead of messages relies on it."""
    async with AsyncMongoClient(url.partition("&")[0]) as client:
        orders = client.get_default_database()["orders"]
        async with await orders.watch(max_await_time_ms=100) as stream:
            assert await documents.save_together(Change(key="a", body=b"{}"), [write(1), write(2)]) is not None
            refused = [write(3), write(1, b'{"a":2}', "another version")]
            assert await documents.save_together(Change(key="b", body=b"{}"), refused) is None
            assert await documents.save_together(Change(key="c", body=b"{}"), [write(1, b'{"a":4}'), write(4)]) is not None
            seen: list[int] = []
            async with asyncio.timeout(60):
                async for change in stream:
                    seen.append(change["documentKey"]["_id"])
                    if seen[-1] == 4:
                        break
            assert sorted(seen) == [1, 1, 2, 4]
            assert await stream.try_next() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the driver leaves them to the garbage collector
async def test_what_is_acknowledged_is_whole_after_a_crash_of_the_server() -> None:
    """SIGKILL in the middle of commits, several times: acknowledged writes are there, and no write is there in part."""
    with mongodb_replica_set(synced=True) as server:
        url = server.url("crash", timeout="2")
        await create(url)
        for number in range(4):
            written = await _until_killed(server, url, number)
            async with open_documents(url, clock=ManualClock()) as documents:
                await _check_whole(documents, number, written)
    gc.collect()


CLIENTS, BEFORE_A_KILL = 3, 30


async def _until_killed(server: ReplicaSet, url: str, run: int) -> list[dict[int, bool]]:
    """Write with several clients until the server is killed, and start it again; gives what each wrote, and what is certain."""
    written: list[dict[int, bool]] = [{} for _ in range(CLIENTS)]
    enough, killed = asyncio.Event(), asyncio.Event()

    async def keep_writing(client: int) -> None:
        async with open_documents(url, clock=ManualClock()) as documents:
            for number in count():
                if killed.is_set():
                    return
                name = f"{run}-{client}-{number}"
                written[client][number] = False
                with suppress(CommitFailed, OutcomeUnknown):
                    assert await documents.save_together(Change(key=name, body=b"{}"), _three(name)) is not None
                    written[client][number] = True
                if sum(sum(each.values()) for each in written) >= BEFORE_A_KILL:
                    enough.set()

    writing = asyncio.gather(*map(keep_writing, range(CLIENTS)))
    async with asyncio.timeout(120):
        await enough.wait()
        server.kill()
        killed.set()
        await writing
    await asyncio.to_thread(server.start)
    return written


def _three(name: str) -> Sequence[DocumentWrite]:
    return [DocumentWrite(address=DocumentAddress(f"c{each}", (name,)), body=b'{"a":1}', expected="") for each in range(3)]


async def _check_whole(documents: MongoDBDocuments, run: int, written: Sequence[dict[int, bool]]) -> None:
    for client, numbers in enumerate(written):
        for number, is_certain in numbers.items():
            name = f"{run}-{client}-{number}"
            there = len(await documents.load([name]))
            found = await documents.read("", [each.address for each in _three(name)])
            assert len(found) == 3 * there
            assert there or not is_certain
