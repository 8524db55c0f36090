"""What RavenDB's answers mean: only what it said for sure is definite, and each write is sent once."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceonly.adapters.ravendb.documents import RavenDBDocuments, create, open_documents
from onceonly.model.errors import CommitFailed, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite
from onceonly_conformance.clock import ManualClock
from tests.adapters.ravendb.scripted import Reply, Request, opened, scripted, url_of
from tests.servers.available import free_port

CONFLICT = "Raven.Client.Exceptions.ConcurrencyException"
MISSING = "Raven.Client.Exceptions.Database.DatabaseDoesNotExistException"
WRITES: dict[str, Callable[[RavenDBDocuments], Awaitable[object]]] = {
    "PUT": lambda documents: documents.save([Change(key="k", body=b"{}")]),
    "DELETE": lambda documents: documents.save([Change(key="k", body=None, expected="A:1-x")]),
    "POST": lambda documents: documents.save_together(Change(key="k", body=b"{}"), [_write("receipt")]),
}
READS: tuple[Callable[[RavenDBDocuments], Awaitable[object]], ...] = (
    lambda documents: documents.load(["k"]),
    lambda documents: documents.keys("k"),
    lambda documents: documents.pending("shop", 1),
    lambda documents: documents.why_unlisted(),
    lambda documents: documents.check(),
)


def _write(name: str, **values: Any) -> DocumentWrite:
    return DocumentWrite(address=DocumentAddress("", (name,)), body=b"{}", **{"expected": "", **values})


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply.error(500, MISSING), CommitFailed),
        (Reply.error(503, "Raven.Client.Exceptions.Cluster.NodeIsPassiveException"), CommitFailed),
        (Reply.error(403, "Raven.Client.Exceptions.Security.AuthorizationException"), CommitFailed),
        (Reply(401), CommitFailed),
        (Reply(413), CommitFailed),
        (Reply(404), OutcomeUnknown),
        (Reply(502, None), OutcomeUnknown),
        (Reply.error(409, "Raven.Client.Exceptions.Documents.DocumentConflictException"), OutcomeUnknown),
        (Reply.error(500, "System.TimeoutException"), OutcomeUnknown),
        (Reply.error(503, "Raven.Client.Exceptions.Database.DatabaseDisabledException"), OutcomeUnknown),
        (Reply(307, headers={"Location": "/elsewhere"}), OutcomeUnknown),
        (Reply(500, "not an object"), OutcomeUnknown),
        (None, OutcomeUnknown),
    ],
)
async def test_only_what_the_server_said_for_sure_is_definite(method: str, reply: Reply | None, kind: type[Exception]) -> None:
    """And a write is sent once, whatever is answered, also when the connection is lost."""
    async with opened(lambda _: reply) as (documents, asked):
        with pytest.raises(kind):
            await WRITES[method](documents)
        assert [request.method for request in asked] == [method]


@pytest.mark.parametrize("method", WRITES)
async def test_a_write_is_not_sent_again_when_its_connection_closes(method: str) -> None:
    """Aiohttp sends some requests again on its own when a connection that was used before closes."""

    def answers(request: Request) -> Reply | None:
        return Reply(404) if request.method == "GET" else None

    async with opened(answers) as (documents, asked):
        assert "does not exist" in await documents.why_unlisted()
        with pytest.raises(OutcomeUnknown):
            await WRITES[method](documents)
    assert [request.method for request in asked] == ["GET", method]


@pytest.mark.parametrize("reply", [Reply.error(500, MISSING), Reply(502), Reply(200, {"Results": 3}), Reply(200), None])
@pytest.mark.parametrize("read", READS)
async def test_a_read_that_failed_has_changed_nothing(
    reply: Reply | None, read: Callable[[RavenDBDocuments], Awaitable[object]]
) -> None:
    """It is CommitFailed, or at start what a person must change."""
    async with opened(lambda _: reply) as (documents, _):
        with pytest.raises((CommitFailed, SetupError)):
            await read(documents)


@pytest.mark.parametrize("method", WRITES)
async def test_a_document_of_another_version_is_an_answer(method: str) -> None:
    """The condition is sent with the write, and nothing else decides."""
    async with opened(lambda _: Reply.error(409, CONFLICT)) as (documents, asked):
        assert await WRITES[method](documents) in (None, (None,))
    conditions = {"PUT": '""', "DELETE": '"A:1-x"', "POST": None}
    assert asked[0].condition == conditions[method]
    if method == "POST":
        assert [command["ChangeVector"] for command in asked[0].content["Commands"]] == ["", ""]


async def test_a_write_without_its_change_vector_is_unknown() -> None:
    """It was applied, but nothing can be written on top of it."""
    for method in ("PUT", "POST"):
        async with (
            scripted(lambda _: Reply(201, {})) as (port, _),
            open_documents(url_of(port), clock=ManualClock()) as documents,
        ):
            with pytest.raises(OutcomeUnknown):
                await WRITES[method](documents)


async def test_a_server_that_is_away_is_a_definite_failure() -> None:
    """Nothing was sent."""
    async with open_documents(url_of(free_port(), timeout=1), clock=ManualClock()) as documents:
        for call in (*WRITES.values(), *READS):
            with pytest.raises(CommitFailed):
                await call(documents)


async def test_a_server_that_is_silent_leaves_a_write_unknown() -> None:
    """After the seconds of the URL. A read is given up."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = url_of(silent.getsockname()[1], timeout=0.2)
        async with open_documents(url, clock=ManualClock()) as documents:
            for write in WRITES.values():
                with pytest.raises(OutcomeUnknown):
                    await write(documents)
            with pytest.raises(CommitFailed):
                await documents.load(["k"])


