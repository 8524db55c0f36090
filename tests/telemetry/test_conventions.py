"""Names, attributes and links, as docs/how-to/telemetry.md lists them, for messages that succeed and that fail."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from onceonly import Endpoint
from onceonly.adapters.memory.store import MemoryStore
from onceonly.algorithms.delivery import deliver
from onceonly.errors import SetupError
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.message import FailureKind, Message, Send
from onceonly.model.retry import Retry
from onceonly.ports.dead_letters import Filter
from onceonly.ports.store import Unit
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observer
from onceonly.runtime.observe.telemetry import Instruments, NewMessage, TelemetrySubject
from onceonly.telemetry import OpenTelemetry
from onceonly.telemetry.conventions import MOST_ERRORS, OTHER_ERROR, EndpointNames
from tests.runtime.harness import SHOP, ScriptedHandlers, SimulatedEndpoint, failing
from tests.telemetry.recording import Recording, attributes, id_of, linked, parent_of, trace_of

PARENT = (0xABC, 0xDEF)
CREATED = f"00-{PARENT[0]:032x}-{PARENT[1]:016x}-01"
SUBJECT = TelemetrySubject(SHOP, "memory", "memory://shop", "history")
COMMON = {"messaging.system": "memory", "messaging.destination.name": SHOP}


def instruments(recording: Recording, **options: object) -> Instruments:
    """Return the telemetry of the shop."""
    return recording.setting(**options).instrument(SUBJECT)


def order(id_: str = "a", **fields: Any) -> Send:
    """Return a command that was created in a span elsewhere."""
    extensions = (("traceparent", CREATED), ("conversationid", "c1"))
    message = Message(id=id_, source="web", type="order", body=b'{"card": "SECRET-body"}', extensions=extensions, **fields)
    return Send(message=message, to=SHOP)


async def shop_with(*sends: Send, handlers: ScriptedHandlers | None = None) -> SimulatedEndpoint:
    """Return an endpoint in memory with these messages in its queue."""
    simulated = await SimulatedEndpoint(handlers).open()
    await simulated.transport.send(sends)
    return simulated


async def one_batch(simulated: SimulatedEndpoint, observer: Observer) -> None:
    """Receive and deliver once."""
    ports = observed(simulated.ports, observer)
    await deliver(await ports.transport.receive(10, 0), ports)


async def test_the_spans_of_one_batch_have_the_names_and_attributes_of_the_convention(recording: Recording) -> None:
    """Everything that a message that succeeds passes, with the exact attributes."""
    simulated = await shop_with(order(), order("b"))
    await one_batch(simulated, instruments(recording).observer)
    assert recording.names == [
        "receive shop",
        "begin",
        "commit",
        "onceonly.unit",
        "send done",
        "process shop",
        "process shop",
        "ack shop",
    ]
    process = recording.named("process shop")[0]
    assert process.kind is SpanKind.CONSUMER
    assert attributes(process) == COMMON | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "a",
        "messaging.message.conversation_id": "c1",
        "cloudevents.event_source": "web",
        "cloudevents.event_type": "order",
        "onceonly.outcome": "handled",
        "onceonly.attempt": 1,
        "onceonly.deduplication": "history",
    }
    assert (trace_of(process), parent_of(process)) == PARENT
    for name, operation in (("receive", "receive"), ("ack", "settle")):
        span = recording.one(f"{name} shop")
        assert attributes(span) == COMMON | {
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
            "messaging.batch.message_count": 2,
        }
        assert (span.kind, span.parent, linked(span)) == (SpanKind.CLIENT, None, {PARENT[1]})
    send = recording.one("send done")
    assert attributes(send)["messaging.destination.name"] == "done"
    assert process.instrumentation_scope is not None
    assert process.instrumentation_scope.name == "onceonly"
    assert process.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


async def test_a_unit_and_its_process_spans_link_to_each_other(recording: Recording) -> None:
    """The handlers are no children of the unit: their parents are where their messages were created."""
    simulated = await shop_with(order(), order("b"))
    await one_batch(simulated, instruments(recording).observer)
    unit, runs = recording.one("onceonly.unit"), recording.named("process shop")
    assert linked(unit) == {id_of(run) for run in runs}
    assert all(linked(run) == {id_of(unit)} for run in runs)
    assert attributes(unit) == {"onceonly.endpoint": SHOP, "messaging.batch.message_count": 2}
    assert (unit.kind, unit.parent) == (SpanKind.INTERNAL, None)
    for name in ("begin", "commit"):
        assert parent_of(recording.one(name)) == id_of(unit)


async def test_a_process_span_has_the_time_of_its_handler_and_not_of_the_commit(recording: Recording) -> None:
    """It ends late, and says when the handler ended."""
    simulated = await shop_with(order())
    await one_batch(simulated, instruments(recording).observer)
    process, commit, begin = (recording.one(name) for name in ("process shop", "commit", "begin"))
    assert begin.end_time <= process.start_time <= process.end_time <= commit.start_time  # type: ignore[operator]


async def test_retries_and_a_dead_letter_stay_in_the_trace_of_the_message(recording: Recording) -> None:
    """Each attempt is a child of the creation, and each settlement links to it. The letter keeps the context."""

    def script(_message: Message, _resources: object) -> None:
        error = failing("no stock")
        error.__cause__ = KeyError("no stock")
        raise error

    simulated = await shop_with(order(), handlers=ScriptedHandlers(script, Retry(immediate=1, delayed=1)))
    await simulated.work(also=[instruments(recording).observer], until=lambda: bool(recording.named("retry shop")[1:]))
    simulated.clock.advance(10**7)
    await simulated.work(also=[instruments(recording).observer])
    runs = recording.named("process shop")
    assert [(attributes(run)["onceonly.outcome"], attributes(run)["onceonly.attempt"]) for run in runs] == [
        ("retried", 1),
        ("retried", 2),
        ("dead_letter", 3),
    ]
    assert {(trace_of(run), parent_of(run)) for run in runs} == {PARENT}
    assert {attributes(run)["error.type"] for run in runs} == {"KeyError"}
    assert {run.status.status_code for run in runs} == {StatusCode.ERROR}
    for name in ("retry shop", "dead_letter shop"):
        for span in recording.named(name):
            assert attributes(span)["messaging.operation.type"] == "settle"
            assert linked(span) == {PARENT[1]}
    (letter,) = await simulated.letters.page(Filter())
    assert letter.message is not None
    assert letter.message.extension("traceparent") == CREATED


async def test_an_exception_is_a_log_event_in_the_span_of_its_run(recording: Recording) -> None:
    """At ERROR, with its traceback. A rejection is a decision, and no exception."""

    def script(message: Message, _resources: object) -> None:
        raise failing("no stock", FailureKind.REJECTED if message.id == "b" else FailureKind.EXCEPTION)

    simulated = await shop_with(order(), order("b"), handlers=ScriptedHandlers(script, Retry(immediate=0, delayed=0)))
    for _ in range(2):
        await one_batch(simulated, instruments(recording).observer)
    logs = [each.log_record for each in recording.logs.get_finished_logs()]
    assert {log.event_name for log in logs} == {"messaging.process.exception"}
    assert {log.severity_text for log in logs} == {"ERROR"}
    assert {(log.attributes or {})["exception.message"] for log in logs} == {"no stock"}
    assert all("Traceback" in str((log.attributes or {})["exception.stacktrace"]) for log in logs)
    failed = {id_of(span) for span in recording.named("process shop") if attributes(span)["messaging.message.id"] == "a"}
    assert {log.span_id for log in logs} <= failed


async def test_a_run_that_is_rolled_back_has_a_span_without_an_outcome(recording: Recording) -> None:
    """The other message's failure ended its unit. Its second run has the outcome."""

    def script(message: Message, _resources: object) -> None:
        if message.id == "b":
            raise failing("no stock")

    simulated = await shop_with(order(), order("b"), handlers=ScriptedHandlers(script))
    await one_batch(simulated, instruments(recording).observer)
    outcomes = [
        (attributes(run)["messaging.message.id"], attributes(run).get("onceonly.outcome"))
        for run in recording.named("process shop")
    ]
    assert outcomes.count(("a", "handled")) == outcomes.count(("b", "retried")) == 1
    assert all(outcome is None for _, outcome in outcomes if (_, outcome) not in {("a", "handled"), ("b", "retried")})
    assert len(recording.named("onceonly.unit")) == 2


