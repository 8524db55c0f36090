"""Operations that leave something running, and use what their handler had when it has ended."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import select, text, update

from tests.differential.models import Account
from tests.differential.operations import Operation
from tests.differential.tools import Tools

_WRITE = update(Account).where(Account.id == "b").values(balance=999)


async def execute_in_session(to: Tools) -> None:
    """Write through the session."""
    await to.session.execute(_WRITE)


async def add_to_session(to: Tools) -> None:
    """Add an object, which any later flush would write."""
    to.session.add(Account(id="late", balance=999))


async def change_loaded_object(to: Tools) -> None:
    """Change an object of the session and flush."""
    found = await to.session.get(Account, "b")
    found.balance = 999
    await to.session.flush()


async def read_in_session(to: Tools) -> None:
    """Read through the session: what is read is another message's transaction."""
    await to.session.scalars(select(Account))


async def execute_on_connection(to: Tools) -> None:
    """Write through the connection."""
    await to.given.execute(_WRITE)


async def execute_sql_on_connection(to: Tools) -> None:
    """Write through the connection in SQL."""
    await to.given.exec_driver_sql("UPDATE diff_accounts SET balance = 999 WHERE id = 'b'")


async def begin_nested_in_session(to: Tools) -> None:
    """Write in a savepoint."""
    async with to.session.begin_nested():
        await to.session.execute(_WRITE)


async def use_the_sessions_connection(to: Tools) -> None:
    """Ask the session for its connection, and write."""
    await (await to.session.connection()).execute(_WRITE)


async def execute_in_a_thread(to: Tools) -> None:
    """Write from a thread, through the session."""
    loop = asyncio.get_running_loop()

    def write() -> None:
        asyncio.run_coroutine_threadsafe(to.session.execute(_WRITE), loop).result()

    await asyncio.to_thread(write)


async def roll_back_the_transaction(to: Tools) -> None:
    """Roll back the transaction of the connection."""
    await to.kept["transaction"].rollback()


async def invalidate_the_connection(to: Tools) -> None:
    """Drop the connection."""
    await to.given.invalidate()


async def run_sync_in_session(to: Tools) -> None:
    """Write through `run_sync`."""
    await to.session.run_sync(lambda session: session.execute(_WRITE))


Use = Callable[[Tools], Awaitable[None]]
USES: tuple[Use, ...] = (
    execute_in_session,
    add_to_session,
    change_loaded_object,
    read_in_session,
    begin_nested_in_session,
    use_the_sessions_connection,
    run_sync_in_session,
    execute_on_connection,
    execute_sql_on_connection,
    execute_in_a_thread,
    roll_back_the_transaction,
    invalidate_the_connection,
)


@dataclass
class Gate:
    """Where the task of an earlier message waits, and what became of it."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    opened_to_threads: threading.Event = field(default_factory=threading.Event)

    async def open(self) -> None:
        """Let the tasks go on, and wait until they have ended."""
        self.opened.set()
        self.opened_to_threads.set()
        await asyncio.gather(*self.tasks)
        for thread in self.threads:
            await asyncio.to_thread(thread.join)

    async def try_later(self, use: Callable[[], Awaitable[None]]) -> None:
        """Wait for the gate, use what the handler had, and note the error."""
        await self.opened.wait()
        await self._note(use)

    async def _note(self, use: Callable[[], Awaitable[None]]) -> None:
        try:
            await use()
        except Exception as error:  # noqa: BLE001 - it is what is tested
            self.errors.append(f"{type(error).__name__}: {error}")
        else:
            self.errors.append("no error")

    def try_in_thread(self, use: Callable[[], Any]) -> None:
        """Do the same in a thread."""
        self.opened_to_threads.wait()
        try:
            use()
        except Exception as error:  # noqa: BLE001 - the same
            self.errors.append(f"{type(error).__name__}: {error}")
        else:
            self.errors.append("no error")


@dataclass(frozen=True)
class LeaveTask(Operation):
    """Begins something and starts a task that goes on after the handler."""

    gate: Gate
    use: Use

    async def run(self, to: Tools) -> None:
        """Use the session and the connection, so that they are real, and start the task."""
        if to.session is not None:
            await to.session.get(Account, "b")
        if to.given is not None:
            await to.given.execute(text("SELECT 1"))
            to.kept["transaction"] = to.given.get_transaction()
        self.gate.tasks.append(asyncio.ensure_future(self.gate.try_later(partial(self.use, to))))


@dataclass(frozen=True)
class LeaveThread(Operation):
    """Starts a thread in a `def` handler that adds an object when the handler has ended."""

    gate: Gate

    async def run(self, to: Tools) -> None:
        """Start it."""
        session = to.session.synchronous

        def add() -> None:
            session.add(Account(id="late", balance=999))

        thread = threading.Thread(target=self.gate.try_in_thread, args=(add,))
        self.gate.threads.append(thread)
        thread.start()


@dataclass(frozen=True)
class OpenGate(Operation):
    """Lets what earlier messages left go on, and waits for it."""

    gate: Gate

    async def run(self, to: Tools) -> None:
        """Open it."""
        await self.gate.open()
