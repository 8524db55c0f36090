"""The library's side: a program's messages through `deliver`, real handlers, and the SQL store.

There is no worker and no broker, so the size of each unit, the order of arrival and the isolation are the program's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import asyncpg
from msgspec.json import decode
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onceonly import Context, Endpoint, Retry
from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.settlement import BatchReport
from onceonly.endpoint.host import host_of
from onceonly.formats.bodies import encode_body
from onceonly.model.entities import Entities
from onceonly.model.message import Message as Incoming
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.sql.store import SqlStore
from onceonly.sql.store.unit import SqlUnit
from tests.differential.models import Account
from tests.differential.operations import ASYNCPG
from tests.differential.play import play
from tests.differential.programs import Kind, Message, Program, needs_own
from tests.differential.reference import Counter
from tests.differential.tools import Run, Stepwise, Tools, drive, exceed
from tests.differential.world import Observed, World

TIMEOUT = 0.15
"""Seconds that a handler has which exceeds its time."""


@dataclass
class Work:
    """A message's body: the message's place in the program, and the key of its entity."""

    number: int
    key: str = "e"


@dataclass
class Note:
    """What handlers publish."""

    number: int
    what: str


class Repository:
    """What a provider makes of the session."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session
        self.cleanups: list[Callable[[], None]] = []


@dataclass
class Library:
    """The library's side of one run."""

    world: World
    program: Program
    kept: dict[int, list[Account]] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    """The sizes of all units that were begun."""
    _starts: int = 0
    _outside: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def start(self, message: int) -> Run:
        """Begin an attempt: what an earlier one kept and read is gone."""
        self._starts += 1
        self.kept.pop(message, None)
        self.runs[message] = run = Run(self._starts)
        return run

    async def commit_outside(self, message: int, position: int, account: str, amount: int) -> bool:
        """Commit on another connection, and note what to undo if this attempt is not the last."""
        committed = await self.world.add(account, amount)
        if committed:
            self._outside.setdefault(message, []).append((account, amount))
        return committed

    async def undo_outside(self, numbers: Sequence[int]) -> None:
        """Undo what other connections committed during earlier attempts at these messages: they run again."""
        for number in numbers:
            for account, amount in self._outside.pop(number, ()):
                assert await self.world.add(account, -amount), "an abandoned unit still holds locks"

    async def wait_forever(self, tools: Tools) -> None:
        """Exceed the time."""
        await exceed(tools)

    def tools(self, number: int, context: Context, **given: Any) -> Tools:
        """Return a handler's tools."""

        def publish(what: Any) -> None:
            context.publish(Note(number, repr(what)))

        is_async = self.program.messages[number].kind.is_async
        return Tools(self, number, self.world.name, publish, is_async=is_async, **given)


class WatchedStore(SqlStore):
    """A SQL store that shows when a unit begins."""

    library: Library
    is_fencing = False

    async def begin(self, messages: Sequence[Incoming], *, isolated: bool = False) -> SqlUnit:
        """Undo what happened outside during earlier attempts, and begin."""
        if not self.is_fencing and messages:
            await self._database.settle()
            await self.library.undo_outside([int(each.id.rpartition("-")[2]) for each in messages])
            self.library.begun.append(len(messages))
        return await super().begin(messages, isolated=isolated)

    async def fence(self, unit: str, identity: Any, message: Incoming | None = None) -> Record | None:
        """Fence; the unit that this begins runs no handler."""
        self.is_fencing = True
        try:
            return await super().fence(unit, identity, message)
        finally:
            self.is_fencing = False


