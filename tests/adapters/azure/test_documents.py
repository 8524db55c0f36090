"""Documents in Azure storage: what its answers mean, how large documents are cut up, and how few requests it takes."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import NamedTuple
from urllib.parse import quote
from uuid import uuid4

import pytest

from onceonly.adapters.azure.blob import documents as azure_blob
from onceonly.adapters.azure.blob.artifacts import open_artifacts
from onceonly.adapters.azure.blob.client import open_container
from onceonly.adapters.azure.table import documents as azure_table
from onceonly.adapters.azure.table.client import open_table
from onceonly.adapters.azure.table.documents import _CHUNK, LIMITS, AzureTableDocuments, _operation, _place
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, RetryableError, SetupError
from onceonly.ports.documents import Change, Documents
from onceonly.runtime.environment import SystemClock
from onceonly_conformance.documents_subject import Moment
from tests.servers.available import free_port
from tests.servers.azurite import ACCOUNT, Azurite
from tests.servers.cutting_http import Request, cutting_http

SERVICES = {"table": azure_table, "blob": azure_blob}


class Place(NamedTuple):
    """Documents, and the URL of their place."""

    documents: Documents
    url: str


@asynccontextmanager
async def opened(emulator: Azurite, service: str, through: str = "") -> AsyncIterator[Place]:
    """Make a new place and open it."""
    path = f"onceonly{uuid4().hex[:12]}"
    await SERVICES[service].create(emulator.url(service, path))
    url = emulator.url(service, path, through=through)
    async with SERVICES[service].open_documents(url, clock=SystemClock()) as documents:
        yield Place(documents, url)


@asynccontextmanager
async def answering(status: str, code: str) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve HTTP, always with this answer; gives the address, and the first lines of the requests."""
    asked: list[bytes] = []
    body = b'{"odata.error":{"code":"%s","message":{"lang":"en","value":"no"}}}' % code.encode()
    head = f"HTTP/1.1 {status} No\r\nx-ms-error-code: {code}\r\nContent-Type: application/json\r\nConnection: close\r\n"

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        asked.append(await reader.readline())
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        await reader.readexactly(next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0))
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@asynccontextmanager
async def at(address: str, service: str) -> AsyncIterator[Documents]:
    """Open documents at an address that is no emulator."""
    url = f"azure-{service}://:c2VjcmV0@{ACCOUNT}/orders?endpoint={quote(f'{address}/{ACCOUNT}', safe='')}"
    async with SERVICES[service].open_documents(url, clock=SystemClock()) as documents:
        yield documents


MOMENTS: tuple[Moment, ...] = ("before", "after")
BODIES = {"insert": b"1", "replace": b"1", "delete": None}
EXPECTED = {"table": f"{'0' * 32} W/\"datetime'2026'\"", "blob": '"0x8D"'}


