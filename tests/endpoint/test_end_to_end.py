"""Whole endpoints on SQLite: a store, a queue, workers, and what is left at the end."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from sqlalchemy import Connection, String, event, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.util import await_only

from onceonly import Context, Endpoint, IdentityField, Off, Reject, Retry, RetryLater, WorkerSettings
from onceonly.assembly import open_database, open_dead_letters, open_transport
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler, SchemaMissing
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.observe.observer import Point, PortCall

FAST = WorkerSettings(wait=0.02)


class Base(DeclarativeBase):
    """The users' own tables."""


class Line(Base):
    """What a handler did; nothing protects it from repetition."""

    __tablename__ = "lines"
    number: Mapped[int] = mapped_column(primary_key=True)
    endpoint: Mapped[str] = mapped_column(String(20))
    what: Mapped[str] = mapped_column(String(40))


@dataclass
class PlaceOrder:
    """A command."""

    order_id: str
    total: int = 0


class OrderPlaced(pydantic.BaseModel):
    """An event."""

    order_id: str


class Watch:
    """Lets a test wait until a port call was made for so many items."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._counts: Counter[Point] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count the items once the call has returned."""
        yield
        async with self._changed:
            self._counts[call.point] += call.count
            self._changed.notify_all()

    async def until(self, point: Point, count: int) -> None:
        """Return when calls of this name were made for at least `count` items."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._counts[point] >= count)


class TwoDatabases:
    """Two databases in a folder, and what is in them."""

    def __init__(self, folder: Path) -> None:
        """Use this folder."""
        self.store = f"sqlite:///{folder}/store.db"
        self.queue = f"sqlite:///{folder}/queue.db"

    def endpoint(self, name: str = "shop", **settings: Any) -> Endpoint:
        """Make an endpoint."""
        given = {"metadata": Base.metadata, "worker": FAST, "retry": Retry(first_delay=0.01)} | settings
        return Endpoint(name, store=self.store, transport=self.queue, **given)

    async def send(self, *bodies: object, to: str = "shop", type_: str = "PlaceOrder", copies: int = 1) -> None:
        """Send each body, with the ids 1, 2, ..., this many times."""
        sends = [
            Send(message=Message(id=str(number), source="web", type=type_, body=_encoded(body)), to=to)
            for number, body in enumerate(bodies, 1)
        ]
        async with open_transport(self.queue, "web") as transport:
            assert set(await transport.send(sends * copies)) == {Answer.TAKEN}

    async def lines(self) -> list[tuple[str, str]]:
        """Return what handlers wrote, sorted."""
        async with open_database(self.store) as database, database.reading() as connection:
            return sorted((line.endpoint, line.what) for line in await connection.execute(select(Line.__table__)))

    async def dead(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters."""
        async with open_dead_letters(self.store) as letters:
            return await letters.page(Filter())

    async def at_rest(self) -> bool:
        """Tell whether no message waits, no record is left."""
        async with open_database(self.queue) as database, database.reading() as connection:
            waiting = await connection.exec_driver_sql("SELECT count(*) FROM onceonly_messages")
            messages = waiting.scalar_one()
        async with open_database(self.store) as database, database.reading() as connection:
            left = await connection.exec_driver_sql("SELECT count(*) FROM onceonly_records")
            return (messages, left.scalar_one()) == (0, 0)


@pytest.fixture
def databases(tmp_path: Path) -> TwoDatabases:
    """Two databases in this test's own folder."""
    return TwoDatabases(tmp_path)


def _encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def write_down(shop: Endpoint) -> Endpoint:
    """Return an endpoint a handler that writes a line."""

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
        session.add(Line(endpoint=context.endpoint, what=order.order_id))

    return shop


async def test_copies_are_handled_once_and_so_is_what_they_cause(databases: TwoDatabases) -> None:
    """Two endpoints in one process: a command, sent three times, and the event it leads to."""
    shop, mail = databases.endpoint("shop"), databases.endpoint("mail")

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
        session.add(Line(endpoint="shop", what=order.order_id))
        context.publish(OrderPlaced(order_id=order.order_id))

    @mail.handler
    async def placed(event: OrderPlaced, connection: AsyncConnection) -> None:
        await connection.execute(Line.__table__.insert(), {"endpoint": "mail", "what": event.order_id})

    at_shop, at_mail = Watch(), Watch()
    async with host_of(shop).running(observer=at_shop), host_of(mail).running(observer=at_mail):
        await databases.send(PlaceOrder("a"), PlaceOrder("b"), copies=3)
        await at_shop.until(Point.ACK, 6)
        await at_mail.until(Point.ACK, 2)
    assert await databases.lines() == [("mail", "a"), ("mail", "b"), ("shop", "a"), ("shop", "b")]
    assert await databases.dead() == ()
    assert await databases.at_rest()