class CutOff(MemoryStore):
    """Loses the connection at each commit."""

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin a unit that cannot be committed."""
        unit = await super().begin(messages, isolated=isolated)

        async def commit(_records: object) -> None:
            raise OutcomeUnknown("connection cut")

        unit.commit = commit  # type: ignore[method-assign]
        return unit


async def test_an_unknown_commit_fails_the_unit_and_ends_all_spans(recording: Recording) -> None:
    """The messages are released, so their spans have no outcome."""
    simulated = await shop_with(order(), order("b"))
    store = CutOff(simulated.driver, SHOP, clock=simulated.clock)
    simulated.ports = simulated.ports._replace(store=store)
    await one_batch(simulated, instruments(recording).observer)
    for name in ("commit", "onceonly.unit"):
        assert attributes(recording.one(name))["error.type"] == "onceonly.errors.OutcomeUnknown"
    assert [attributes(run).get("onceonly.outcome") for run in recording.named("process shop")] == [None, None]
    assert recording.one("release shop")


async def test_a_duplicate_has_a_process_span_too(recording: Recording) -> None:
    """No handler ran, and its trace shows that the copy came."""
    simulated = await shop_with(order(), order())
    await one_batch(simulated, instruments(recording).observer)
    outcomes = [attributes(run)["onceonly.outcome"] for run in recording.named("process shop")]
    assert sorted(map(str, outcomes)) == ["duplicate", "handled"]


async def test_spans_never_have_bodies_headers_or_tokens(recording: Recording) -> None:
    """Seeded with secrets everywhere; the size of the body is an option."""
    extensions = (("onceonlytoken", "SECRET-token"), ("traceparent", CREATED))
    message = Message(
        id="a",
        source="web",
        type="order",
        body=b"SECRET-body",
        headers=(("authorization", "SECRET-header"),),
        extensions=extensions,
    )
    simulated = await shop_with(Send(message=message, to=SHOP))
    url = "amqp://user:SECRET-password@broker.test:5671/?prefix=p."
    subject = TelemetrySubject(SHOP, "amqp", url, "history")
    for each in (SUBJECT, subject):
        await one_batch(simulated, recording.setting(body_size=True).instrument(each).observer)
        await simulated.transport.send([Send(message=message, to=SHOP)])
    for span in recording.spans.get_finished_spans():
        assert "SECRET" not in span.to_json()
    assert attributes(recording.named("process shop")[0])["messaging.message.body.size"] == len(b"SECRET-body")


def test_destinations_by_system() -> None:
    """RabbitMQ's has the exchange of an event; others have the type."""
    rabbitmq = EndpointNames.of(TelemetrySubject("shop", "amqp", "amqp://guest:guest@127.0.0.1/?prefix=p.", "history"))
    assert (rabbitmq.system, rabbitmq.queue) == ("rabbitmq", "p.shop")
    assert rabbitmq.server == {"server.address": "127.0.0.1"}
    assert rabbitmq.destination("OrderPlaced", "") == "p.onceonly:event:OrderPlaced"
    assert rabbitmq.destination("PlaceOrder", "billing") == "p.billing"
    assert rabbitmq.destination("OrderPlaced", "exchange:orders#placed") == "exchange:orders#placed"  # without the prefix
    assert rabbitmq.destination("PlaceOrder", "queue:Sales") == "queue:Sales"
    postgresql = EndpointNames.of(TelemetrySubject("shop", "postgresql+psycopg", "postgresql+psycopg://db:5433/x", "off"))
    assert (postgresql.system, postgresql.server) == ("postgresql", {"server.address": "db", "server.port": 5433})
    assert (postgresql.destination("OrderPlaced", ""), postgresql.destination("x", "billing")) == ("OrderPlaced", "billing")
    for scheme, system in (
        ("sqs", "aws_sqs"),
        ("mysql+asyncmy", "mariadb"),
        ("rediss", "redis"),
        ("nats", "nats"),
        ("kafka", "kafka"),
    ):
        assert EndpointNames.of(TelemetrySubject("shop", scheme, f"{scheme}://x", "off")).system == system