@pytest.mark.parametrize("service", ["table", "blob"])
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("503", "ServerBusy", OutcomeUnknown),
        ("429", "TooManyRequests", OutcomeUnknown),
        ("500", "OperationTimedOut", OutcomeUnknown),
        ("500", "InternalError", OutcomeUnknown),
        ("400", "SomethingNew", OutcomeUnknown),
        ("403", "AuthenticationFailed", CommitFailed),
        ("403", "AuthorizationPermissionMismatch", CommitFailed),
        ("413", "RequestBodyTooLarge", CommitRefused),
    ],
)
async def test_an_answer_is_definite_only_when_it_is_known_to_be(
    service: str, status: str, code: str, kind: type[Exception]
) -> None:
    """And no write is sent twice, whatever the answer."""
    async with answering(status, code) as (address, asked), at(address, service) as documents:
        for number, (name, body) in enumerate(BODIES.items(), 1):
            expected = "" if name == "insert" else EXPECTED[service]
            with pytest.raises(RetryableError) as caught:
                await documents.save([Change(key="k", body=body, expected=expected)])
            assert (type(caught.value), len(asked)) == (kind, number)


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_a_service_that_is_away_is_failed(service: str) -> None:
    """Nothing was sent, so nothing happened."""
    async with at(f"http://127.0.0.1:{free_port()}", service) as documents:
        for changes in ([Change(key="k", body=b"1")], [Change(key=f"k{number}", body=b"1") for number in range(40)]):
            with pytest.raises(CommitFailed):
                await documents.save(changes)
        with pytest.raises(CommitFailed):
            await documents.load(["k"])
        with pytest.raises(RetryableError):
            await documents.check()


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_who_may_not_enter_is_told_so_at_start(service: str) -> None:
    """A wrong key is an error in the set-up, and not shown."""
    async with answering("403", "AuthenticationFailed") as (address, _), at(address, service) as documents:
        with pytest.raises(SetupError, match="account key") as caught:
            await documents.check()
        assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_a_cut_write_is_not_sent_again(azurite_storage: Azurite, service: str) -> None:
    """Not by the driver and not by the HTTP library below it, which repeats PUT and DELETE by itself."""
    address = azurite_storage.blob if service == "blob" else azurite_storage.table
    async with cutting_http(address, _is_write) as (cutter, through), opened(azurite_storage, service, through) as place:
        documents = place.documents
        for number, key in enumerate(("insert", "replace", "delete")):
            (version,) = await documents.save([Change(key=key, body=b"first")]) if number else ("",)
            cutter.writes, cutter.cut = 0, "after"
            with pytest.raises(OutcomeUnknown):
                await documents.save([Change(key=key, body=None if key == "delete" else b"second", expected=version or "")])
            assert cutter.writes == 1
        found = await documents.load(["insert", "replace", "delete"])
        assert {key: document.body for key, document in found.items()} == {"insert": b"second", "replace": b"second"}


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_a_version_of_another_service_is_refused(azurite_storage: Azurite, service: str) -> None:
    """It cannot be the one that a document has; the header of a request is made of no such text."""
    async with opened(azurite_storage, service) as place:
        await place.documents.save([Change(key="k", body=b"1")])
        changes = [
            Change(key="k", body=body, expected=version) for body in (b"2", None) for version in ("7", "*", 'W/"*"\r\nx: y')
        ]
        assert [await place.documents.save([change]) for change in changes] == [(None,)] * len(changes)


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_a_key_that_cannot_be_held_is_not_there(azurite_storage: Azurite, service: str) -> None:
    """To ask for it is no error: an empty one, one too long, and half a character."""
    async with opened(azurite_storage, service) as place:
        await place.documents.save([Change(key="k", body=b"1")])
        assert set(await place.documents.load(["", "k", "k" * 2000, "/" * 2000, "\ud800"])) == {"k"}


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_deleting_nothing_is_answered_by_a_look(azurite_storage: Azurite, service: str) -> None:
    """Who deletes what should not be there is right or is refused."""
    async with opened(azurite_storage, service) as place:
        await place.documents.save([Change(key="k", body=b"1")])
        assert await place.documents.save([Change(key="k", body=None), Change(key="l", body=None)]) == (None, "")
        assert set(await place.documents.load(["k", "l"])) == {"k"}


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_an_error_of_the_user_stays_what_it_is(service: str) -> None:
    """Also a ValueError, which the driver raises of wrong endpoints."""
    with pytest.raises(ValueError, match="mine"):
        async with at("http://127.0.0.1:1", service):
            raise ValueError("mine")


async def test_many_documents_share_requests(azurite_storage: Azurite) -> None:
    """A hundred are sixteen requests at most; with one refused in its partition the others there go one by one."""
    changes = [Change(key=f"done/orders/{number:032x}", body=b"{}") for number in range(100)]
    async with (
        cutting_http(azurite_storage.table, _is_write) as (cutter, through),
        opened(azurite_storage, "table", through) as place,
    ):
        assert None not in await place.documents.save(changes[1:])
        assert cutter.writes <= 16
        answers = await place.documents.save([*changes[:1], Change(key=_beside(changes[0].key), body=b"{}"), *changes[1:2]])
        assert [answer is not None for answer in answers] == [True, True, False]
        refused = await place.documents.save(changes)
        assert refused == (None,) * 100
        assert len(await place.documents.load([change.key for change in changes])) == 100


async def test_a_refused_document_does_not_hold_up_its_partition(azurite_storage: Azurite) -> None:
    """The transaction that refuses all of them is followed by a request for each."""
    first = "k"
    others = [_beside(first), _beside(_beside(first))]
    async with opened(azurite_storage, "table") as place:
        await place.documents.save([Change(key=first, body=b"old")])
        answers = await place.documents.save([Change(key=key, body=b"new") for key in (others[0], first, others[1])])
        assert [answer is not None for answer in answers] == [True, False, True]
        found = await place.documents.load([first, *others])
        assert [found[key].body for key in (first, *others)] == [b"old", b"new", b"new"]


async def test_a_transaction_takes_no_more_than_the_service_does(azurite_storage: Azurite) -> None:
    """Documents of one partition that are too many bytes together are several transactions; so are more than a hundred."""
    keys = ["k"]
    while len(keys) < 130:
        keys.append(_beside(keys[-1]))
    async with opened(azurite_storage, "table") as place:
        assert None not in await place.documents.save([Change(key=key, body=b"x") for key in keys])
        found = await place.documents.load(keys)
        large = [Change(key=key, body=b"x" * 600_000, expected=found[key].version) for key in keys[:9]]
        assert None not in await place.documents.save(large)
        assert {len(each.body) for each in (await place.documents.load(keys[:9])).values()} == {600_000}