async def test_without_deduplication_copies_are_handled_again(databases: TwoDatabases) -> None:
    """Off is honest at-least-once."""
    watch = Watch()
    shop = write_down(databases.endpoint(deduplication=Off(), worker=WorkerSettings(batch_size=1, wait=0.02)))
    async with host_of(shop).running(observer=watch):
        await databases.send(PlaceOrder("a"), copies=3)
        await watch.until(Point.ACK, 3)
    assert await databases.lines() == [("shop", "a")] * 3


async def test_a_row_that_nobody_can_read_becomes_a_dead_letter(databases: TwoDatabases) -> None:
    """With the reason; the queue goes on, also where a rule gives foreign messages their identity."""
    shop, watch = write_down(databases.endpoint(identity=IdentityField("order_id"))), Watch()
    async with shop.opened():
        """Declare the queue."""
    async with open_database(databases.queue) as database, database.writing() as connection:
        row = "('shop', 0, 0, '', 'no JSON', '{\"order_id\": \"bad\"}')"
        await connection.exec_driver_sql(
            f"INSERT INTO onceonly_messages (queue, visible_at, leases, receipt, headers, body) VALUES {row}"  # noqa: S608 - its own
        )
    await databases.send(PlaceOrder("good"))
    async with host_of(shop).running(observer=watch):
        await watch.until(Point.ACK, 2)
    assert await databases.lines() == [("shop", "good")]
    (letter,) = await databases.dead()
    assert "its headers are not a JSON list" in letter.reason
    assert letter.body == b'{"order_id": "bad"}'


async def test_bad_messages_become_dead_letters_with_their_reasons_and_good_ones_are_handled(databases: TwoDatabases) -> None:
    """In one batch; the worker lives on."""
    shop = databases.endpoint(unknown_types_wait=0)

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession) -> None:
        session.add(Line(endpoint="shop", what=order.order_id))
        await session.flush()
        if order.total < 0:
            raise Reject("a negative total")

    watch = Watch()
    async with shop.opened():
        """Declare the queue."""
    await databases.send(PlaceOrder("good"), b"{", PlaceOrder("bad", -1))
    async with open_transport(databases.queue, "web") as transport:
        nameless = Send(message=Message(id="", source="web", type="PlaceOrder", body=b"{}"), to="shop")
        stranger = Send(message=Message(id="s", source="web", type="Unheard", body=b"{}"), to="shop")
        await transport.send([nameless, stranger])
    async with host_of(shop).running(observer=watch):
        await watch.until(Point.DEAD_LETTER, 4)
        await watch.until(Point.ACK, 5)
        await databases.send(PlaceOrder("x"))
        await watch.until(Point.DEAD_LETTER, 5)  # id 1 came with another body: its sender re-uses ids
    assert await databases.lines() == [("shop", "good")]
    reasons = sorted(letter.reason for letter in await databases.dead())
    assert [reason[:20] for reason in reasons] == [
        "a negative total",
        "an earlier message h",
        "no handler of endpoi",
        "no identity: the Clo",
        "the body is not a va",
    ]


async def test_a_failing_handler_is_retried_and_its_traces_are_gone(databases: TwoDatabases) -> None:
    """Twice an exception after a flush, then asked to wait, then it works: one line is left."""
    shop, tries = databases.endpoint(), []

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
        session.add(Line(endpoint="shop", what=f"try {len(tries)}"))
        await session.flush()
        context.publish(OrderPlaced(order_id=order.order_id))
        tries.append(context.attempts)
        if len(set(tries)) < 3:
            raise ValueError("not yet")
        if tries.count(tries[-1]) < 2:
            raise RetryLater(0.01)

    watch = Watch()
    async with host_of(shop).running(observer=watch):
        await databases.send(PlaceOrder("a"))
        await watch.until(Point.FORGET, 1)
    assert await databases.lines() == [("shop", f"try {len(tries) - 1}")]
    assert set(tries) == {0, 1, 2}
    assert await databases.dead() == ()


async def test_def_handlers_use_the_synchronous_session_of_the_same_unit(databases: TwoDatabases) -> None:
    """With the ORM, and with all that it loads lazily."""
    shop = databases.endpoint()

    @shop.handler
    def place(order: PlaceOrder, session: Session, context: Context) -> None:
        known = session.scalar(select(func.count()).select_from(Line))
        session.add(Line(endpoint="shop", what=f"{order.order_id} after {known}"))
        if order.total:
            context.send(PlaceOrder("again"), to="shop", delay=0.02)

    watch = Watch()
    async with host_of(shop).running(observer=watch):
        await databases.send(PlaceOrder("a", 1))
        await watch.until(Point.ACK, 2)
    assert await databases.lines() == [("shop", "a after 0"), ("shop", "again after 1")]


