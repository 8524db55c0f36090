"""`def` handlers of an endpoint that runs inside an application: in threads, with a time limit, and beside others."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Context, Endpoint, Retry, WorkerSettings
from onceonly.adapters.memory.store import Notebook
from onceonly.assembly import open_dead_letters, open_transport
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidEffect, WorkerStopped
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import FailureKind, Message, Send
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.background import Background
from onceonly.runtime.worker import handler_thread
from tests.endpoint.harness import effects, failure, incoming

TENANT = ContextVar("tenant", default="")


@dataclass
class Order:
    """What is sent."""

    id: str


@pytest.fixture
def place() -> str:
    """Name a place in memory that no other test uses."""
    return f"memory://{uuid4().hex}"


def endpoint(place: str, timeout: float = 30.0, **worker: Any) -> Endpoint:
    """Make an endpoint whose messages are tried once."""
    settings = WorkerSettings(wait=0.05, **worker)
    return Endpoint("shop", store=place, transport=place, retry=Retry(immediate=0, delayed=0), timeout=timeout, worker=settings)


def order(name: str) -> Message:
    """Make a message."""
    return Message(id=name, source="web", type="Order", body=b'{"id":"%s"}' % name.encode())


@asynccontextmanager
async def working(shop: Endpoint, *ids: str) -> AsyncIterator[Background]:
    """Send orders, all in one batch, and run the endpoint in this application."""
    url = shop.settings.transport
    async with open_transport(url, "shop") as queue:
        await queue.declare([shop.topology()])
        await queue.send([Send(message=order(name), to="shop") for name in ids])
        async with shop.running() as background:
            yield background


async def letters(place: str, count: int) -> list[DeadLetter]:
    """Wait for so many dead letters."""
    async with open_dead_letters(place) as kept:
        while len(found := await kept.page(Filter())) < count:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    return list(found)


async def letter(place: str) -> DeadLetter:
    """Wait for a dead letter."""
    return (await letters(place, 1))[0]


async def test_it_runs_in_a_thread_with_the_callers_context_variables(place: str) -> None:
    """Unless the endpoint says otherwise."""
    shop, seen = endpoint(place), []

    @shop.handler
    def handle(_order: Order, context: Context) -> None:
        seen.append((threading.get_ident() == threading.main_thread().ident, TENANT.get()))
        context.publish({}, type="handled")

    TENANT.set("acme")
    assert [send.message.type for send in await effects(shop)] == ["handled"]
    assert seen == [(False, "acme")]


async def test_it_runs_in_the_event_loop_where_the_endpoint_says_so(place: str) -> None:
    """As under `onceonly run`."""
    shop, seen = endpoint(place, def_handlers="loop"), []

    @shop.handler
    def handle(_order: Order) -> None:
        seen.append(threading.get_ident())

    await effects(shop)
    assert seen == [threading.get_ident()]


async def test_it_may_return_something_to_await(place: str) -> None:
    """A decorator around an `async def` makes such a function; the event loop awaits it."""
    shop, seen = endpoint(place), []

    async def work(order: Order) -> None:
        seen.append((order.id, threading.get_ident()))

    @shop.handler
    def handle(order: Order) -> Any:
        return work(order)

    await effects(shop, incoming({"id": "1"}))
    assert seen == [("1", threading.get_ident())]


async def test_middleware_stays_in_the_event_loop_and_sees_its_result(place: str) -> None:
    """The handler inside of it has a thread; its context variables are those that the middleware has set."""
    shop, seen = endpoint(place), []

    @shop.middleware
    async def tenant(_context: Context, call_next: Callable[[], Awaitable[object]]) -> None:
        TENANT.set("of the middleware")
        seen.append(threading.get_ident())
        await call_next()
        seen.append(threading.get_ident())

    @shop.handler
    def handle(_order: Order) -> None:
        seen.append(TENANT.get())

    await effects(shop)
    assert seen == [threading.get_ident(), "of the middleware", threading.get_ident()]


async def test_it_fails_by_its_own_error_with_its_own_traceback(place: str) -> None:
    """The traceback begins in the user's function, as ever."""
    shop = endpoint(place)

    @shop.handler
    def handle(_order: Order) -> None:
        raise ValueError("no such customer")

    found = await failure(shop)
    assert (found.kind, found.reason) == (FailureKind.EXCEPTION, "ValueError: no such customer")
    assert found.traceback.count("File ") == 1


async def test_one_that_does_not_end_costs_its_own_message(place: str) -> None:
    """The others of its unit are handled once, the worker goes on, and what the thread does later is refused."""
    shop, goes_on, late, runs = endpoint(place, timeout=0.05, grace=0.05), threading.Event(), [], []
    handled = asyncio.Event()
    loop = asyncio.get_running_loop()

    @shop.handler
    def handle(order: Order, context: Context, notes: Notebook) -> None:
        runs.append(order.id)
        if order.id == "endless":
            goes_on.wait(60)
            try:
                context.publish({}, type="late")
            except InvalidEffect as error:
                late.append(error)
            notes.write("endless", "late")
        elif order.id == "after":
            loop.call_soon_threadsafe(handled.set)

    async with working(shop, "before", "endless", "after") as background:
        kept = await letter(place)
        await handled.wait()
        assert background.failure == ""
        ports = host_of(shop).bound_ports()
        assert ports is not None
        goes_on.set()
        while not late:  # noqa: ASYNC110 - the thread has no way to tell: it is refused everything
            await asyncio.sleep(0.001)
        unit = await ports.store.begin([order("before"), order("after")])
        assert not unit.found.new
        unit.abandon()
    assert kept.message is not None
    assert (kept.message.id, runs.count("endless")) == ("endless", 1)
    assert kept.reason.endswith("took longer than 0.05 s")
    assert kept.history[-1].kind is FailureKind.TIMEOUT


async def test_a_traceback_shows_no_failure_of_another_message(place: str) -> None:
    """A message that runs after one that was left behind fails with its own traceback alone."""
    shop, goes_on = endpoint(place, timeout=2.0, grace=0.05), threading.Event()

    @shop.handler
    def handle(order: Order) -> None:
        if order.id == "endless":
            goes_on.wait(60)
        else:
            raise ValueError("out of stock")

    async with working(shop, "endless", "bad"):
        kept = await letters(place, 2)
        goes_on.set()
    (bad,) = [each.history[-1].traceback for each in kept if each.message is not None and each.message.id == "bad"]
    assert "took longer" not in bad
    assert bad.startswith("Traceback")
    assert bad.endswith("ValueError: out of stock\n")


async def test_too_many_of_them_end_the_worker(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads do not pile up. `failure` is for the application's probe."""
    monkeypatch.setattr(handler_thread, "MOST_LEFT", 0)
    shop, goes_on = endpoint(place, timeout=0.05, grace=0.05), threading.Event()

    @shop.handler
    def handle(_order: Order) -> None:
        goes_on.wait(60)

    async def run() -> None:
        async with working(shop, "endless") as background:
            while not background.failure:  # noqa: ASYNC110 - a probe has no other way
                await asyncio.sleep(0.01)

    with pytest.raises(WorkerStopped, match="did not end in time"):
        await run()
    goes_on.set()


async def test_a_stop_does_not_wait_for_one_that_does_not_end(place: str) -> None:
    """After the grace time the message is given back, and the thread is left behind."""
    shop, begun, goes_on = endpoint(place, grace=0.05), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @shop.handler
    def handle(_order: Order) -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(60)

    async with working(shop, "endless"):
        await begun.wait()
    goes_on.set()
