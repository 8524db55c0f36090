"""The reference: one message after another with plain SQLAlchemy, each in a transaction and a session of its own."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.differential.models import CURRENT, Account
from tests.differential.play import play
from tests.differential.programs import Kind, Message, Program
from tests.differential.tools import OutOfTime, Run, Stepwise, Tools, drive
from tests.differential.world import Observed, World


@dataclass
class Counter:
    """The state of an entity."""

    key: str
    count: int = 0


@dataclass
class Plain:
    """The side without the library."""

    world: World
    decided: Mapping[int, Run]
    """What became of the other connection's commits in the library's run; they are repeated."""
    kept: dict[int, list[Account]] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    sent: dict[int, list[Any]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    entities: dict[str, Counter] = field(default_factory=dict)

    def start(self, message: int) -> Run:
        """Begin."""
        self.runs[message] = run = Run(len(self.runs))
        return run

    async def commit_outside(self, message: int, position: int, account: str, amount: int) -> bool:
        """Commit what was committed in the library's run at this place."""
        if not self.decided[message].outside.get(position, False):
            return False
        return await self.world.add(account, amount)

    async def wait_forever(self, tools: Tools) -> None:
        """Exceed the time at once."""
        raise OutOfTime

    async def handle(self, number: int, message: Message) -> None:
        """Handle one message."""
        sent: list[Any] = []
        entity = copy(self.entities.get("e", Counter("e"))) if message.kind is Kind.ENTITY else None

        def publish(what: Any) -> None:
            sent.append(repr(what))

        tools = partial(Tools, self, number, self.world.name, publish, is_async=message.kind.is_async, entity=entity)
        token = CURRENT.set("nobody")
        try:
            if message.kind in {Kind.CONNECTION, Kind.DRIVER, Kind.DEF_CONNECTION}:
                await self._with_connection(message, tools)
            else:
                await self._with_session(message, tools)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            self.failed[number] = type(error).__name__
        else:
            self.sent[number] = sent
            if entity is not None and entity != self.entities.get("e", Counter("e")):  # one that is still blank is not stored
                self.entities["e"] = entity
        finally:
            CURRENT.reset(token)

    async def _with_session(self, message: Message, tools: Any) -> None:
        async with AsyncSession(self.world.engine) as session, session.begin():
            connection = await session.connection()
            await connection.exec_driver_sql("SELECT 1")  # adapters begin the transaction with their first statement
            if message.kind.is_async:
                given = connection if message.kind is Kind.BOTH else None
                cleanups: list[Callable[[], None]] | None = [] if message.kind is Kind.PROVIDER else None
                await play(message, tools(session=session, given=given, cleanups=cleanups))
                for clean in cleanups or ():
                    clean()
            else:
                await session.run_sync(partial(self._in_greenlet, message, tools))
            if not session.is_active:  # the block would end without an error, and without its rows
                raise PendingRollbackError("a flush has failed, and its error was caught")

    def _in_greenlet(self, message: Message, tools: Any, session: Session) -> None:
        given = Stepwise(session.connection()) if message.kind is Kind.DEF else None
        drive(play(message, tools(session=Stepwise(session), given=given)))

    async def _with_connection(self, message: Message, tools: Any) -> None:
        async with self.world.engine.begin() as connection:
            await connection.exec_driver_sql("SELECT 1")
            if message.kind is Kind.DEF_CONNECTION:
                await connection.run_sync(lambda given: drive(play(message, tools(given=Stepwise(given)))))
            elif message.kind is Kind.DRIVER:
                raw = await connection.get_raw_connection()
                await play(message, tools(driver=raw.driver_connection, given=connection))
            else:
                await play(message, tools(given=connection))


async def run_plain(world: World, program: Program, order: Sequence[int], decided: Mapping[int, Run]) -> Observed:
    """Handle a program's messages in this order."""
    await world.reset()
    side = Plain(world, decided)
    for number in order:
        await side.handle(number, program.messages[number])
    return Observed(
        rows=await world.rows(),
        reads={number: run.reads for number, run in side.runs.items()},
        sent={number: sent for number, sent in side.sent.items() if sent},
        failed=side.failed,
        entities={key: each.count for key, each in side.entities.items()},
    )
