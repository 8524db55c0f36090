"""Middleware: what runs around a handler, in which order, and what its errors mean."""

# ruff: noqa: ARG001 - functions under test need not use what they ask for

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly import Context, Endpoint, Reject, Response, Retry, RetryLater, WorkerSettings, testing
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler
from onceonly.model.errors import HandlerAbandoned
from onceonly.model.message import FailureKind
from onceonly.types import CallNext
from tests.endpoint.harness import STILL, effects, endpoint, failure, incoming, resources


@dataclass
class Order:
    """What comes."""

    id: str


@dataclass
class Seen:
    """What a middleware sends."""

    id: str


@dataclass
class Account:
    """An entity."""

    id: str
    balance: int = 0


class Base(DeclarativeBase):
    """The user's tables."""


class Line(Base):
    """A row."""

    __tablename__ = "lines"
    id: Mapped[str] = mapped_column(primary_key=True)


def shop_with(*layers: Callable[..., Any], handler: Callable[..., Any] | None = None, **settings: Any) -> Endpoint:
    """Make an endpoint with this middleware."""
    made = endpoint(**settings)
    for each in layers:
        made.middleware(each)

    @made.handler
    async def take(order: Order, context: Context) -> None:
        """Do nothing, or what was given."""
        if handler is not None:
            handler(order)

    return made


async def test_the_first_one_registered_is_outermost() -> None:
    """Each sees the context, and the handler runs innermost."""
    journal: list[str] = []

    def layer(name: str) -> Callable[..., Any]:
        async def around(context: Context, call_next: CallNext) -> None:
            journal.append(f"{name} {context.message.id}")
            await call_next()
            journal.append(f"{name} ends")

        return around

    await effects(shop_with(layer("outer"), layer("inner"), handler=lambda order: journal.append(f"handler {order.id}")))
    assert journal == ["outer m1", "inner m1", "handler 1", "inner ends", "outer ends"]


@pytest.mark.parametrize("style", ["async def", "def"])
@pytest.mark.parametrize("fails", [False, True])
async def test_it_works_in_the_handlers_unit(tmp_path: Path, style: str, fails: bool) -> None:  # noqa: FBT001 - a parameter
    """It uses the same session, sends messages, and sets context variables; all of it is committed once or not at all."""
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://x", metadata=Base.metadata, retry=Retry(delayed=0))
    seen: list[str] = []

    @shop.middleware
    async def for_tenant(context: Context, call_next: CallNext, session: AsyncSession) -> None:
        tenant.set(context.message.header("tenant"))
        session.add(Line(id=f"before {context.message.id}"))
        await call_next()
        context.publish(Seen(context.message.id))
        assert (await session.execute(text("SELECT count(*) FROM lines"))).scalar() == 2
        if fails:
            raise ValueError("no tenant")

    if style == "async def":

        @shop.handler
        async def take(order: Order, session: AsyncSession) -> None:
            seen.append(tenant.get())
            session.add(Line(id=order.id))
    else:

        @shop.handler
        def take_at_once(order: Order, session: Session) -> None:
            seen.append(tenant.get())
            session.add(Line(id=order.id))

    async with testing.run(shop, directory=tmp_path, raise_failures=False) as t:
        await t.deliver(t.message(Order("1"), id="a", headers={"tenant": "acme"}), copies=2)
        assert {str(each.exception) for each in t.failures} == ({"no tenant"} if fails else set())
        async with t.session() as session:
            lines = sorted((await session.execute(text("SELECT id FROM lines"))).scalars())
        assert set(seen) == {"acme"}
        if fails:
            assert (lines, t.sent, [each.reason for each in t.dead_letters][:1]) == ([], [], ["ValueError: no tenant"])
        else:
            assert (seen, lines, t.sent, t.dead_letters) == (["acme"], ["1", "before a"], [Seen("a")], ())


async def test_a_def_handler_in_a_thread_is_inside_it(tmp_path: Path) -> None:
    """As in an application: it sees the middleware's context variables, and both work in one unit."""
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    shop = Endpoint(
        "shop",
        store=f"sqlite:///{tmp_path}/shop.db",
        transport=f"sqlite:///{tmp_path}/queue.db",
        metadata=Base.metadata,
        worker=WorkerSettings(def_handlers="thread"),
    )
    loop, done, found = asyncio.get_running_loop(), asyncio.Event(), list[object]()

    @shop.middleware
    async def for_tenant(context: Context, call_next: CallNext, session: AsyncSession) -> None:
        tenant.set(context.message.header("tenant"))
        await call_next()
        found.append((await session.execute(text("SELECT id FROM lines"))).scalars().all())
        loop.call_soon(done.set)

    @shop.handler
    def take(order: Order, session: Session) -> None:
        found.append((tenant.get(), threading.current_thread() is threading.main_thread()))
        session.add(Line(id=order.id))

    async with shop.running():
        async with shop.transaction() as tx:
            tx.send(Order("1"), to="shop", headers={"tenant": "acme"})
        async with asyncio.timeout(60):
            await done.wait()
    assert found == [("acme", False), ["1"]]


