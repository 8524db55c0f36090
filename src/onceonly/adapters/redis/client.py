"""Redis: where it is, a client that sends nothing twice, what its errors mean, and whether a server forgets what it stores.

The driver is redis-py. By default it sends a command again when a connection breaks; here it never does.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha1
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from onceonly.adapters.redis.address import RedisAddress
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError

CONNECTIONS = 16
_LOST: tuple[type[Exception], ...] = (RedisError, *DRIVER_FAULTS)
_REFUSED = (
    OutOfMemoryError,  # a script is refused at its first write, and after that never
    ReadOnlyError,
    BusyLoadingError,
    AuthenticationError,
    ClusterDownError,  # and that it has no master
    ClusterCrossSlotError,
    AskError,  # and that it moved
)
_REFUSAL = re.compile(r"(?:MISCONF|NOREPLICAS|BUSY|NOAUTH|WRONGTYPE the key)\b")
"""How Redis begins what it says when it did not run a command, or a script up to its first write."""


def new_client(address: RedisAddress, *, connections: int = CONNECTIONS) -> "Redis":
    """Make a client; connects to nothing yet. Close it with `close_client`."""
    secure: dict[str, Any] = {"ssl_ca_certs": address.cafile} if address.secure else {}
    pool = BlockingConnectionPool(
        max_connections=connections,
        timeout=address.timeout,
        connection_class=SSLConnection if address.secure else Connection,
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.user,
        password=address.password,
        socket_timeout=address.timeout,
        socket_connect_timeout=address.timeout,
        retry=Retry(NoBackoff(), 0),  # a repeated script would answer "another version" to itself
        protocol=2,
        **secure,
    )
    return Redis(connection_pool=pool)


async def close_client(client: "Redis") -> None:
    pool = client.connection_pool
    await client.aclose()
    await pool.aclose()


@asynccontextmanager
async def open_client(address: RedisAddress) -> AsyncIterator["Redis"]:
    """Make a client, and close it at the end; connects to nothing yet."""
    client = new_client(address)
    try:
        yield client
    finally:
        await close_client(client)


async def connect(client: "Redis") -> None:
    """Make sure that there is a connection. Raises CommitFailed: until now nothing was sent."""
    try:
        pool = client.connection_pool
        await pool.release(await pool.get_connection())  # type: ignore[no-untyped-call]
    except _LOST as error:
        raise CommitFailed(f"cannot connect to Redis: {error}") from error


def script_hash(text: str) -> str:
    """Return the name under which a server keeps a script."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


class LuaScript:
    """A Lua script on the server, called by its hash and sent whole where the server does not know it."""

    def __init__(self, client: "Redis", text: str) -> None:
        self._client = client
        self._text = text
        self._hash = script_hash(text)

    async def run(self, keys: list[bytes], arguments: list[bytes]) -> Any:
        """Run it once. "No such script" is said before anything runs, so sending it whole is not a repetition."""
        try:
            return await self._client.evalsha(self._hash, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self._client.eval(self._text, len(keys), *keys, *arguments)


def translated(error: Exception, *, reads: bool = False) -> OnceOnlyError:
    """Translate the driver's errors by allow-list; gives, never raises.

    A read that failed is CommitFailed: it changes nothing.
    """
    text = f"Redis: {error}"
    is_refused = isinstance(error, _REFUSED) or (isinstance(error, ResponseError) and _REFUSAL.match(str(error)) is not None)
    return CommitFailed(text) if reads or is_refused else OutcomeUnknown(text)


def refused_setup(error: Exception, address: RedisAddress) -> OnceOnlyError:
    """Return what a person must change when a start fails, or that the server is away."""
    if isinstance(error, AuthenticationError) or "NOAUTH" in str(error):
        return SetupError(f"Redis at {address.place} rejected this user or password: {error}")
    if isinstance(error, NoPermissionError):
        return SetupError(f"this user lacks a permission at {address.place}: {error}. Grant it")
    if isinstance(error, ResponseError) and "out of range" in str(error):
        return SetupError(
            f"{address.place} has no database {address.database}: use another number, or raise `databases` in its configuration"
        )
    return CommitFailed(f"Redis at {address.place}: {error}")


def persistence(about: Mapping[str, Any], appendfsync: str | None, *, loss: str) -> tuple[str, ...]:
    """Return warnings about a crash of the server. `loss` is what follows from it, to complete a sentence."""
    if not about.get("aof_enabled"):
        missing = "`appendonly no`: a crash loses acknowledged writes since the last snapshot"
        return (f"Redis has {missing}, {loss}. Set `appendonly yes` and `appendfsync always`",)
    if appendfsync is None:
        return ("CONFIG is forbidden, so persistence cannot be checked: make sure that `appendfsync always` is set",)
    if appendfsync == "always":
        return ()
    late = f"`appendfsync {appendfsync}`: a crash loses the last acknowledged writes"
    return (f"Redis has {late}, {loss}. Set `appendfsync always`",)


def failover(about: Mapping[str, Any], *, loss: str) -> tuple[str, ...]:
    return (f"Redis replicates asynchronously: a failover loses writes, {loss}",) if about.get("connected_slaves") else ()


def refuse_server(about: Mapping[str, Any], place: str, *, oldest: int, evicted: str) -> None:
    """Raise SetupError for a server that evicts (`evicted` is the consequence), is not a primary, or is too old."""
    policy = about.get("maxmemory_policy")
    if policy != "noeviction":
        raise SetupError(
            f"Redis at {place} has `maxmemory-policy {policy}`: it evicts {evicted}. Set `maxmemory-policy noeviction`"
        )
    if about.get("role") != "master":
        raise SetupError(f"{place} is a replica (its role is `{about.get('role')}`), so reads are stale: use the primary")
    version = re.match(r"[0-9]{1,4}", str(about.get("redis_version", "0")))
    if version is None or int(version[0]) < oldest:
        raise SetupError(f"{place} is Redis {about.get('redis_version')}: version {oldest} or later is needed")
