"""MongoDB keeps every promise of documents and of what is built on them, as far as an emulator that stands alone can tell."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import ClassVar
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteError,
    WTimeoutError,
)

from onceonly.adapters.mongodb import documents as adapter
from onceonly.adapters.mongodb.address import read_address
from onceonly.adapters.mongodb.client import translated
from onceonly.adapters.mongodb.documents import MongoDBDocuments, create, open_documents
from onceonly.model.errors import CommitFailed, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentProjectionSuite, DocumentTokenSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.suite import raises
from tests.conformance.document_subject import ServiceSubject
from tests.servers.available import free_port

WRITES = (b"\x02insert\0", b"\x02update\0", b"\x02delete\0")
"""How the commands that write look on their way."""


@pytest.fixture
async def url(mongodb_server: str) -> str:
    """Make a collection of its own."""
    url = f"{mongodb_server}/onceonly?collection=t{uuid4().hex[:12]}"
    await create(url)
    return url


class InMongoDB:
    """A collection of the emulator."""

    service: ClassVar[str] = "mongodb"

    @pytest.fixture(autouse=True)
    def _use(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a collection of its own."""
        async with ServiceSubject.open(
            open_documents,
            self._url,
            missing=f"{self._url}missing",
            is_write=lambda data: any(write in data for write in WRITES),
        ) as subject:
            yield subject


class TestMongoDB(InMongoDB, DocumentsSuite):
    """Documents themselves."""

    many: ClassVar[int] = 600  # a request holds 500 at most
    lapse: ClassVar[int] = 250  # the emulator removes nothing within seconds