async def test_a_thread_that_is_left_behind_fails_whatever_the_middleware_does() -> None:
    """Its time is over."""
    held = threading.Event()

    async def catching(context: Context, call_next: CallNext) -> None:
        with suppress(BaseException):
            await call_next()

    worker = WorkerSettings(def_handlers="thread", grace=0.2)
    shop = endpoint(timeout=0.1, worker=worker)
    shop.middleware(catching)

    @shop.handler
    def take(order: Order) -> None:
        held.wait(60)

    try:
        with pytest.raises(HandlerAbandoned, match="took longer"):
            await effects(shop)
    finally:
        held.set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("x"), FailureKind.EXCEPTION), (Reject("not ours"), FailureKind.REJECTED), (RetryLater(5), FailureKind.LATER)],
)
@pytest.mark.parametrize("after", [False, True])
async def test_its_exception_counts_as_the_handlers(error: Exception, kind: FailureKind, after: bool) -> None:  # noqa: FBT001 - a parameter
    """Before the handler, and after it."""

    async def failing(context: Context, call_next: CallNext) -> None:
        if after:
            await call_next()
        raise error

    found = await failure(shop_with(failing))
    assert found.kind is kind
    assert ("failing" in found.traceback) == (kind is FailureKind.EXCEPTION)


async def test_a_handlers_exception_counts_even_if_it_is_caught() -> None:
    """Its work is never kept by halves. It may be replaced by another exception."""

    async def catching(context: Context, call_next: CallNext) -> None:
        try:
            await call_next()
        except ValueError:
            context.publish(Seen("caught"))

    async def translating(context: Context, call_next: CallNext) -> None:
        try:
            await call_next()
        except ValueError as error:
            raise Reject(f"hopeless: {error}") from error

    def handler(order: Order) -> None:
        raise ValueError("no stock")

    found = await failure(shop_with(catching, handler=handler))
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "ValueError: no stock")
    assert found.traceback.splitlines()[1].endswith("in take")
    assert (await failure(shop_with(translating, handler=handler))).reason == "hopeless: no stock"
    assert (await failure(shop_with(catching, translating, handler=handler))).reason == "hopeless: no stock"


async def test_a_handler_that_is_not_called_does_not_run() -> None:
    """The message counts as handled."""

    async def skipping(context: Context, call_next: CallNext) -> None:
        context.publish(Seen("skipped"))

    (send,) = await effects(shop_with(skipping, handler=lambda _: pytest.fail("it ran")))
    assert send.message.body == b'{"id":"skipped"}'


async def test_a_handler_runs_once() -> None:
    """A second call would keep the effects of the first."""
    ran: list[str] = []

    async def repeating(context: Context, call_next: CallNext) -> None:
        await call_next()
        await call_next()

    found = await failure(shop_with(repeating, handler=lambda order: ran.append(order.id)))
    assert (ran, "called call_next twice" in found.reason) == (["1"], True)


@pytest.mark.parametrize("turns", [0, 3])
async def test_a_handler_that_is_not_awaited_fails(turns: int) -> None:
    """It would go on after its unit, or never run."""
    left: list[asyncio.Task[object]] = []
    begun: list[str] = []

    async def hasty(context: Context, call_next: CallNext) -> None:
        left.append(asyncio.ensure_future(call_next()))
        for _ in range(turns):
            await asyncio.sleep(0)

    made = endpoint()
    made.middleware(hasty)

    @made.handler
    async def take(order: Order) -> None:
        begun.append(order.id)
        await asyncio.Event().wait()

    assert "returned before its call_next() had ended" in (await failure(made)).reason
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    assert begun == (["1"] if turns else [])


@pytest.mark.filterwarnings("ignore:coroutine")
async def test_a_missing_await_fails() -> None:
    """The message must not count as handled."""

    async def forgetful(context: Context, call_next: CallNext) -> None:
        call_next()

    assert "await it" in (await failure(shop_with(forgetful))).reason


async def test_what_a_middleware_kept_cannot_be_called_later() -> None:
    """Its unit has ended."""
    kept: list[CallNext] = []

    async def keeping(context: Context, call_next: CallNext) -> None:
        kept.append(call_next)

    assert await effects(shop_with(keeping)) == ()
    with pytest.raises(InvalidHandler, match="after it had returned"):
        await kept[0]()


