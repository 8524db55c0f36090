"""What an operation works with: the same calls for asynchronous and synchronous handlers, in the library and without it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from sqlalchemy import Connection, text
from sqlalchemy.util import await_only

from tests.differential.models import Account

Read = tuple[str, Any]
"""What one operation read, behind the operation's name."""


class OutOfTime(Exception):
    """In the reference: the handler waits for an event that never comes."""


@dataclass
class Run:
    """One message's last attempt."""

    started: int
    reads: list[Read] = field(default_factory=list)
    outside: dict[int, bool] = field(default_factory=dict)
    """Whether the other connection could commit, by the operation's position."""


class Side(Protocol):
    """One of the two sides of a comparison: the library, or plain SQLAlchemy."""

    kept: dict[int, list[Account]]
    """Objects that something keeps after their handler ended, by message."""

    def start(self, message: int) -> Run:
        """Begin an attempt."""

    async def commit_outside(self, message: int, position: int, account: str, amount: int) -> bool:
        """Add to an account on another connection, and commit. Returns whether its row was not locked."""

    async def wait_forever(self, tools: "Tools") -> None:
        """Exceed the handler's time."""


@dataclass
class Tools:
    """What one handler has. Operations are written in the asynchronous form; `Stepwise` makes it of synchronous objects."""

    side: Side
    message: int
    database: str
    """The name of the database, such as `postgresql+asyncpg`."""
    publish: Callable[[Any], None]
    session: Any = None
    given: Any = None
    """The connection that was injected, if any."""
    driver: Any = None
    """The driver's own connection, if that was injected."""
    entity: Any = None
    cleanups: list[Callable[[], None]] | None = None
    """What the provider calls when the handler has returned."""
    is_async: bool = True
    position: int = 0
    kept: dict[str, Any] = field(default_factory=dict)
    run: Run = field(default_factory=lambda: Run(0))

    def read(self, name: str, value: Any) -> None:
        """Note what an operation read."""
        self.run.reads.append((name, value))

    async def connection(self) -> Any:
        """Return the handler's connection: the injected one, or the session's."""
        return self.given if self.given is not None else await self.session.connection()

    async def ask_driver(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement without SQLAlchemy."""
        if not self.is_async:
            return ask_dbapi((await self.connection()).synchronous.connection, statement)
        driver = self.driver
        if driver is None:
            driver = (await (await self.connection()).get_raw_connection()).driver_connection
        return await ask(driver, self.database, statement)

    async def commit_outside(self, account: str, amount: int) -> bool:
        """Have another connection add to an account and commit."""
        committing = self.side.commit_outside(self.message, self.position, account, amount)
        committed = await committing if self.is_async else await_only(committing)
        self.run.outside[self.position] = committed
        return committed


async def ask(driver: Any, database: str, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement on an asynchronous driver's connection."""
    if database == "postgresql+asyncpg":
        return [tuple(row) for row in await driver.fetch(statement)]
    if database == "mariadb":
        async with driver.cursor() as cursor:
            await cursor.execute(statement)
            return [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
    cursor = await driver.execute(statement)
    rows = [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
    await cursor.close()
    return rows


def ask_dbapi(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement on the connection that SQLAlchemy has from its pool."""
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    finally:
        cursor.close()


class Stepwise:
    """The asynchronous methods of a session or a connection, over the synchronous object. Nothing in it waits."""

    _AWAITED = frozenset(
        {
            "connection",
            "delete",
            "exec_driver_sql",
            "execute",
            "flush",
            "get",
            "get_one",
            "merge",
            "refresh",
            "rollback",
            "scalar",
            "scalars",
        }
    )

    def __init__(self, synchronous: Any) -> None:
        self.synchronous = synchronous

    def __getattr__(self, name: str) -> Any:
        """Return a method in its asynchronous form."""
        found = getattr(self.synchronous, name)
        if name == "begin_nested":
            return lambda: StepwiseBlock(found())
        if name not in self._AWAITED:
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            left = found(*arguments, **options)
            return Stepwise(left) if isinstance(left, Connection) else left

        return call


class StepwiseBlock:
    """A savepoint of a synchronous session or connection, in the form `async with`."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> Self:
        self._block.__enter__()
        return self

    async def __aexit__(self, *raised: object) -> Any:
        return self._block.__exit__(*raised)

    async def rollback(self) -> None:
        """Roll back to the savepoint."""
        self._block.rollback()


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("a synchronous handler must not wait")


async def lines_of(order: Any, tools: Tools) -> Sequence[Any]:
    """Load the lines of an order where they are first used."""
    loaded: Sequence[Any] = await order.awaitable_attrs.lines if tools.is_async else order.lines
    return loaded


async def exceed(tools: Tools) -> None:
    """Wait for an event that never comes. A synchronous handler uses the database until that is refused."""
    if tools.is_async:
        await asyncio.Event().wait()
    connection = await tools.connection()
    while True:
        await connection.execute(text("SELECT 1"))