def test_error_types_are_bounded(recording: Recording) -> None:
    """A library that makes classes on the fly does not make a metric system fail."""
    tracing: Any = instruments(recording)
    given = [tracing._bounded(f"Error{number}") for number in range(MOST_ERRORS + 10)]
    assert len(set(given)) == MOST_ERRORS + 1
    assert given[-1] == OTHER_ERROR
    assert tracing._bounded("Error0") == "Error0"


def test_a_new_message_has_a_span_that_has_ended(recording: Recording) -> None:
    """Its attributes are those of the message, and its context is what the message carries."""
    made = instruments(recording)
    with recording.request() as request:
        headers = dict(made.created(NewMessage("order", "billing", "m1", (("conversationid", "c1"),), 7)))
    span = recording.one("create billing")
    assert headers == {"traceparent": f"00-{request.trace_id:032x}-{id_of(span):016x}-{span.context.trace_flags:02x}"}  # type: ignore[union-attr]
    assert (span.kind, parent_of(span)) == (SpanKind.PRODUCER, request.span_id)
    assert attributes(span) == {
        "messaging.system": "memory",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.destination.name": "billing",
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "cloudevents.event_source": SHOP,
        "cloudevents.event_type": "order",
        "onceonly.endpoint": SHOP,
    }


def test_tasks_have_spans(recording: Recording) -> None:
    """Of maintenance with the task, of the relay with the number of records, and with the error that ended them."""
    made = instruments(recording)
    with made.task("claims"):
        pass
    with pytest.raises(OutcomeUnknown), made.task("relay", count=3):
        raise OutcomeUnknown("cut")
    assert attributes(recording.one("onceonly.maintenance")) == {"onceonly.endpoint": SHOP, "onceonly.task": "claims"}
    relay = recording.one("onceonly.relay")
    assert (relay.parent, attributes(relay)["messaging.batch.message_count"]) == (None, 3)
    assert attributes(relay)["error.type"] == "onceonly.errors.OutcomeUnknown"