class Shop:
    """An endpoint with a handler of each kind, on one database."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = WatchedStore(world.database, "shop")
        self._library: Library

    async def run(self, program: Program, *, isolated: bool) -> Observed:
        """Deliver a program's messages."""
        await self._world.reset()
        live, library = Live(), Library(self._world, program)
        self._library = self._store.library = library
        handlers = host_of(self._endpoint()).handlers()  # without what those of another program have learned
        name, letters = uuid4().hex, MemoryDeadLetters(live, clock=self._world.database.clock)
        transport = MemoryTransport(live, "shop", clock=self._world.database.clock)
        ports = Ports(
            "shop", self._store, self._store, self._store, handlers, StoreAdmission(), NoArtifacts(), transport, letters
        )
        await transport.declare([Topology(endpoint="shop"), Topology(endpoint="sink", events=("Note",))])
        await transport.send([Send(message=each, to="shop") for each in self._incoming(program, name)])
        await self._deliver(program, ports, isolated=isolated)
        dead = await letters.page(Filter(endpoint="shop"), limit=1000)
        order = sorted(library.runs, key=lambda number: library.runs[number].started)
        return Observed(
            rows=await self._world.rows(),
            reads={number: run.reads for number, run in library.runs.items()},
            sent=await self._sent(live),
            failed={int(each.message.id.rpartition("-")[2]): each.reason for each in dead if each.message is not None},
            entities=await self._entities(name, program),
            runs=library.runs,
            order=order,
        )

    @property
    def begun(self) -> list[int]:
        """The sizes of the units of the last run."""
        return self._library.begun

    async def _deliver(self, program: Program, ports: Ports, *, isolated: bool) -> None:
        for size in program.sizes():
            report = await deliver(await ports.transport.receive(size, 0), ports, isolated=isolated)
            _check(report)
        while left := await ports.transport.receive(100, 0):  # what was released
            _check(await deliver(left, ports, isolated=isolated))

    def _incoming(self, program: Program, name: str) -> Iterator[Incoming]:
        for number, message in enumerate(program.messages):
            body, content_type = encode_body(Work(number, name))
            type_ = _type_of(message, self._world.name)
            yield Incoming(id=f"{name}-{number}", source="web", type=type_, body=body, datacontenttype=content_type)

    async def _sent(self, live: Live) -> dict[int, list[Any]]:
        sink = MemoryTransport(live, "sink", clock=self._world.database.clock)
        found: dict[int, list[Any]] = {}
        for each in await sink.receive(10_000, 0):
            note = decode(each.body, type=Note)
            found.setdefault(note.number, []).append(note.what)
        return found

    async def _entities(self, name: str, program: Program) -> dict[str, int]:
        if not any(each.kind is Kind.ENTITY for each in program.messages):
            return {}
        key = f"Counter/{name}"
        probe = Incoming(id=f"probe-{name}-0", source="test", type="probe", body=b"", unit=key)
        unit = await SqlStore(self._world.database, "shop").begin([probe])
        entities = unit.resources.get(Entities)
        assert isinstance(entities, Entities)
        state = entities.read(key)
        unit.abandon()
        await self._world.database.settle()
        return {} if state is None else {"e": decode(state, type=Counter).count}

    def _endpoint(self) -> Endpoint:
        shop = Endpoint("shop", store=self._world.source, transport="memory://", retry=Retry(immediate=0, delayed=0))

        @shop.provide(scope="message")
        def repository(session: AsyncSession) -> Iterator[Repository]:
            made = Repository(session)
            yield made
            for clean in made.cleanups:
                clean()

        for kind, handler in self._all().items():
            if kind is Kind.DRIVER and self._world.name != ASYNCPG:
                continue
            options: dict[str, Any] = {"entity": Counter, "key": "key"} if kind is Kind.ENTITY else {}
            shop.handler(type=kind.value, **options)(handler())
            shop.handler(type=f"{kind.value}-late", timeout=TIMEOUT, **options)(handler())
            shop.handler(type=f"{kind.value}-alone", **options)(handler())
        return shop

    def _message(self, work: Work) -> Message:
        return self._library.program.messages[work.number]

    def _tools(self, number: int, context: Context, **given: Any) -> Tools:
        return self._library.tools(number, context, **given)

    def _all(self) -> dict[Kind, Callable[[], Any]]:  # noqa: C901 - one function for each kind
        tools, message = self._tools, self._message

        def session_() -> Any:
            async def handle(work: Work, session: AsyncSession, context: Context) -> None:
                await play(message(work), tools(work.number, context, session=session))

            return handle

        def both() -> Any:
            async def handle(work: Work, session: AsyncSession, connection: AsyncConnection, context: Context) -> None:
                await play(message(work), tools(work.number, context, session=session, given=connection))

            return handle

        def connection_() -> Any:
            async def handle(work: Work, connection: AsyncConnection, context: Context) -> None:
                await play(message(work), tools(work.number, context, given=connection))

            return handle

        def driver_() -> Any:
            async def handle(work: Work, driver: asyncpg.Connection, context: Context) -> None:
                await play(message(work), tools(work.number, context, driver=driver))

            return handle

        def provider() -> Any:
            async def handle(work: Work, repository: Repository, context: Context) -> None:
                given = {"session": repository.session, "cleanups": repository.cleanups}
                await play(message(work), tools(work.number, context, **given))

            return handle

        def entity() -> Any:
            async def handle(work: Work, counter: Counter, session: AsyncSession, context: Context) -> None:
                await play(message(work), tools(work.number, context, session=session, entity=counter))

            return handle

        def def_() -> Any:
            def handle(work: Work, session: Session, connection: Connection, context: Context) -> None:
                given = {"session": Stepwise(session), "given": Stepwise(connection)}
                drive(play(message(work), tools(work.number, context, **given)))

            return handle

        def def_session() -> Any:
            def handle(work: Work, session: Session, context: Context) -> None:
                drive(play(message(work), tools(work.number, context, session=Stepwise(session))))

            return handle

        def def_connection() -> Any:
            def handle(work: Work, connection: Connection, context: Context) -> None:
                drive(play(message(work), tools(work.number, context, given=Stepwise(connection))))

            return handle

        return {
            Kind.SESSION: session_,
            Kind.BOTH: both,
            Kind.CONNECTION: connection_,
            Kind.DRIVER: driver_,
            Kind.PROVIDER: provider,
            Kind.ENTITY: entity,
            Kind.DEF: def_,
            Kind.DEF_SESSION: def_session,
            Kind.DEF_CONNECTION: def_connection,
        }


def _type_of(message: Message, database: str) -> str:
    """Return an own type for messages that need a database transaction of their own: the endpoint remembers it by type."""
    if message.ending.value == "time out":
        return f"{message.kind.value}-late"
    return f"{message.kind.value}-alone" if needs_own(message.operations, database) else message.kind.value


def _check(report: BatchReport) -> None:
    assert not report.trouble, report.trouble


__all__ = ["Library", "Shop", "Work"]
