"""A trace goes from a request through a transaction, its message and handlers to another service, whatever happens between."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import SpanKind
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import BatchContext, Context
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.assembly import open_transport, temporary_transport
from onceonly.endpoint.host import host_of
from onceonly.integrations.fastapi import IdempotentRoute, Tx
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.logs import JsonLines, KeyValues
from onceonly.sql.database import open_database
from onceonly.sql.schema import create, drop
from onceonly.sql.store import SCHEMA
from onceonly.telemetry.contexts import UnsampledSpan, unsampled
from tests.servers.available import RABBITMQ, need
from tests.telemetry.places import PlaceOrder, Services, services
from tests.telemetry.recording import Recording, attributes, id_of, linked, parent_of, trace_of

EVENT = "create OrderPlaced"


def in_memory(recording: Recording, tmp_path: Path, **options: Any) -> Services:
    """Return both services with queues in memory and a SQLite store."""
    return services(f"sqlite:///{tmp_path}/shop.db", f"memory://{tmp_path.name}", recording.telemetry, **options)


def check_chain(recording: Recording, trace_id: int, root: int) -> None:
    """Check that each step is the parent of the next: root, message, handler, message, handler."""
    steps = [recording.one(name) for name in ("create shop", "process shop", EVENT, "process billing")]
    assert [trace_of(span) for span in steps] == [trace_id] * 4
    assert [parent_of(span) for span in steps] == [root, *(id_of(span) for span in steps[:-1])]
    assert [span.kind for span in steps] == [SpanKind.PRODUCER, SpanKind.CONSUMER] * 2


async def test_one_trace_goes_from_a_transaction_through_both_services(recording: Recording, tmp_path: Path) -> None:
    """Request, message, handler, message, handler: each is the parent of the next, and the batches link to them."""
    places = in_memory(recording, tmp_path)
    async with places.running():
        with recording.request() as request:
            await places.place("a")
        await places.billed.wait()
    check_chain(recording, request.trace_id, request.span_id)
    create, event = recording.one("create shop"), recording.one(EVENT)
    for name in ("send shop", "receive shop", "ack shop"):
        span = recording.one(name)
        assert linked(span) == {id_of(create)}
        assert span.kind is SpanKind.CLIENT
    for name in ("send OrderPlaced", "receive billing", "ack billing"):
        assert linked(recording.one(name)) == {id_of(event)}
    assert attributes(recording.one("process billing"))["onceonly.outcome"] == "handled"


def traced(app: FastAPI, recording: Recording) -> Callable[..., Awaitable[None]]:
    """Return the application inside a server's span for each request, as an instrumentation of ASGI does it."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with recording.request(f"{scope['method']} {scope['path']}"):
            await app(scope, receive, send)

    return asgi


async def test_the_trace_of_an_http_request_goes_on(recording: Recording, tmp_path: Path) -> None:
    """A route with `Tx`, and one that opens a transaction itself."""
    places = in_memory(recording, tmp_path)
    app, router = FastAPI(), APIRouter(route_class=IdempotentRoute.of(places.shop))

    @router.post("/orders")
    async def order(tx: Tx) -> dict[str, str]:
        tx.send(PlaceOrder("a"), to="shop")
        return {"placed": "a"}

    app.include_router(router)
    async with places.running():
        transport = httpx.ASGITransport(app=traced(app, recording))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
            answer = await client.post("/orders", headers={"Idempotency-Key": "k1"})
        assert answer.status_code == 200
        await places.billed.wait()
    request = recording.one("POST /orders")
    check_chain(recording, trace_of(request), id_of(request))