@pytest.mark.parametrize("opt_in", ["", "messaging", "messaging/dup", "http"])
async def test_every_value_of_the_opt_in_gives_the_same_names(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, opt_in: str
) -> None:
    """There is no earlier set of names, and no stable one yet."""
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    simulated = await shop_with(order())
    await one_batch(simulated, instruments(recording).observer)
    assert set(attributes(recording.one("receive shop"))) == {
        "messaging.system",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.destination.name",
        "messaging.batch.message_count",
    }


async def test_nothing_is_kept_of_messages_that_are_settled(recording: Recording) -> None:
    """A process handles a million of them."""
    tracing: Any = instruments(recording)
    simulated = await shop_with(*(order(str(number)) for number in range(20)), order("1"))
    await simulated.work(also=[tracing.observer])
    assert not tracing._units
    assert not tracing._unit_of
    assert not tracing._runs


def test_without_telemetry_nothing_of_it_is_imported() -> None:
    """Off costs nothing, and works without the package."""
    code = "import sys, onceonly; onceonly.Endpoint('a', store='memory://a', transport='memory://a'); "
    code += (
        "import onceonly.endpoint.host; print([m for m in sys.modules if 'opentelemetry' in m or 'onceonly.telemetry' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wrong_settings_are_refused() -> None:
    """With what to write instead."""
    with pytest.raises(SetupError, match="must be OpenTelemetry"):
        Endpoint("shop", store="memory://a", transport="memory://a", telemetry="on")
    with pytest.raises(SetupError, match='must be "creation" or "links"'):
        OpenTelemetry(parent="neither")  # type: ignore[arg-type]
