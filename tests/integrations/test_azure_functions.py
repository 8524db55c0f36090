"""Functions of Azure with the real types: what they give to the host, and what is done once."""
# ruff: noqa: ARG001 - the host passes arguments by name

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any
from uuid import uuid4

import azure.functions as func
import pytest
from azure.functions import meta
from azure.functions.timer import TimerRequest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import sessionmaker

from examples.hosts.functions_host import SESSION, Kept, TimerStatus, events_data, service_bus_data, storage_data
from examples.hosts.functions_worker import datum_of
from examples.hosts.harness import ROOT
from onceonly import Context, Endpoint, HostedMessage, OnceOnlyError, Retry, SetupError, Transaction
from onceonly.assembly import open_database, open_transport
from onceonly.assembly.documents import create
from onceonly.errors import InvalidHandler, TransactionMisused
from onceonly.integrations.azure_functions import (
    NotSettled,
    RequestTransaction,
    close,
    handled_by,
    maintenance,
    once_per_tick,
)
from onceonly.model.errors import WrongEventLoop
from onceonly.ports.transport import Topology
from onceonly.sql.schema import create as create_tables
from onceonly.sql.store import SCHEMA
from tests.endpoint.hosted_harness import ONCE, Base, Line, declare_listener, letters, pending, received, rows, sql_shop
from tests.endpoint.relay_program import EXIT, RECEIVER, bank_at

HEADERS = {"ce-source": "web", "ce-type": "Order"}
PAST, FUTURE = "2024-01-01T00:05:00+00:00", "2999-01-01T00:00:00+00:00"


@dataclass
class Shop:
    """An endpoint, its store and its queue."""

    endpoint: Endpoint
    store: str
    queue: str


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """Make an endpoint that writes a row and publishes for each order; closes it at the end."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    await declare_listener(queue)
    endpoint = sql_shop(store, queue, retry=Retry(immediate=1, delayed=0, jitter=0))
    yield Shop(endpoint, store, queue)
    await close(endpoint)


def given(binding: str, data: Any) -> Any:
    """Make what a trigger gives, with the library's converter, from what the host sends to a worker."""
    value, metadata = data
    converter = meta.get_binding_registry().get(binding)  # type: ignore[no-untyped-call]
    return converter.decode(datum_of(value), trigger_metadata={name: datum_of(each) for name, each in metadata.items()})


def order(name: str, deliveries: int = 1, **changes: Any) -> Kept:
    """Make a message as a service keeps it."""
    return Kept(name, json.dumps({"id": name}).encode(), changes.get("properties", HEADERS), deliveries, "lock")


def bus(*names: str, many: bool = False, deliveries: int = 1) -> Any:
    """Make messages of Service Bus."""
    return given("serviceBusTrigger", service_bus_data([order(name, deliveries) for name in names], many=many))


def tick(planned: str | None = PAST, *, past_due: bool = False) -> TimerRequest:
    """Make a tick."""
    return TimerRequest(past_due=past_due, schedule_status={"Last": PAST, "Next": planned} if planned else None)


def has_tables(shop: Shop) -> bool:
    """Return whether the store was opened."""
    return Path(shop.store.removeprefix("sqlite:///")).exists()


# Messages


async def test_a_message_that_comes_twice_takes_effect_once(shop: Shop) -> None:
    """Also if the process was another one in between."""

    @handled_by(shop.endpoint)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    await orders(message=bus("a"))
    await orders(message=bus("a", deliveries=2))
    await close(shop.endpoint)
    await orders(message=bus("a", deliveries=3))
    assert await rows(shop.store) == ["a"]
    assert len(await received(shop.queue)) == 1