class TestPendingInMongoDB(InMongoDB, PendingListSuite):
    """The list of documents with unsent messages."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100


class TestProjectionsInMongoDB(InMongoDB, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInMongoDB(InMongoDB, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInMongoDB(InMongoDB, DocumentTokenSuite):
    """The tokens for every service, here."""


async def test_a_json_body_can_be_queried(url: str) -> None:
    """It is kept as fields, beside its version and the date of its expiry."""
    async with open_documents(url, clock=ManualClock()) as documents:
        expires = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
        change = Change(key="order/17", body=b'{"state":{"total":17}}', expires=expires)
        (version,) = await documents.save([change])
        found = await documents._collection.find_one({"body.state.total": 17})
        assert found is not None
        assert (found["_id"], found["version"]) == ("order/17", version)
        assert found["expires"] == datetime(2100, 1, 1, tzinfo=UTC)


async def test_creating_again_changes_nothing(url: str) -> None:
    """The documents stay."""
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key="k", body=b"1")])
        await create(url)
        assert (await documents.load(["k"]))["k"].body == b"1"


async def test_a_standalone_server_is_warned_of(url: str) -> None:
    """So is a missing index for expiry, and nothing else."""
    async with open_documents(url, clock=ManualClock()) as documents:
        assert ["standalone" in warning for warning in await documents.check()] == [True]
    bare = f"{url}bare"
    async with AsyncMongoClient(url.partition("?")[0]) as client:
        await client["onceonly"].create_collection(bare.partition("=")[2])
    async with open_documents(bare, clock=ManualClock()) as documents:
        assert ["standalone" in warning for warning in await documents.check()] == [True, False]


async def test_a_collection_sharded_by_something_else_is_refused(url: str) -> None:
    """There each shard would have its own document of one key; sharded by it, or not at all, it is fine."""
    name = f"onceonly.{url.partition('=')[2]}"
    async with open_documents(url, clock=ManualClock()) as documents:
        await documents._refuse_sharding()
        told = documents._client["config"]["collections"]
        await told.insert_one({"_id": name, "key": {"_id": "hashed"}})
        await documents._refuse_sharding()
        await told.replace_one({"_id": name}, {"_id": name, "key": {"customer": 1}})
        async with raises(SetupError):
            await documents._refuse_sharding()


async def test_writes_are_safe_and_reads_of_a_replica_set_current(url: str) -> None:
    """Each command says so: a journaled majority for writes; for a read, which names one document, a linearizable one."""
    seen: list[bytes] = []

    def record(data: bytes) -> bool:
        seen.append(data)
        return False

    missing = f"{url}missing"
    async with ServiceSubject.open(open_documents, url, missing=missing, is_write=record) as subject:
        documents = await subject.cut("after")
        assert isinstance(documents, MongoDBDocuments)
        documents._hello = {"setName": "rs0"}
        keys = [f"k{number}" for number in range(3)]
        versions = await documents.save([Change(key=key, body=b"1") for key in keys])
        (again,) = await documents.save([Change(key="k0", body=b"2", expected=versions[0] or "")])
        await documents.save([Change(key="k1", body=None, expected=versions[1] or "")])
        assert {key: each.version for key, each in (await documents.load(keys)).items()} == {"k0": again, "k2": versions[2]}
    said = b"".join(seen)
    for write in WRITES:
        command = said[said.index(write) :]
        assert b"majority" in command[: command.index(b"$db")]
        assert b"\x08j\0\x01" in command[: command.index(b"$db")]
    finds = said.split(b"\x02find\0")[1:]
    assert len(finds) >= len(keys)
    assert all(b"linearizable" in part for part in finds)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the driver leaves them to the garbage collector
async def test_a_server_that_is_away_is_a_definite_failure() -> None:
    """Nothing was sent."""
    away = f"mongodb://127.0.0.1:{free_port()}/shop?timeout=0.2"
    async with open_documents(away, clock=ManualClock()) as documents:
        async with raises(CommitFailed):
            await documents.save([Change(key="k", body=b"1"), Change(key="l", body=b"1", expected="v")])
        async with raises(CommitFailed):
            await documents.load(["k"])
        async with raises(CommitFailed):
            await documents.check()
    del documents
    gc.collect()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (AutoReconnect("lost"), OutcomeUnknown),
        (ServerSelectionTimeoutError("nobody"), CommitFailed),
        (NotPrimaryError("moved", {"ok": 0, "code": 10107}), CommitFailed),
        (NotPrimaryError("moved", {"ok": 1, "writeConcernError": {"code": 10107}, "code": 10107}), OutcomeUnknown),
        (NotPrimaryError("stepped down meanwhile", {"ok": 0, "code": 11602}), OutcomeUnknown),
        (OperationFailure("no right", 13, {"ok": 0, "code": 13}), CommitFailed),
        (OperationFailure("what", 1, {"ok": 0, "code": 1}), OutcomeUnknown),
        (WTimeoutError("not confirmed", 64, {"ok": 1, "code": 64}), OutcomeUnknown),
        (WriteError("does not validate", 121, {"code": 121}), CommitFailed),
        (WriteError("what", 8, {"code": 8}), OutcomeUnknown),
    ],
)
def test_only_what_the_server_said_for_sure_is_definite(error: Exception, kind: type[Exception]) -> None:
    """Everything else is OutcomeUnknown; but a read that failed has changed nothing."""
    assert type(translated(error)) is kind
    assert type(translated(error, reads=True)) is CommitFailed


def test_many_inserts_are_unknown_when_their_majority_is_not_confirmed() -> None:
    """Also those without an error of their own; otherwise each has its own answer."""
    duplicate = {"index": 1, "code": 11000}
    unconfirmed = BulkWriteError({"writeErrors": [duplicate], "writeConcernErrors": [{"code": 64}]})
    with pytest.raises(OutcomeUnknown):
        adapter._answers(unconfirmed, ["a", "b"])
    assert adapter._answers(BulkWriteError({"writeErrors": [duplicate]}), ["a", "b"]) == ["a", None]


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://h",
        "mongodb:///shop",
        "mongodb://h/shop?w=1",
        "mongodb://h/shop?retryWrites=true",
        "mongodb://h/shop?readPreference=secondary",
        "mongodb://h/shop?collection=$x",
        "mongodb://h/shop?timeout=x",
        "mongodb://h:x/shop",
    ],
)
async def test_a_wrong_url_is_a_setup_error(url: str) -> None:
    """Also one that asks for less than safe writes and current reads."""
    async with raises(SetupError):
        await create(url)


def test_a_collection_where_keys_are_not_exact_is_refused() -> None:
    """By its collation, and one that drops documents by itself."""
    address = read_address("mongodb://h/shop")
    adapter._refuse({"collation": {"locale": "simple"}}, address)
    for options in ({"collation": {"locale": "en"}}, {"capped": True}, {"viewOn": "x"}):
        with pytest.raises(SetupError):
            adapter._refuse(options, address)