async def test_a_crash_after_the_commit_and_a_relay_keep_the_trace(recording: Recording, tmp_path: Path) -> None:
    """The event was created in the handler that died. The relay sends it with the context that its record stores."""
    places = in_memory(recording, tmp_path, relay_after=0.01)
    with recording.request() as request:
        async with places.running(only="billing"):  # declares the subscription
            async with places.running(only="shop"):
                await places.place("first")
                await places.billed.wait()
                await recording.until("ack billing")  # its spans have ended
            places.billed.clear()
            recording.spans.clear()
            await places.place("a")
            with pytest.raises(ProcessCrash):
                await host_of(places.shop).run(asyncio.Event(), observer=CrashAt("after-commit"))
            assert recording.named(EVENT)
            assert not recording.named("process shop")  # it died with the process
            assert not places.billed.is_set()
            async with host_of(places.shop).sending():
                await places.billed.wait()
    event = recording.one(EVENT)
    # On a slow machine the relay also sends the first event once more, so there may be a duplicate.
    (bill,) = [span for span in recording.named("process billing") if attributes(span)["onceonly.outcome"] == "handled"]
    assert trace_of(event) == trace_of(bill) == request.trace_id
    assert parent_of(bill) == id_of(event)
    (sender,) = [span for span in recording.named("send OrderPlaced") if linked(span) == {id_of(event)}]
    relay = next(span for span in recording.named("onceonly.relay") if id_of(span) == parent_of(sender))
    assert attributes(relay) == {"onceonly.endpoint": "shop", "messaging.batch.message_count": 1}


async def test_a_trace_goes_through_postgresql_and_rabbitmq(recording: Recording, postgresql_url: str) -> None:
    """With the names of RabbitMQ's conventions, and the server's address."""
    prefix = f"t{uuid4().hex[:10]}."
    broker = f"{need(RABBITMQ)}?prefix={prefix}"
    tables = f"tracing_{uuid4().hex[:8]}_"
    store = f"{postgresql_url}?prefix={tables}"
    database = await open_database(postgresql_url, clock=LIVE.clock, prefix=tables)
    await create(database, SCHEMA)
    places = services(store, broker, recording.telemetry)
    topologies = [Topology(endpoint="shop", commands=("PlaceOrder",)), Topology(endpoint="billing", events=("OrderPlaced",))]
    async with temporary_transport(broker, topologies), places.running():
        with recording.request() as request:
            await places.place("a")
        await places.billed.wait()
    await drop(database, SCHEMA)
    await database.close()
    exchange = RabbitMQNames(prefix).exchange("OrderPlaced")
    found = [recording.one(f"create {prefix}shop"), recording.one(f"process {prefix}shop"), recording.one(f"create {exchange}")]
    assert {trace_of(span) for span in found} == {request.trace_id}
    bill = recording.one(f"process {prefix}billing")
    assert (trace_of(bill), parent_of(bill)) == (request.trace_id, id_of(found[2]))
    assert (
        attributes(bill).items() >= {"messaging.system": "rabbitmq", "server.address": "127.0.0.1", "server.port": 5672}.items()
    )


async def test_spans_of_a_handler_are_children_of_its_process_span(recording: Recording, tmp_path: Path) -> None:
    """Also in a `def` handler, which runs in a thread."""
    places = in_memory(recording, tmp_path)
    tracer = recording.tracers.get_tracer("user")
    places.while_placing = lambda order: tracer.start_span(f"placing {order}").end()

    @places.shop.handler(type="threaded")
    def threaded(_: dict[str, str], context: Context) -> None:
        with tracer.start_as_current_span("in a thread"):
            context.publish({"order_id": "b"}, type="OrderPlaced")

    async with places.running():
        await places.place("a")
        await places.billed.wait()
        places.billed.clear()
        async with places.shop.transaction() as tx:
            tx.send({}, to="shop", type="threaded")
        await places.billed.wait()
    first, second = recording.named("process shop")
    assert parent_of(recording.one("placing a")) == id_of(first)
    thread = recording.one("in a thread")
    assert parent_of(thread) == id_of(second)
    assert parent_of(recording.named(EVENT)[1]) == id_of(thread)