async def test_nothing_is_opened_before_the_first_invocation(shop: Shop) -> None:
    """The import of a function app must not connect, and a worker may be started without an invocation."""

    @handled_by(shop.endpoint)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    maintenance(shop.endpoint)
    assert not has_tables(shop)
    tasks = asyncio.all_tasks()
    await asyncio.gather(*(orders(message=bus(name)) for name in "abc"))
    kept = [each for each in asyncio.all_tasks() - tasks if "kept open" in each.get_name()]
    assert len(kept) == 1
    assert await rows(shop.store) == ["a", "b", "c"]


async def test_an_invocation_that_is_cancelled_while_it_opens_does_not_stop_the_others(shop: Shop) -> None:
    """They wait for the same opening."""

    @handled_by(shop.endpoint)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    first = asyncio.create_task(orders(message=bus("a")))
    second = asyncio.create_task(orders(message=bus("b")))
    await asyncio.sleep(0)
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await rows(shop.store) == ["b"]


async def test_opening_is_tried_again_by_the_next_invocation(tmp_path: Path) -> None:
    """A store that is not there yet costs the invocations meanwhile. Each message that came then is handled afterwards."""
    place = tmp_path / "later"
    queue = f"sqlite:///{tmp_path}/queue.db"
    await declare_listener(queue)
    shop = sql_shop(f"sqlite:///{place}/store.db", queue, retry=ONCE)

    @handled_by(shop)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    for _ in range(2):
        with pytest.raises(OnceOnlyError, match="the directory of the SQLite file"):
            await orders(message=bus("a"))
    place.mkdir()
    try:
        await asyncio.gather(orders(message=bus("a", deliveries=3)), orders(message=bus("b")))
        assert await rows(shop.settings.store) == ["a", "b"]
        assert len(await received(queue)) == 2
    finally:
        await close(shop)


async def test_what_must_come_again_raises(shop: Shop) -> None:
    """The host abandons the message, and it comes with a higher count."""
    fails = True

    @shop.endpoint.handler(type="Failing")
    async def fail(_message: dict[str, Any]) -> None:
        if fails:
            raise ValueError("not now")

    @handled_by(shop.endpoint, longest_wait=0.0)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    def failing(deliveries: int) -> Any:
        properties = {"ce-source": "web", "ce-type": "Failing"}
        return given("serviceBusTrigger", service_bus_data([order("f", deliveries, properties=properties)]))

    with pytest.raises(NotSettled, match=r"1 of 1 messages must be delivered again: .*not now") as raised:
        await orders(message=failing(1))
    assert [outcome.is_settled for outcome in raised.value.outcomes] == [False]
    await orders(message=failing(2))  # its last attempt: a dead letter, which the host completes
    assert [letter.reason for letter in await letters(shop.endpoint)] == ["ValueError: not now"]


async def test_in_a_batch_only_what_failed_is_handled_again(shop: Shop) -> None:
    """The host returns the whole batch, and those that were handled are known."""
    runs, fails = list[str](), True

    @shop.endpoint.handler(type="Counted")
    async def handle(message: dict[str, Any]) -> None:
        runs.append(message["id"])
        if message["id"] == "b" and fails:
            raise ValueError("not now")

    @handled_by(shop.endpoint, longest_wait=0.0)
    async def orders(messages: list[func.ServiceBusMessage]) -> None: ...

    def batch(deliveries: int) -> Any:
        properties = {"ce-source": "web", "ce-type": "Counted"}
        kept = [order(name, deliveries, properties=properties) for name in "abc"]
        return given("serviceBusTrigger", service_bus_data(kept, many=True))

    with pytest.raises(NotSettled, match="1 of 3"):
        await orders(messages=batch(1))
    runs.clear()
    fails = False
    await orders(messages=batch(2))
    assert runs == ["b"]