async def test_it_takes_its_handlers_time() -> None:
    """The time-out ends both."""

    async def slow(context: Context, call_next: CallNext) -> None:
        await call_next()
        await asyncio.Event().wait()

    assert (await failure(shop_with(slow, timeout=0.05))).kind is FailureKind.TIMEOUT


async def test_providers_are_there_and_cleaned_up_afterwards() -> None:
    """Also those that only a middleware asks for, once for each message."""
    journal: list[str] = []

    class Clock:
        """What a provider makes."""

    async def timing(context: Context, call_next: CallNext, clock: Clock) -> None:
        journal.append("before")
        await call_next()

    shop = shop_with(timing, handler=lambda _: journal.append("handler"))

    @shop.provide(scope="message")
    async def make() -> AsyncIterator[Clock]:
        journal.append("made")
        yield Clock()
        journal.append("gone")

    await effects(shop)
    assert journal == ["made", "before", "handler", "gone"]


async def test_an_entity_is_stored_whatever_the_middleware_returns() -> None:
    """`call_next` returns what the handler returned."""
    bank = endpoint(name="bank", store="memory://bank")
    returned: list[object] = []

    @bank.middleware
    async def forgetful(context: Context, call_next: CallNext) -> str:
        returned.append(await call_next())
        return "ignored"

    @bank.handler(entity=Account, key="id")
    async def pay(order: Order, account: Account) -> Account:
        return Account(order.id, account.balance + 1)

    async with testing.run(bank) as t:
        await t.deliver(Order("a"), copies=2)
        assert await t.entity(Account, "a") == Account("a", 1)
        assert returned == [Account("a", 1)]


async def test_responders_are_inside_it() -> None:
    """What the responder returned is the answer."""
    bank = endpoint(name="bank", store="memory://bank")

    @bank.middleware
    async def marking(context: Context, call_next: CallNext) -> None:
        await call_next()
        context.publish(Seen(context.message.type))

    @bank.responder
    async def charge(order: Order) -> Response:
        return Response(status=201)

    handlers = host_of(bank).handlers(STILL)
    answer, decision = await handlers.respond(incoming(), await resources())
    assert answer == Response(status=201)
    assert [each.message.body for each in decision.effects] == [b'{"id":"Order"}']


def test_what_is_wrong_with_it_is_reported_at_start() -> None:
    """All of it, with its name."""
    shop = shop_with()

    @shop.middleware
    def blocking(context: Context, call_next: CallNext) -> None:
        """Not async."""

    @shop.middleware
    async def short(context: Context) -> None:
        """Too few parameters."""

    @shop.middleware
    async def swapped(call_next: CallNext, context: Context) -> None:
        """The wrong way round."""

    @shop.middleware
    async def wishing(context: Context, call_next: CallNext, wish: Account) -> None:
        """Asks for what nothing gives."""

    @shop.middleware
    async def plain(context, call_next) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 - what the test is about
        """Fine."""

    with pytest.raises(InvalidHandler) as caught:
        shop.topology()
    problems = [line.strip(" *") for line in str(caught.value).splitlines()[1:]]
    own = "its first two parameters must be the Context and call_next"
    expected = [
        ("blocking", "it must be an `async def` function"),
        ("short", own),
        ("swapped", own),
        ("wishing", "wish: Account cannot be injected"),
    ]
    assert len(problems) == len(expected)
    for problem, (name, words) in zip(problems, expected, strict=True):
        assert f".{name}: {words}" in problem
    with pytest.raises(InvalidHandler, match="is not a function"):
        shop.middleware(object())  # type: ignore[type-var] # what the test is about


@pytest.mark.parametrize("point", ["before-commit", "after-commit", "after-dispatch"])
async def test_it_takes_effect_once_wherever_the_process_dies(tmp_path: Path, point: str) -> None:
    """Like its handler."""
    shop = Endpoint("shop", store="sqlite:///x.db", transport="memory://x", metadata=Base.metadata)

    @shop.middleware
    async def audit(context: Context, call_next: CallNext, session: AsyncSession) -> None:
        session.add(Line(id=context.message.id))
        await call_next()
        context.publish(Seen(context.message.id))

    @shop.handler
    async def take(order: Order) -> None:
        """Do nothing."""

    async with testing.run(shop, directory=tmp_path) as t:
        await t.deliver(Order("1"), id="a", copies=2, crash_at=point)
        assert t.sent == [Seen("a")]
        async with t.session() as session:
            assert (await session.execute(text("SELECT id FROM lines"))).scalars().all() == ["a"]