async def test_plain_json_of_a_foreign_sender_is_handled_once(databases: TwoDatabases) -> None:
    """No CloudEvents attributes at all: the id is a field, the type that of the only handler."""
    watch = Watch()
    shop = write_down(databases.endpoint(identity=IdentityField("order_id")))
    async with host_of(shop).running(observer=watch):
        foreign = Send(message=Message(id="", source="", type="", body=b'{"order_id":"a","total":1,"more":[]}'), to="shop")
        async with open_transport(databases.queue, "web") as transport:
            assert await transport.send([foreign] * 3) == (Answer.TAKEN,) * 3
        await watch.until(Point.ACK, 3)
    assert await databases.lines() == [("shop", "a")]


async def test_a_start_that_fails_is_raised_where_it_was_asked_for(databases: TwoDatabases) -> None:
    """Not in some task that nobody looks at."""
    shop = databases.endpoint()
    with pytest.raises(InvalidHandler):
        async with shop.running():
            raise AssertionError("never runs")
    write_down(shop)
    without = replace(shop.settings, store=databases.store + "?create=false")
    with pytest.raises(SchemaMissing):
        async with host_of(shop).running(settings=without):
            raise AssertionError("never runs")


async def test_an_error_of_the_surrounding_application_stops_the_worker_and_is_kept(databases: TwoDatabases) -> None:
    """The exit is graceful whatever the reason."""
    with pytest.raises(KeyError, match="theirs"):
        async with write_down(databases.endpoint()).running():
            raise KeyError("theirs")


async def test_a_stop_lets_the_handler_in_work_finish(databases: TwoDatabases) -> None:
    """Within the grace time; then it is committed and acknowledged."""
    shop, started, go_on = databases.endpoint(), asyncio.Event(), asyncio.Event()

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession) -> None:
        started.set()
        await go_on.wait()
        session.add(Line(endpoint="shop", what=order.order_id))

    async with shop.running():
        await databases.send(PlaceOrder("a"))
        await started.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert await databases.lines() == [("shop", "a")]
    assert await databases.at_rest()


SLOW = text("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1000000) SELECT max(x) FROM c")


async def ask_slowly(order: PlaceOrder, session: AsyncSession) -> None:
    """Take much too long."""
    session.add(Line(endpoint="shop", what=order.order_id))
    await session.execute(SLOW)


def ask_slowly_sync(order: PlaceOrder, session: Session) -> None:
    """Take much too long."""
    session.add(Line(endpoint="shop", what=order.order_id))
    session.execute(SLOW)


def _ask_until_refused(_mapper: object, connection: Connection, _line: Line) -> None:
    while True:
        connection.execute(text("SELECT 1"))


def write_slowly_sync(order: PlaceOrder, session: Session) -> None:
    """Be in a flush when the time is over: the row is inserted, and the flush goes on."""
    event.listen(Line, "after_insert", _ask_until_refused)
    try:
        session.add(Line(endpoint="shop", what=order.order_id))
        session.flush()
    finally:
        event.remove(Line, "after_insert", _ask_until_refused)


def _fail(_mapper: object, _connection: Connection, _line: Line) -> None:
    raise ValueError("not this line")


def _wait_until_cancelled(*_: object) -> None:
    """Wait for the time-out, unless a busy machine made it come before the rollback: there is no second one."""
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        await_only(asyncio.Event().wait())


def _wait_in_rollback(_connection: object, _cursor: object, statement: str, *_: object) -> None:
    if statement.startswith("ROLLBACK TO"):
        _wait_until_cancelled()


async def undo_slowly(order: PlaceOrder, session: AsyncSession) -> None:
    """Be in the rollback to the savepoint, which a failed flush asks for, when the time is over."""
    engine = (await session.connection()).sync_connection.engine
    event.listen(Line, "after_insert", _fail)
    event.listen(engine, "before_cursor_execute", _wait_in_rollback)
    try:
        session.add(Line(endpoint="shop", what=order.order_id))
        await session.flush()
    finally:
        event.remove(Line, "after_insert", _fail)
        event.remove(engine, "before_cursor_execute", _wait_in_rollback)


@pytest.mark.parametrize("handler", [ask_slowly, ask_slowly_sync, write_slowly_sync, undo_slowly])
async def test_a_time_out_in_the_middle_of_a_query_is_that_messages_failure_alone(
    databases: TwoDatabases, handler: Any
) -> None:
    """Whatever the driver makes of being interrupted; the others of its batch are handled."""
    shop = write_down(databases.endpoint())
    shop.handler(type="Slow", timeout=0.02, retry=Retry(immediate=0, delayed=0))(handler)
    async with shop.opened():
        """Declare the queue."""
    await databases.send(PlaceOrder("a"))
    async with open_transport(databases.queue, "web") as transport:
        body = _encoded(PlaceOrder("slow"))
        await transport.send([Send(message=Message(id="s", source="web", type="Slow", body=body), to="shop")])
    watch = Watch()
    async with host_of(shop).running(observer=watch):
        await watch.until(Point.DEAD_LETTER, 1)
        await watch.until(Point.ACK, 2)
    assert await databases.lines() == [("shop", "a")]
    (letter,) = await databases.dead()
    assert letter.reason == f"handler {__name__}.{handler.__qualname__} took longer than 0.02 s"