@pytest.mark.parametrize("is_def", [False, True])
async def test_one_message_of_a_batch_that_fails_returns_all(shop: Shop, *, is_def: bool) -> None:
    """The others took effect, and their messages are sent. They are known when the batch comes again, until all is settled."""
    runs, fails = list[str](), {"b"}

    @shop.endpoint.handler(type="Written")
    async def handle(message: dict[str, Any], session: AsyncSession, context: Context) -> None:
        runs.append(message["id"])
        if message["id"] in fails:
            raise ValueError("not now")
        session.add(Line(what=message["id"]))
        context.publish({"id": message["id"]}, type="Placed")

    seen = list[list[str | None]]()

    def look(messages: list[func.ServiceBusMessage]) -> None:
        seen.append([each.message_id for each in messages])

    async def look_async(messages: list[func.ServiceBusMessage]) -> None:
        look(messages)

    orders = handled_by(shop.endpoint, longest_wait=0.0)(look if is_def else look_async)

    def batch(deliveries: int) -> Any:
        properties = {"ce-source": "web", "ce-type": "Written"}
        kept = [order(name, deliveries, properties=properties) for name in "abc"]
        return given("serviceBusTrigger", service_bus_data(kept, many=True))

    with pytest.raises(NotSettled) as raised:
        await orders(messages=batch(1))
    assert [outcome.is_settled for outcome in raised.value.outcomes] == [True, False, True]
    assert await rows(shop.store) == ["a", "c"]
    assert len(await received(shop.queue)) == 2
    runs.clear()
    await orders(messages=batch(2))  # the last attempt of b: a dead letter
    assert runs == ["b"]
    assert await rows(shop.store) == ["a", "c"]
    assert [letter.reason for letter in await letters(shop.endpoint)] == ["ValueError: not now"]
    assert seen == [["a", "b", "c"]] * 2


@pytest.mark.parametrize("is_def", [False, True])
async def test_messages_of_a_subscription_with_sessions(shop: Shop, *, is_def: bool) -> None:
    """A topic's trigger gives the same type. The session is a header, alone and in a batch."""
    sessions, app = list[tuple[str, str]](), func.FunctionApp()

    @shop.endpoint.handler(type="InSession")
    async def place(message: dict[str, Any], context: Context) -> None:
        sessions.append((message["id"], dict(context.message.headers)["session-id"]))

    async def orders_async(messages: list[func.ServiceBusMessage]) -> None: ...

    def orders_def(messages: list[func.ServiceBusMessage]) -> None: ...

    body = handled_by(shop.endpoint)(orders_def if is_def else orders_async)
    app.service_bus_topic_trigger(
        arg_name="messages",
        topic_name="orders",
        subscription_name="shop",
        connection="SB",
        cardinality=func.Cardinality.MANY,
        is_sessions_enabled=True,
    )(body)
    (function,) = app.get_functions()
    trigger = function.get_trigger().get_dict_repr()
    assert trigger["isSessionsEnabled"] is True
    call = function.get_user_function()
    headers = HEADERS | {"ce-type": "InSession"}
    kept = [order(name, properties={**headers, SESSION: "s1"}) for name in "ab"]
    await call(messages=given("serviceBusTrigger", service_bus_data(kept, many=True)))
    await call(messages=given("serviceBusTrigger", service_bus_data(kept, many=True)))
    one = order("c", properties={**headers, SESSION: "s2"})
    await call(messages=[given("serviceBusTrigger", service_bus_data([one]))])
    assert sorted(sessions) == [("a", "s1"), ("b", "s1"), ("c", "s2")]


