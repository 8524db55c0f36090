"""The connections of queues to one server, shared by what a process has there.

In Redis Cluster all keys of a prefix are in one slot, so one node has them. The server that is asked first names that node, and
this asks it from then on.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from onceonly.adapters.redis.address import QueueKeys, RedisAddress
from onceonly.adapters.redis.client import LuaScript, close_client, new_client, translated
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.model.errors import CommitFailed, OnceOnlyError, QueueMissing, SetupError

LOST: tuple[type[Exception], ...] = (RedisError, *DRIVER_FAULTS)
MOST_WAITING = 1000
"""Connections that wait for messages at the same time."""
MOST_MOVES = 5
"""How often a call follows the keys to another node of a cluster."""

_REMEDIES: tuple[tuple[type[Exception] | str, type[SetupError], str], ...] = (
    (AuthenticationError, SetupError, "Check the user and the password of the URL"),
    ("NOAUTH", SetupError, "Add a user and a password to the URL"),
    (NoPermissionError, SetupError, "Grant this user the permission"),
    ("NOGROUP", QueueMissing, "Run `onceonly topology create module:endpoint`, or start its endpoint"),
    ("WRONGTYPE", SetupError, "Another program uses this key: delete it, or set another `prefix` in the URL"),
    ("DB index is out of range", SetupError, "Use another database number, or raise `databases` in the server's configuration"),
)
"""What a person must change: a class of errors or a part of their text, what is raised, and what to do."""

Argument = str | bytes | int
Command = tuple[Argument, ...]


class RedisLink:
    """Clients of one server: one for calls, and one for calls that wait for messages."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._node = address
        self._client = new_client(address)
        self._waiting = new_client(address, connections=MOST_WAITING)

    async def run(self, script: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int | float]) -> Any:
        """Run a script, and return what it returns. Raises the driver's errors."""
        encoded = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
        for _ in range(MOST_MOVES):
            try:
                return await LuaScript(self._client, script).run(list(keys), encoded)
            except MovedError as error:
                await self._follow(error)
        raise CommitFailed(f"{self.address.place}: the keys of {self.address.prefix!r} move from node to node. Try again")

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands on one connection, in order, not as one step. An error of a command is its result.

        Raises CommitFailed without a connection, and the driver's errors if it is lost: any of the commands may have run.
        """
        for _ in range(MOST_MOVES):
            await self.connect()
            async with self._client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                results = await pipe.execute(raise_on_error=False)
            moved = next((each for each in results if isinstance(each, MovedError)), None)
            if moved is None:
                return list(results)
            await self._follow(moved)
            if not all(isinstance(each, MovedError) for each in results):  # only while a slot moves
                return list(results)
        raise CommitFailed(f"{self.address.place}: the keys of {self.address.prefix!r} move from node to node. Try again")

    async def load(self, script: str) -> None:
        """Store a script on the server, for EVALSHA in a pipeline."""
        await self._client.script_load(script)

    async def wait(self, positions: dict[bytes, bytes], milliseconds: int) -> None:
        """Wait until one of these streams has an entry after its position, or the time is over. Raises the driver's errors."""
        waiting: Any = self._waiting
        await waiting.execute_command(
            "XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", *positions.keys(), *positions.values()
        )

    async def info(self) -> dict[str, Any]:
        """Return what the server says about itself. Raises the driver's errors."""
        return dict(await self._client.info())

    async def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if this user may not read it. Raises the driver's errors."""
        try:
            found = await self._client.config_get(name)
        except ResponseError:
            return None
        return found.get(name)

    async def connect(self) -> None:
        """Make sure that there is a connection. Raises CommitFailed, and SetupError for a rejected user."""
        try:
            pool = self._client.connection_pool
            await pool.release(await pool.get_connection())  # type: ignore[no-untyped-call]
        except LOST as error:
            raise self.translate(error, what="connect", definite=True) from error

    def translate(self, error: Exception, *, what: str, definite: bool = False) -> OnceOnlyError:
        """Translate an error of the driver. `definite` means that nothing can have happened that matters."""
        if isinstance(error, OnceOnlyError):
            return error
        text = f"cannot {what} at {self.address.place}: {error}"
        for sign, kind, remedy in _REMEDIES:
            if isinstance(error, sign) if isinstance(sign, type) else sign in str(error):
                return kind(f"{text}. {remedy}")
        return type(translated(error, reads=definite))(text)

    async def close(self) -> None:
        for client in (self._client, self._waiting):
            await _close(client)

    async def _follow(self, error: MovedError) -> None:
        """Use the node that has the keys from now on."""
        host, port = error.host or self._node.host, int(error.port)
        if (host, port) == (self._node.host, self._node.port):
            return
        self._node = replace(self._node, host=host, port=port)
        old = self._client, self._waiting
        self._client, self._waiting = new_client(self._node), new_client(self._node, connections=MOST_WAITING)
        for client in old:
            await _close(client)


class Waiter:
    """Waits until something is in a queue: one blocked connection for all receivers of a transport. It may return early.

    XREAD does not take what it sees. So nothing is lost or held when a receiver is cancelled while it waits.
    """

    def __init__(self, link: RedisLink, keys: QueueKeys, longest: float) -> None:
        self._link = link
        self._keys = keys
        self._longest = max(1, int(min(longest, link.address.timeout / 2) * 1000))
        self._reading: asyncio.Task[None] | None = None

    async def wait(self, position: bytes, woken: bytes, seconds: float) -> None:
        """Wait for an entry of the stream after `position`, or one of the wake stream after `woken` unless that is empty.

        Receivers share the connection of the first. It looks at earlier positions, or at the same. Does not raise errors of the
        driver: the next call to the server does.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read(position, woken))
        await asyncio.wait([self._reading], timeout=seconds)

    async def close(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self, position: bytes, woken: bytes) -> None:
        with suppress(*LOST):
            positions = {self._keys.stream: position, self._keys.wake: woken}
            await self._link.wait({key: behind for key, behind in positions.items() if behind}, self._longest)


async def _close(client: Redis) -> None:
    with suppress(*LOST):
        async with asyncio.timeout(1):
            await close_client(client)


def is_missing_script(result: object) -> bool:
    """Return whether a command of a pipeline did not run because the server does not have its script."""
    return isinstance(result, NoScriptError)
