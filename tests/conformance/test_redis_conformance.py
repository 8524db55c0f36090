"""Redis keeps every promise of documents."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from uuid import uuid4

import pytest
from document_subject import ServiceSubject
from redis.asyncio import Redis

from onceonly.model.errors import Failed, SetupError
from onceonly.ports.documents import Change
from onceonly.stores import redis as adapter
from onceonly.stores.redis import RedisDocuments, create, open_documents
from onceonly.testing.clock import ManualClock
from onceonly.testing.documents_suite import DocumentsSuite
from onceonly.testing.suite import raises
from servers import REDIS, free_port, need

DATABASE = 9
SCRIPT = sha1(adapter._SAVE.encode(), usedforsecurity=False).hexdigest().encode()


@asynccontextmanager
async def place() -> AsyncIterator[str]:
    """Give the URL of a prefix of one's own, and remove what is there at the end."""
    url = f"{need(REDIS).rstrip('/')}/{DATABASE}"
    prefix = f"t{uuid4().hex[:12]}:"
    client = Redis.from_url(url)
    try:
        await client.script_load(adapter._SAVE)  # so that the first call is the one that writes
        yield f"{url}?prefix={prefix}"
    finally:
        async for key in client.scan_iter(match=f"{prefix}*"):
            await client.delete(key)
        await client.aclose()


class TestRedis(DocumentsSuite):
    """A prefix on a running server."""

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a prefix of its own; a place that is missing is a database the server has not."""
        async with (
            place() as url,
            ServiceSubject.open(
                open_documents,
                url,
                missing=url.replace(f"/{DATABASE}?", "/9999?"),
                is_write=lambda data: SCRIPT in data,
            ) as subject,
        ):
            yield subject


async def test_a_document_is_dropped_at_its_expiry() -> None:
    """And leaves nothing in the lists once something else is saved."""
    async with place() as url, open_documents(url, clock=ManualClock()) as documents:
        clock = ManualClock()
        await documents.save([Change(key="k", body=b"1", expires=clock.now() + 50), Change(key="l", body=b"1")])
        while await documents.load(["k"]):  # Redis's own clock drops it
            pass
        assert await documents.keys("") == ("l",)
        await documents.save([Change(key="m", body=b"1")])
        assert await members(documents) == {b"l", b"m"}


async def test_what_was_dropped_is_inserted_again() -> None:
    """And stays, when it has no expiry any more."""
    async with place() as url, open_documents(url, clock=ManualClock()) as documents:
        await documents.save([Change(key="k", body=b"1", expires=ManualClock().now() - 1)])
        assert await documents.load(["k"]) == {}
        (version,) = await documents.save([Change(key="k", body=b"2")])
        assert version
        assert await documents.keys("") == ("k",)


async def test_a_script_the_server_forgot_is_sent_again() -> None:
    """After a restart, for example; nothing ran, so nothing is repeated."""
    async with place() as url, open_documents(url, clock=ManualClock()) as documents:
        documents._saving._hash = "0" * 40
        (version,) = await documents.save([Change(key="k", body=b"1")])
        assert (await documents.load(["k"]))["k"].version == version


async def test_a_server_that_is_away_is_a_definite_failure() -> None:
    """Nothing was sent."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with open_documents(url, clock=ManualClock()) as documents:
        for call in (documents.save([Change(key="k", body=b"1")]), documents.load(["k"]), documents.check()):
            async with raises(Failed):
                await call


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, "noeviction"),
        ({"role": "slave"}, "master"),
        ({"cluster_enabled": 1}, "cluster"),
        ({"redis_version": "4.0.14"}, "version 5"),
    ],
)
def test_a_server_that_breaks_promises_is_refused(about: dict[str, object], word: str) -> None:
    """The error says what to change."""
    good: dict[str, object] = {"maxmemory_policy": "noeviction", "role": "master", "cluster_enabled": 0, "redis_version": "7.0"}
    address = adapter.read_address("redis://127.0.0.1:6379/0")
    adapter._refuse(good, address)
    with pytest.raises(SetupError, match=word):
        adapter._refuse(good | about, address)


async def test_weak_durability_is_told() -> None:
    """Snapshots only, a flush each second, and not knowing it; a replica too."""
    async with place() as url, open_documents(url, clock=ManualClock()) as documents:
        assert "appendonly yes" in " ".join(await documents._durability({"aof_enabled": 0}))
        assert "appendfsync always" in " ".join(await documents._durability({"aof_enabled": 1}))
    assert "fail-over" in " ".join(adapter._failover({"connected_slaves": 1}))


@pytest.mark.parametrize(
    "url", ["redis://", "redis://h/x", "redis://h/0?prefix=*", "redis://h/0?nothing=1", "redis://h/0?timeout=0"]
)
async def test_a_wrong_url_is_a_setup_error(url: str) -> None:
    """Also when the place is to be made."""
    async with raises(SetupError):
        await create(url)


async def members(documents: RedisDocuments) -> set[bytes]:
    """Give what is in the list of keys."""
    return set(await documents._client.zrange(documents._index, 0, -1))