@pytest.mark.parametrize("is_def", [False, True])
async def test_each_message_of_a_storage_queue_is_an_invocation_of_its_own(shop: Shop, *, is_def: bool) -> None:
    """The trigger's batch is invocations side by side. One that fails raises alone, until it is a dead letter."""

    @shop.endpoint.handler(type="Failing")
    async def fail(_message: dict[str, Any]) -> None:
        raise ValueError("not now")

    async def orders_async(message: func.QueueMessage) -> None: ...

    def orders_def(message: func.QueueMessage) -> None: ...

    orders = handled_by(shop.endpoint, longest_wait=0.0)(orders_def if is_def else orders_async)

    def queued(name: str, kind: str, deliveries: int) -> Any:
        body = {"specversion": "1.0", "id": name, "source": "web", "type": kind, "data": {"id": name}}
        return given("queueTrigger", storage_data([Kept(f"q {name}", json.dumps(body).encode(), {}, deliveries, "receipt")]))

    batch = (("a", "Order"), ("f", "Failing"), ("b", "Order"))
    done = await asyncio.gather(*(orders(message=queued(*each, 1)) for each in batch), return_exceptions=True)
    assert [type(each) for each in done] == [type(None), NotSettled, type(None)]
    await orders(message=queued("f", "Failing", 2))
    assert await rows(shop.store) == ["a", "b"]
    assert [letter.reason for letter in await letters(shop.endpoint)] == ["ValueError: not now"]


@pytest.mark.parametrize("is_def", [False, True])
async def test_an_event_that_fails_becomes_a_dead_letter_and_the_batch_goes_on(shop: Shop, *, is_def: bool) -> None:
    """In one invocation, because the checkpoint follows. Events behind it are handled once."""
    runs = list[str]()

    @shop.endpoint.handler(type="Failing")
    async def fail(message: dict[str, Any]) -> None:
        runs.append(message["id"])
        raise ValueError("not now")

    async def orders_async(events: list[func.EventHubEvent]) -> None: ...

    def orders_def(events: list[func.EventHubEvent]) -> None: ...

    orders = handled_by(shop.endpoint)(orders_def if is_def else orders_async)
    failing = order("f", properties={"ce-source": "web", "ce-type": "Failing"})
    events = given("eventHubTrigger", events_data([order("a"), failing, order("b")], 0))
    await orders(events=events)
    assert set(runs) == {"f"}
    assert await rows(shop.store) == ["a", "b"]
    assert [letter.reason for letter in await letters(shop.endpoint)] == ["ValueError: not now"]
    await orders(events=events)  # the host died before it wrote the checkpoint
    assert await rows(shop.store) == ["a", "b"]
    assert len(await letters(shop.endpoint)) == 1


async def test_events_that_are_not_settled_in_time_raise(shop: Shop) -> None:
    """So a retry policy repeats the batch, before its checkpoint."""
    retries = Retry(immediate=0, delayed=5, first_delay=60.0, jitter=0)
    later = sql_shop(shop.store, shop.queue, retry=retries)

    @later.handler(type="Failing")
    async def fail(_message: dict[str, Any]) -> None:
        raise ValueError("not now")

    @handled_by(later, remaining=30)
    async def orders(events: list[func.EventHubEvent]) -> None: ...

    failing = order("f", properties={"ce-source": "web", "ce-type": "Failing"})
    try:
        with pytest.raises(NotSettled, match="1 of 2"):
            await orders(events=given("eventHubTrigger", events_data([order("a"), failing], 0)))
        assert await rows(shop.store) == ["a"]
    finally:
        await close(later)


async def test_a_storage_queue_has_no_headers(shop: Shop) -> None:
    """The id is that of the message in the queue, the type that of a CloudEvent as the body."""

    @handled_by(shop.endpoint)
    def orders(message: func.QueueMessage) -> None: ...

    body = {"specversion": "1.0", "id": "e1", "source": "web", "type": "Order", "data": {"id": "a"}}
    for deliveries in (1, 2):
        kept = Kept("q1", json.dumps(body).encode(), {}, deliveries, "receipt")
        await orders(message=given("queueTrigger", storage_data([kept])))
    assert await rows(shop.store) == ["a"]


async def test_events_of_an_event_hub_are_known_by_their_place(shop: Shop) -> None:
    """Without an id of the sender, and by that id if there is one. The checkpoint may be older."""

    @handled_by(shop.endpoint)
    async def orders(events: list[func.EventHubEvent]) -> None: ...

    events = [order("a"), order("b"), order("c", properties=HEADERS | {"ce-id": "own"})]
    await orders(events=given("eventHubTrigger", events_data(events, 7)))
    await orders(events=given("eventHubTrigger", events_data(events[1:], 8)))
    await orders(events=given("eventHubTrigger", events_data(events[2:], 90)))
    assert await rows(shop.store) == ["a", "b", "c"]