def _of_nodes(*tags: str, expiration: Reply) -> Callable[[Request], Reply]:
    def answers(request: Request) -> Reply:
        if request.path == "/topology":
            return Reply(200, {"Nodes": [{"ClusterTag": tag, "Url": "http://x"} for tag in tags], "Etag": 1})
        return expiration

    return answers


async def test_a_database_on_several_nodes_is_refused() -> None:
    """Each of them accepts writes by itself."""
    on = Reply(200, {"Disabled": False})
    async with opened(_of_nodes("A", "B", "C", expiration=on)) as (documents, _):
        with pytest.raises(SetupError) as refused:
            await documents.check()
        assert "is on 3 nodes (A, B, C)" in str(refused.value)
    async with opened(_of_nodes("A", expiration=on)) as (documents, _):
        assert await documents.check() == ()


@pytest.mark.parametrize("expiration", [Reply(404), Reply(200, {"Disabled": True})])
async def test_expired_documents_that_stay_are_warned_of(expiration: Reply) -> None:
    """Where the expiration of the database was never turned on, or is off."""
    async with opened(_of_nodes("A", expiration=expiration)) as (documents, _):
        assert ["expired" in warning for warning in await documents.check()] == [True]


@pytest.mark.parametrize(("version", "reason"), [("", "not a RavenDB server"), ("3.5.0", "is RavenDB 3.5.0")])
async def test_another_server_is_refused(version: str, reason: str) -> None:
    """By its version, when the endpoint starts and when its place is created."""
    async with scripted(lambda _: Reply(200, {"Disabled": False}), version=version) as (port, asked):
        with pytest.raises(SetupError) as refused:
            await create(url_of(port))
        assert reason in str(refused.value)
        async with open_documents(url_of(port), clock=ManualClock()) as documents:
            with pytest.raises(SetupError):
                await documents.check()
        assert {request.method for request in asked} == {"GET"}


async def test_a_client_without_rights_is_told_so() -> None:
    async with scripted(lambda _: Reply.error(403, "Raven.Client.Exceptions.Security.AuthorizationException")) as (port, _):
        with pytest.raises(SetupError) as refused:
            await create(url_of(port))
        assert "check certfile" in str(refused.value)


async def test_an_index_that_lags_fails_the_read() -> None:
    """Entries may be missing in it; the reader comes again."""
    async with opened(lambda _: Reply(200, {"Results": [], "IsStale": True}), timeout=4) as (documents, asked):
        with pytest.raises(CommitFailed):
            await documents.pending("shop", 1)
    assert asked[0].content["WaitForNonStaleResultsTimeout"] == "00:00:02.000"


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        ({"State": "Error", "Status": "Running"}, "in state Error"),
        ({"State": "Normal", "Status": "Paused"}, "in state Paused"),
        ({"State": "Normal", "Status": "Running"}, ""),
    ],
)
async def test_an_index_that_takes_in_nothing_is_no_list(stats: dict[str, str], reason: str) -> None:
    async with opened(lambda _: Reply(200, {"Results": [stats]})) as (documents, _):
        found = await documents.why_unlisted()
    assert reason in found
    assert bool(reason) == bool(found)


async def test_control_characters_that_the_server_does_not_escape_are_read() -> None:
    """RavenDB 4.1 gives such answers; they are not JSON."""
    raw = b'{"Results":[{"body":{"a":"x\x01\\n\x1f"},"@metadata":{"@id":"onceonly/k","@change-vector":"A:1-x"}}]}'

    async with opened(lambda _: Reply(200, raw)) as (documents, _):
        assert (await documents.load(["k"]))["k"].body == b'{"a":"x\\u0001\\n\\u001f"}'


async def test_a_foreign_document_is_named() -> None:
    """It is below the prefix, and without a body."""
    found = {"Name": "x", "@metadata": {"@id": "onceonly/k", "@change-vector": "A:1-x"}}
    async with opened(lambda _: Reply(200, {"Results": [found]})) as (documents, _):
        with pytest.raises(CommitFailed) as failed:
            await documents.load(["k"])
    assert "'onceonly/k' is not a document of onceonly" in str(failed.value)
