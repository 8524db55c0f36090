"""Redis keeps every promise of documents, and of what is built on them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import ClassVar
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, OutOfMemoryError, ReadOnlyError, ResponseError, TimeoutError  # noqa: A004 - its own

from onceonly.adapters.redis import documents as adapter
from onceonly.adapters.redis.client import translated
from onceonly.adapters.redis.documents import RedisDocuments, create, open_documents
from onceonly.model.errors import CommitFailed, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import (
    DocumentDedupSuite,
    DocumentProjectionSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.suite import raises
from tests.conformance.document_subject import ServiceSubject
from tests.servers.available import REDIS, free_port, need
from tests.servers.redis import own_redis

DATABASE = 9
SCRIPT = sha1(adapter._SAVE.encode(), usedforsecurity=False).hexdigest().encode()


@asynccontextmanager
async def place() -> AsyncIterator[str]:
    """Return the URL of a prefix of one's own, and remove what is there at the end."""
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


class InRedis:
    """A prefix on a running server."""

    service: ClassVar[str] = "redis"

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


class TestRedis(InRedis, DocumentsSuite):
    """Documents themselves."""

    lapse: ClassVar[int] = 2_500  # Redis removes to the millisecond


class TestPendingInRedis(InRedis, PendingListSuite):
    """The list of documents with unsent messages."""


class TestProjectionsInRedis(InRedis, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInRedis(InRedis, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInRedis(InRedis, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInRedis(InRedis, DocumentTransactionSuite):
    """The transactions for every service, here."""


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
            async with raises(CommitFailed):
                await call


@pytest.mark.parametrize(
    ("about", "word"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, "noeviction"),
        ({"role": "slave"}, "replica"),
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--appendonly", "yes", "--appendfsync", "always"), []),
        (("--appendonly", "yes", "--appendfsync", "everysec"), ["appendfsync everysec"]),
        (("--appendonly", "yes", "--rename-command", "CONFIG", ""), ["cannot be checked"]),
        (("--appendonly", "no"), ["appendonly yes"]),
    ],
)
async def test_weak_durability_is_told(settings: tuple[str, ...], words: list[str]) -> None:
    """Snapshots only, a flush each second, and not knowing it; a safe server needs no words."""
    with own_redis(*settings) as url:
        async with open_documents(url, clock=ManualClock()) as documents:
            warnings = await documents.check()
    assert [word in warning for word, warning in zip(words, warnings, strict=True)] == [True] * len(words)
    assert "failover" in " ".join(adapter.failover({"connected_slaves": 1}, loss="x"))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "noeviction"),
        (("--replicaof", "127.0.0.1", "1"), "replica"),
        (("--cluster-enabled", "yes"), "cluster"),
        (("--requirepass", "secret"), "password"),
    ],
)
async def test_a_server_with_unsafe_settings_is_refused(settings: tuple[str, ...], word: str) -> None:
    """As the server itself tells them."""
    with own_redis(*settings) as url:
        async with open_documents(url, clock=ManualClock()) as documents:
            with pytest.raises(SetupError, match=word):
                await documents.check()


async def test_a_full_server_takes_nothing_and_says_so() -> None:
    """A script that it refuses has written nothing at all, so the failure is definite; deleting still works."""
    with own_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as url:
        async with open_documents(url, clock=ManualClock()) as documents:
            (version,) = await documents.save([Change(key="k", body=b"1")])
            held: list[str] = ["k"]
            async with raises(CommitFailed):
                for number in range(100):
                    await documents.save([Change(key=f"{number}", body=b"x" * 100_000)])
                    held.append(f"{number}")
            assert set(await documents.keys("")) == set(held)
            async with raises(CommitFailed):
                large = b"x" * 100_000
                await documents.save([Change(key="l", body=large), Change(key="k", body=large, expected=version or "")])
            assert {key: each.version for key, each in (await documents.load(["k", "l"])).items()} == {"k": version}
            assert await documents.save([Change(key="k", body=None, expected=version or "")]) == ("",)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("lost"), OutcomeUnknown),
        (TimeoutError("no answer"), OutcomeUnknown),
        (ResponseError("WRONGTYPE"), OutcomeUnknown),
        (ResponseError("BUSYKEY"), OutcomeUnknown),
        (ResponseError("BUSY Redis is busy running a script"), CommitFailed),
        (ReadOnlyError("You can't write against a read only replica."), CommitFailed),
        (OutOfMemoryError("command not allowed"), CommitFailed),
    ],
)
def test_only_what_the_server_said_for_sure_is_definite(error: Exception, kind: type[Exception]) -> None:
    """Everything else is OutcomeUnknown; but a read that failed has changed nothing."""
    assert type(translated(error)) is kind
    assert type(translated(error, reads=True)) is CommitFailed


@pytest.mark.parametrize(
    "url", ["redis://", "redis://h/x", "redis://h/0?prefix=*", "redis://h/0?nothing=1", "redis://h/0?timeout=0"]
)
async def test_a_wrong_url_is_a_setup_error(url: str) -> None:
    """Also when the place is to be made."""
    async with raises(SetupError):
        await create(url)


async def members(documents: RedisDocuments) -> set[bytes]:
    """Return what is in the list of keys."""
    return set(await documents._client.zrange(documents._index, 0, -1))