async def test_events_are_repeated_in_their_invocation(shop: Shop) -> None:
    """The host goes on after a function has raised, so raising would lose them."""
    runs = 0

    @shop.endpoint.handler(type="Failing")
    async def fail(_message: dict[str, Any]) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("not now")

    @handled_by(shop.endpoint)
    async def orders(events: list[func.EventHubEvent]) -> None: ...

    failing = order("f", properties={"ce-source": "web", "ce-type": "Failing"})
    await orders(events=given("eventHubTrigger", events_data([order("a"), failing], 0)))
    assert runs == 2
    assert await rows(shop.store) == ["a"]


async def test_the_body_of_a_def_runs_in_a_thread_and_may_replace_the_message(shop: Shop) -> None:
    """As for a message whose type is not in its headers. The endpoint is used in the loop only."""
    threads: list[int] = []

    @handled_by(shop.endpoint)
    def orders(message: func.ServiceBusMessage) -> HostedMessage:
        threads.append(threading.get_ident())
        return HostedMessage(message.get_body(), HEADERS, id=f"mine {message.message_id}")

    plain = given("serviceBusTrigger", service_bus_data([order("a", properties={})]))
    await asyncio.gather(*(orders(message=plain) for _ in range(4)))
    assert threading.get_ident() not in threads
    assert await rows(shop.store) == ["a"]


async def test_other_triggers_and_results_are_refused(shop: Shop) -> None:
    """A result for an output binding would be sent again with each delivery."""

    @handled_by(shop.endpoint)
    async def orders(message: Any) -> str:
        return str(message)

    with pytest.raises(TypeError, match="not TimerRequest"):
        await orders(message=tick())
    with pytest.raises(TypeError, match="send messages with context"):
        await orders(message=bus("a"))