async def test_what_a_batch_handler_sends_is_in_the_trace_of_its_message(recording: Recording, tmp_path: Path) -> None:
    """Each message of the batch has its own process span. One that is not sampled passes its own context on."""
    places = in_memory(recording, tmp_path)
    sizes: list[int] = []
    causes: dict[str, tuple[str, str]] = {}
    all_billed = asyncio.Event()

    @places.shop.handler(type="several", batch=True)
    async def several(orders: list[dict[str, str]], batch: BatchContext) -> None:
        sizes.append(len(orders))
        for order, context in zip(orders, batch, strict=True):
            context.publish(order, type="Several")

    @places.billing.handler(type="Several")
    async def bill(order: dict[str, str], context: Context) -> None:
        message = context.message
        causes[order["id"]] = (message.extension("causationid"), message.extension("traceparent"))
        if len(causes) == 3:
            all_billed.set()

    off = f"00-{'c' * 32}-{'d' * 16}-00"
    async with places.running():
        async with places.shop.transaction() as tx:
            for name in "ab":
                tx.send({"id": name}, to="shop", type="several")
            tx.send({"id": "c"}, to="shop", type="several", headers={"traceparent": off})
        await all_billed.wait()
        await recording.until("process billing")
    assert sizes == [3]
    spans = {attributes(span)["messaging.message.id"]: span for span in recording.named("process shop")}
    created = {f"{id_of(span):016x}": span for span in recording.named("create Several")}
    for name in "ab":
        cause, parent = causes[name]
        assert parent_of(created[parent.split("-")[2]]) == id_of(spans[cause])
        assert trace_of(created[parent.split("-")[2]]) == trace_of(spans[cause])
    assert causes["c"][1].split("-")[1] == "c" * 32