async def test_bodies_are_cut_into_properties(azurite_storage: Azurite) -> None:
    """Of 64 KiB each; a shorter body leaves nothing of a longer one."""
    async with opened(azurite_storage, "table") as place:
        version = ""
        for size in (3 * _CHUNK, 2 * _CHUNK + 1, 2 * _CHUNK, _CHUNK - 1, _CHUNK, 1, 0, _CHUNK + 1):
            body = bytes(number % 251 for number in range(size))
            (answer,) = await place.documents.save([Change(key="k", body=body, expected=version)])
            version = answer or ""
            assert (await place.documents.load(["k"]))["k"].body == body


async def test_the_largest_document_fits_into_an_entity(azurite_storage: Azurite) -> None:
    """With the longest key, as the service counts; and the emulator takes it as a new one."""
    change = Change(key="ä" * (LIMITS.key // 2), body=b"\xff" * LIMITS.body)
    entity = _operation(change, uuid4().hex)[1]
    size = 4 + 2 * len(entity["PartitionKey"] + entity["RowKey"])
    for name in entity.keys() - {"PartitionKey", "RowKey"}:
        value = entity[name]
        size += 8 + 2 * len(name) + 4 + (len(value) if isinstance(value, bytes) else 2 * len(value))
        assert len(value) <= 64 * 1024
    assert 1024 * 1024 - 64 < size <= 1024 * 1024
    async with opened(azurite_storage, "table") as place, open_table(place.url) as table:
        documents = AzureTableDocuments(table)
        assert None not in await documents.save([change])
        assert (await documents.load([change.key]))[change.key].body == change.body


async def test_a_blob_is_found_by_people(azurite_storage: Azurite) -> None:
    """By a name like its key, with the type of its content."""
    async with opened(azurite_storage, "blob") as place, open_container(place.url) as container:
        await place.documents.save([Change(key="entity/Account/42 ä", body=b"{}"), Change(key="b", body=b"\0")])
        names, token = await container.names("")
        types = [(await container._client.get_blob_client(name).get_blob_properties()).content_settings for name in names]
    assert (names, token) == (["b.json", "entity/Account/42~20~c3~a4.json"], None)
    assert [each.content_type for each in types] == ["application/octet-stream", "application/json"]


async def test_a_made_blob_has_its_name_and_content_type(azurite_storage: Azurite) -> None:
    """Others read it by them; and with other data its name is taken."""
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(opened(azurite_storage, "blob"))
        artifacts = await stack.enter_async_context(open_artifacts(place.url))
        container = await stack.enter_async_context(open_container(place.url))
        made = Artifact(kind="blob", name="invoices/köln 7.pdf", data=b"data", content_type="application/pdf")
        await artifacts.create(made)
        properties = await container._client.get_blob_client(made.name).get_blob_properties()
        assert properties.content_settings.content_type == "application/pdf"
        with pytest.raises(CommitRefused):
            await artifacts.create(Artifact(kind="blob", name=made.name, data=b"other"))
        for name in ("", "/a", "a/", "a//b", "a/./b", "a.", "a\\b", "a\nb", "\ud800", "x" * 1025, "a/" * 254 + "a"):
            with pytest.raises(CommitRefused):
                await artifacts.create(Artifact(kind="blob", name=name, data=b""))
            await artifacts.delete(name)
            assert await artifacts.read(name) is None
        assert await artifacts.names() == (made.name,)


async def test_a_blob_whose_making_was_cut_off_may_be_made_again(azurite_storage: Azurite) -> None:
    """The answer is OutcomeUnknown, whether it was made or not, and the blob is no obstacle."""
    async with (
        cutting_http(azurite_storage.blob, _is_write) as (cutter, through),
        opened(azurite_storage, "blob", through) as place,
        open_artifacts(place.url) as artifacts,
    ):
        for moment in MOMENTS:
            made = Artifact(kind="blob", name=moment, data=b"data")
            cutter.cut = moment
            with pytest.raises(OutcomeUnknown):
                await artifacts.create(made)
            assert await artifacts.read(moment) == (b"data" if moment == "after" else None)
            await artifacts.create(made)
            cutter.cut = moment
            with pytest.raises(OutcomeUnknown):
                await artifacts.delete(moment)
            await artifacts.delete(moment)
            assert await artifacts.names() == ()


def _beside(key: str) -> str:
    """Find another key in the same partition, the next one."""
    number = int(key.partition("+")[2] or 0)
    base = key.partition("+")[0]
    return next(it for each in count(number + 1) if _place(it := f"{base}+{each}")[0] == _place(key)[0])


def _is_write(request: Request) -> bool:
    return request.method in {"POST", "PUT", "DELETE"}