async def test_a_second_loop_of_the_process_is_refused(shop: Shop) -> None:
    """A worker has one. Connections belong to it."""

    @handled_by(shop.endpoint)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    await orders(message=bus("a"))
    with pytest.raises(WrongEventLoop, match="opened in another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(orders(message=bus("b"))))  # type: ignore[arg-type]


async def test_an_endpoint_without_handlers_takes_no_messages(tmp_path: Path) -> None:
    """It may have timers and requests."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/store.db")

    @handled_by(shop)
    async def orders(message: func.ServiceBusMessage) -> None: ...

    with pytest.raises(InvalidHandler, match="no handler is registered"):
        await orders(message=bus("a"))
    await close(shop)


def test_the_host_sees_the_parameters_that_it_has_bindings_for() -> None:
    """It refuses a function with another parameter, and runs a coroutine function in its loop."""
    shop, app = Endpoint("shop", store="sqlite:///never.db"), func.FunctionApp()

    @app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SB")
    @handled_by(shop)
    def orders(message: func.ServiceBusMessage) -> None: ...

    @app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
    @once_per_tick(shop)
    async def nightly(timer: func.TimerRequest, tx: Transaction) -> None: ...

    app.register_functions(maintenance(shop, schedule="0 */5 * * * *"))
    found = {each.get_function_name(): each for each in app.get_functions()}
    assert sorted(found) == ["nightly", "onceonly_shop", "orders"]
    assert all(iscoroutinefunction(each.get_user_function()) for each in found.values())
    assert list(signature(found["nightly"].get_user_function()).parameters) == ["timer"]
    assert found["onceonly_shop"].get_trigger().schedule == "0 */5 * * * *"
    assert not Path("never.db").exists()


# Ticks


async def test_a_tick_that_runs_twice_is_one_row(shop: Shop) -> None:
    """In one process, and in the next one after the host's death, past due. The next tick is another one."""

    @once_per_tick(shop.endpoint)
    async def nightly(timer: func.TimerRequest, tx: Transaction) -> None:
        tx.sql.add(Line(what="tick"))

    await asyncio.gather(nightly(timer=tick()), nightly(timer=tick()))
    await close(shop.endpoint)
    await nightly(timer=tick("2024-01-01T01:05:00+01:00", past_due=True))  # the same instant
    assert await rows(shop.store) == ["tick"]
    await nightly(timer=tick("2024-01-01T00:06:00+00:00"))
    assert await rows(shop.store) == ["tick", "tick"]


async def test_a_tick_that_failed_runs_again(shop: Shop) -> None:
    """The host repeats it, if it has a retry policy."""
    fails = True

    @once_per_tick(shop.endpoint)
    async def nightly(timer: func.TimerRequest, tx: Transaction) -> None:
        tx.sql.add(Line(what="tick"))
        if fails:
            raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        await nightly(timer=tick())
    fails = False
    await nightly(timer=tick())
    assert await rows(shop.store) == ["tick"]


async def test_the_messages_of_a_tick_are_sent_before_it_ends(shop: Shop) -> None:
    """No relay may be running."""

    @once_per_tick(shop.endpoint)
    async def nightly(timer: func.TimerRequest, tx: Transaction) -> None:
        tx.publish({"id": "a"}, type="Placed")

    await nightly(timer=tick())
    await nightly(timer=tick())
    assert await pending(shop.endpoint) == 0
    assert len(await received(shop.queue)) == 1


async def test_a_tick_in_a_session_of_a_def(shop: Shop) -> None:
    """Its body runs in a thread; its messages are sent by the loop."""
    engine = create_engine(shop.store)
    Base.metadata.create_all(engine)

    @once_per_tick(shop.endpoint, sessionmaker(engine))
    def nightly(timer: func.TimerRequest, tx: RequestTransaction) -> None:
        tx.sql.add(Line(what="tick"))
        tx.publish({"id": "a"}, type="Placed")

    try:
        for _ in range(2):
            await nightly(timer=tick())
        assert await rows(shop.store) == ["tick"]
        assert await pending(shop.endpoint) == 0
        assert len(await received(shop.queue)) == 1
    finally:
        engine.dispose()


async def test_two_timers_and_unplanned_runs_do_not_share_ticks(shop: Shop) -> None:
    """A run by hand before the planned instant must not take the place of the planned one."""

    async def write(timer: func.TimerRequest, tx: Transaction) -> None:
        tx.sql.add(Line(what="tick"))

    first, second = (once_per_tick(shop.endpoint, name=name)(write) for name in ("first", "second"))
    await first(timer=tick())
    await second(timer=tick())
    await first(timer=tick(FUTURE))
    await first(timer=tick(FUTURE))
    assert await rows(shop.store) == ["tick"] * 4


async def test_a_timer_without_a_schedule_is_refused(shop: Shop) -> None:
    """Nothing distinguishes its ticks."""

    @once_per_tick(shop.endpoint)
    async def nightly(timer: func.TimerRequest, tx: Transaction) -> None: ...

    with pytest.raises(SetupError, match="use_monitor=True"):
        await nightly(timer=tick(None))
    with pytest.raises(TypeError, match="timer triggers"):
        await nightly(timer=bus("a"))


def test_functions_that_cannot_be_done_once_are_refused() -> None:
    """When the application is imported."""
    shop = Endpoint("shop", store="sqlite:///never.db")

    async def without(timer: func.TimerRequest) -> None: ...

    def plain(timer: func.TimerRequest, tx: RequestTransaction) -> None: ...

    async def coroutine(timer: func.TimerRequest, tx: Transaction) -> None: ...

    with pytest.raises(SetupError, match="no parameter tx"):
        once_per_tick(shop)(without)
    with pytest.raises(SetupError, match="add a sessionmaker"):
        once_per_tick(shop)(plain)
    with pytest.raises(SetupError, match="remove sessions="):
        once_per_tick(shop, sessionmaker())(coroutine)
    with pytest.raises(SetupError, match="sessions= must be"):
        once_per_tick(shop, "sessions")(plain)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="put the decorator of onceonly below"):
        handled_by(shop)(func.FunctionApp())  # type: ignore[arg-type]
    with pytest.raises(TransactionMisused):
        once_per_tick(shop, wait=-1)