async def test_logs_of_a_handler_have_the_ids_of_its_span(
    recording: Recording, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In both of our formats. Without a span they have none."""
    caplog.set_level("INFO")
    places, lines = in_memory(recording, tmp_path), []

    class Writes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            """Format it, where the span is active."""
            lines.append((JsonLines().format(record), KeyValues().format(record)))

    logger, handler = logging.getLogger("tests.shop"), Writes()
    logger.addHandler(handler)
    try:
        places.while_placing = lambda _: logger.info("placing")
        async with places.running():
            await places.place("a")
            await places.billed.wait()
        logger.info("outside")
    finally:
        logger.removeHandler(handler)
    span = recording.one("process shop")
    trace_id, span_id = f"{trace_of(span):032x}", f"{id_of(span):016x}"
    inside, outside = (json.loads(text) for text, _ in lines)
    assert (inside["trace_id"], inside["span_id"]) == (trace_id, span_id)
    assert lines[0][1].endswith(f"placing trace_id={trace_id} span_id={span_id}")
    assert "trace_id" not in outside
    assert "trace_id" not in lines[1][1]


async def test_structlog_works_unchanged(recording: Recording, tmp_path: Path) -> None:
    """The processor of OpenTelemetry's documentation finds the span of the message that is handled."""
    entries: list[dict[str, Any]] = []

    def add_ids(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        context = trace.get_current_span().get_span_context()
        return event | {"trace_id": context.trace_id, "span_id": context.span_id}

    def keep(_logger: object, _method: str, event: dict[str, Any]) -> str:
        entries.append(event)
        raise structlog.DropEvent

    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[structlog.contextvars.merge_contextvars, add_ids, keep])
    places = in_memory(recording, tmp_path)
    places.while_placing = lambda order: log.info("placing", order=order)
    async with places.running():
        await places.place("a")
        await places.billed.wait()
    span = recording.one("process shop")
    assert entries == [{"event": "placing", "order": "a", "trace_id": trace_of(span), "span_id": id_of(span)}]


async def test_what_is_not_sampled_records_nothing_and_stays_unsampled(tmp_path: Path) -> None:
    """The decision travels with the message: spans of the handler are not sampled either."""
    recording = Recording(ParentBased(ALWAYS_OFF))
    places, seen = in_memory(recording, tmp_path), []
    places.while_billing = lambda _: seen.append(trace.get_current_span().get_span_context())
    async with places.running():
        with recording.request() as request:
            await places.place("a")
        await places.billed.wait()
    assert recording.names == []
    assert [(context.trace_id, context.trace_flags.sampled) for context in seen] == [(request.trace_id, False)]


class CountingSampler(Sampler):
    """Samples nothing, and counts the names that it was asked about."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any) -> SamplingResult:
        """Note the name."""
        self.asked.append(name)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        """Return its name."""
        return "counting"


async def test_in_a_trace_that_is_not_sampled_no_span_is_started_for_a_message(tmp_path: Path) -> None:
    """The sampler is asked where the trace begins. A handler that fails is recorded in that trace all the same."""
    sampler = CountingSampler()
    recording = Recording(sampler)
    places, fails = in_memory(recording, tmp_path), [True, False]

    def fail_once(_: str) -> None:
        if fails.pop(0):
            raise ValueError("no stock")

    places.while_billing = fail_once
    async with places.running():
        with recording.request() as request:
            await places.place("a")
        await places.billed.wait()
    assert not {name for name in sampler.asked if name.startswith(("create", "process"))}
    (event,) = [each.log_record for each in recording.logs.get_finished_logs()]
    assert (event.event_name, event.trace_id) == ("messaging.process.exception", request.trace_id)


@pytest.mark.parametrize(
    "parent",
    [
        "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        "00",
        "",
        "nonsense" * 30,
    ],
)
def test_only_a_context_of_the_known_form_says_that_it_is_not_sampled(parent: str) -> None:
    """Another version may have other flags, and what is malformed says nothing."""
    message = Message(id="a", source="web", type="T", body=b"", extensions=(("traceparent", parent),))
    assert unsampled(message) == ()


@pytest.mark.parametrize("flags", ["00", "02", "fe"])
@pytest.mark.parametrize("state", ["", "vendor=1"])
def test_the_context_of_a_trace_that_is_not_sampled_travels_on(flags: str, state: str) -> None:
    """With its state, and without other attributes of the message."""
    context = (("traceparent", f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"),)
    context += (("tracestate", state),) if state else ()
    message = Message(id="a", source="web", type="T", body=b"", extensions=(("conversationid", "c"), *context))
    span = UnsampledSpan(unsampled(message))
    assert span.headers == context
    found = span.get_span_context()
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == (context[0][1][3:35], context[0][1][36:52])
    assert (found.trace_flags.sampled, found.trace_state.to_header()) == (False, state)
    assert not UnsampledSpan((("traceparent", "00-" + "z" * 49 + "-00"),)).get_span_context().is_valid


async def test_with_links_a_handled_message_begins_a_trace(recording: Recording, tmp_path: Path) -> None:
    """And links to where the message was created."""
    recording.telemetry = recording.setting(parent="links")
    places = in_memory(recording, tmp_path)
    async with places.running():
        with recording.request() as request:
            await places.place("a")
        await places.billed.wait()
    process, create = recording.one("process shop"), recording.one("create shop")
    assert parent_of(process) is None
    assert trace_of(process) != request.trace_id == trace_of(create)
    assert id_of(create) in linked(process)
    assert trace_of(recording.one("process billing")) != trace_of(process)


async def test_a_message_enlisted_in_a_session_is_created_in_the_current_span(recording: Recording, tmp_path: Path) -> None:
    """It goes through the record and the relay, too."""
    places = in_memory(recording, tmp_path)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with places.running():
        with recording.request() as request:
            async with AsyncSession(engine) as session, session.begin():
                places.shop.enlist(session).send(PlaceOrder("a"), to="shop")
        await places.billed.wait()
    await engine.dispose()
    check_chain(recording, request.trace_id, request.span_id)


async def test_a_context_of_another_sender_or_of_the_user_is_kept(recording: Recording, tmp_path: Path) -> None:
    """A plain header is read like the attribute. One that a handler gives itself gets no span of ours."""
    places = in_memory(recording, tmp_path)
    own = f"00-{1:032x}-{2:016x}-01"
    async with places.running():
        async with open_transport(places.shop.settings.places.transport, "other") as other:
            body = b'{"order_id": "a"}'
            message = Message(id="1", source="other", type="PlaceOrder", body=body, headers=(("traceparent", own),))
            await other.send([Send(message=message, to="shop")])
        await places.billed.wait()
        places.billed.clear()
        async with places.shop.transaction() as tx:
            tx.publish({"order_id": "b"}, type="OrderPlaced", headers={"traceparent": own})
        await places.billed.wait()
    process = recording.one("process shop")
    assert (trace_of(process), parent_of(process)) == (1, 2)
    assert len(recording.named(EVENT)) == 1
    assert parent_of(recording.named("process billing")[1]) == 2