async def test_maintenance_sends_what_was_left(tmp_path: Path) -> None:
    """As after the death of an invocation that had committed, or after a `def` without a dispatch."""
    store, queue = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/queue.db"
    await declare_listener(queue)
    shop, app, engine = (
        sql_shop(store, queue, relay_after=0.05),
        func.FunctionApp(),
        create_engine(store),
    )
    app.register_functions(maintenance(shop))
    (function,) = [each.get_user_function() for each in app.get_functions()]
    async with shop.opened():  # creates the tables
        pass
    try:
        with sessionmaker(engine).begin() as session:
            shop.enlist(session).publish({"id": "a"}, type="Placed")
        assert await pending(shop) == 1
        while await pending(shop):
            await function(timer=tick())
        assert len(await received(queue)) == 1
    finally:
        engine.dispose()
        await close(shop)


@pytest.fixture(params=["postgresql", "redis", "cosmos", "dynamodb"])
def any_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a store of each kind."""
    name = f"t{uuid4().hex[:12]}"
    match request.param:
        case "postgresql":
            return str(request.getfixturevalue("postgresql_url"))
        case "redis":
            return str(request.getfixturevalue("redis_url"))
        case "dynamodb":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            return f"dynamodb://eu-central-1/{name}?endpoint={request.getfixturevalue('ministack_endpoint')}"
        case _:
            return f"{request.getfixturevalue('cosmos_account')}/onceonly/{name}?emulator=true"


@pytest.mark.slow
async def test_a_timer_sends_what_a_dead_process_committed(any_store: str, tmp_path: Path) -> None:
    """The process ended right after its commit, and its message does not come again. The timer of `maintenance` is enough."""
    queue = f"sqlite:///{tmp_path}/queue.db"
    if any_store.startswith("postgresql"):
        shop, receiver, sent = sql_shop(any_store, queue, relay_after=0.05), "listener", "Placed"
        program = ("tests.endpoint.hosted_program", any_store, queue, "after-commit", "1", "a")
        async with open_database(any_store) as database, database.writing() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with open_database(any_store) as database:
            await create_tables(database, SCHEMA)
    else:
        await create(any_store)
        shop, receiver, sent = bank_at(any_store, queue), RECEIVER, "Deposited"
        program = ("tests.endpoint.relay_program", any_store, queue, "message=a")
    async with open_transport(queue, receiver) as listening:
        await listening.declare([Topology(endpoint=receiver, events=("Placed",), commands=("Deposited",))])
        done = await asyncio.to_thread(
            subprocess.run, (sys.executable, "-m", *program), cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode in {EXIT, -signal.SIGKILL}, done.stderr
        assert not await listening.receive(1, 0.05)
        app = func.FunctionApp()
        app.register_functions(maintenance(shop))
        (function,) = [each.get_user_function() for each in app.get_functions()]
        try:
            async with asyncio.timeout(30):  # at the most, if it is never sent
                while not (taken := await listening.receive(1, 0.05)):
                    await function(timer=tick())
        finally:
            await close(shop)
        assert [dict(each.headers)["ce-type"] for each in taken] == [sent]


def test_the_planned_instants_of_the_test_host_are_in_the_past() -> None:
    """So its ticks are planned ones."""
    timer = TimerStatus(wanted=2)
    assert timer.due
    assert timer.status["Next"] == "2024-01-01T00:00:00+00:00"
