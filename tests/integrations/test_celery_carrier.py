"""The carrier of Celery's messages: what becomes of those that a broker takes, does not take, or does not confirm."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue, binding, pools
from redis import Redis

from onceonly.integrations.celery_carrier import CeleryCarrier, app_of
from onceonly.integrations.celery_messages import StoredTask, _described, _text_or_base64, read_stored
from onceonly.model.errors import SetupError
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Answer
from onceonly.queues.carriers import CarryingTransport
from tests import ROOT
from tests.integrations.celery_harness import CeleryPlace, broker_url
from tests.servers.available import POSTGRESQL, need, postgresql_database


class Broker:
    """An application, and its queue on a broker."""

    def __init__(self, url: str) -> None:
        self.name = f"celery-{uuid4().hex[:8]}"
        self.url = url
        self.app = Celery(self.name, broker=url, set_as_current=False)
        self.options = {"global_keyprefix": f"{self.name}:"} if url.startswith("redis") else {}
        self.app.conf.update(task_default_queue=self.name, broker_transport_options=self.options)

    def send(self, item: str, **changes: Any) -> Send:
        """Return the record of a task."""
        queue = {
            "kind": "queue",
            "name": self.name,
            "exchange": {"name": self.name, "type": "direct"},
            "routing_key": self.name,
        }
        fields = {
            "exchange": "", "routing_key": self.name, "content_type": "application/json", "content_encoding": "utf-8",
            "text": f'[["{item}"], {{}}, {{}}]', "headers": {"task": "tests.note", "id": item},
            "properties": {"correlation_id": item}, "delivery_mode": 2, "declares": [queue],
        }  # fmt: skip
        return self.record(msgspec.json.encode(StoredTask(**(fields | changes))), item)

    def record(self, body: bytes, item: str, name: str | None = None, **more: Any) -> Send:
        """Return a message for the carrier."""
        message = Message(id=item, source="shop", type="tests.note", body=body, **more)
        return Send(message=message, to=f"carrier:celery:{name or self.name}")

    def received(self) -> list[Any]:
        """Take what waits in the queue."""
        with Connection(self.url, transport_options=self.options) as connection:
            channel: Any = connection.channel()
            queue, found = Queue(self.name, routing_key=self.name)(channel), []
            while (message := queue.get(no_ack=True)) is not None:
                found.append(message)
        return found

    def remove(self) -> None:
        """Remove the queue."""
        with Connection(self.url, transport_options=self.options) as connection:
            channel: Any = connection.channel()
            channel.queue_delete(self.name)
            if not self.options:
                channel.exchange_delete(self.name)
        if self.options:
            with Redis.from_url(self.url) as redis:
                for key in redis.scan_iter(match=f"{self.name}:*", count=1000):
                    redis.delete(key)
        self.app.close()
        pools.reset()


@pytest.fixture(params=["rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Make a queue on each broker."""
    found = Broker(broker_url(request.param))
    yield found
    found.remove()


@pytest.fixture
def rabbitmq() -> Iterator[Broker]:
    """Make a queue on RabbitMQ."""
    found = Broker(broker_url("rabbitmq"))
    yield found
    found.remove()


@pytest.fixture
async def carrier() -> AsyncIterator[CeleryCarrier]:
    """Make a carrier."""
    found = CeleryCarrier()
    yield found
    await found.close()


async def test_a_batch_is_taken_in_order(broker: Broker, carrier: CeleryCarrier) -> None:
    """Each with its headers, properties and body."""
    sends = [broker.send(f"t{number}") for number in range(50)]
    assert await carrier.send(sends) == (Answer.TAKEN,) * 50
    assert await carrier.send(sends[:1]) == (Answer.TAKEN,)
    received = broker.received()
    assert [each.headers["id"] for each in received] == [f"t{number}" for number in range(50)] + ["t0"]
    first = received[0]
    assert (first.content_type, first.content_encoding) == ("application/json", "utf-8")
    assert first.properties["correlation_id"] == "t0"
    assert json.loads(first.body) == [["t0"], {}, {}]


async def test_what_has_no_queue_is_refused_and_the_others_are_taken(rabbitmq: Broker, carrier: CeleryCarrier) -> None:
    """A route to nowhere, an exchange that is missing, and a queue that was declared otherwise."""
    queue = {"kind": "queue", "name": rabbitmq.name, "exchange": {"name": rabbitmq.name, "type": "direct"}, "durable": False}
    sends = [
        rabbitmq.send("a"),
        rabbitmq.send("nowhere", routing_key=f"{rabbitmq.name}-missing"),
        rabbitmq.send("exchange", exchange=f"{rabbitmq.name}-missing", declares=[]),
        rabbitmq.send("other", declares=[queue]),
        rabbitmq.send("b"),
    ]
    taken, refused = Answer.TAKEN, Answer.REFUSED
    assert await carrier.send(sends) == (taken, refused, refused, refused, taken)
    assert {each.headers["id"] for each in rabbitmq.received()} == {"a", "b"}
    assert await carrier.send(sends[:2]) == (taken, refused)


async def test_what_the_driver_cannot_write_is_refused_alone(rabbitmq: Broker, carrier: CeleryCarrier) -> None:
    """A number that no header of AMQP can have."""
    sends = [rabbitmq.send("a"), rabbitmq.send("b", headers={"task": "t", "id": "b", "n": 2**80}), rabbitmq.send("c")]
    assert await carrier.send(sends) == (Answer.TAKEN, Answer.REFUSED, Answer.TAKEN)
    assert {each.headers["id"] for each in rabbitmq.received()} == {"a", "c"}


async def test_an_event_without_a_listener_is_taken(rabbitmq: Broker, carrier: CeleryCarrier) -> None:
    """Events of Celery may have none."""
    exchange = {"kind": "exchange", "name": rabbitmq.name, "type": "topic"}
    event = rabbitmq.send(
        "event", headers={"hostname": "x"}, exchange=rabbitmq.name, routing_key="task.sent", declares=[exchange]
    )
    assert await carrier.send([event]) == (Answer.TAKEN,)


async def test_what_cannot_be_read_or_has_no_application_is_refused(broker: Broker, carrier: CeleryCarrier) -> None:
    """The others of the batch are sent."""
    body = broker.send("x").message.body
    sends = [broker.record(b"{}", "a"), broker.record(b"\xff", "b"), broker.record(body, "c", name="missing"), broker.send("d")]
    assert await carrier.send(sends) == (Answer.REFUSED, Answer.REFUSED, Answer.REFUSED, Answer.TAKEN)
    with pytest.raises(SetupError, match="no Celery application 'missing'"):
        app_of("missing")
    twin = Celery(broker.name, set_as_current=False)
    with pytest.raises(SetupError, match="2 Celery applications"):
        app_of(broker.name)
    twin.close()


async def test_the_trace_context_goes_along(broker: Broker, carrier: CeleryCarrier) -> None:
    """Unless an instrumentation has written one."""
    context = (("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),)
    plain = broker.send("a").message.body
    traced = broker.send("b", headers={"task": "tests.note", "id": "b", "traceparent": "own"}).message.body
    await carrier.send([broker.record(plain, "a", extensions=context), broker.record(traced, "b", extensions=context)])
    assert [each.headers["traceparent"] for each in broker.received()] == [context[0][1], "own"]


async def test_a_lost_connection_is_unknown_and_the_next_call_connects_again(carrier: CeleryCarrier) -> None:
    """The broker is away, then it is back."""
    broker = Broker("amqp://guest:guest@127.0.0.1:1//")
    broker.app.conf.broker_connection_timeout = 1
    assert await carrier.send([broker.send("a"), broker.send("b")]) == (Answer.UNKNOWN, Answer.UNKNOWN)
    broker.app.close()


async def test_a_connection_that_was_closed_meanwhile_is_opened_again(rabbitmq: Broker, carrier: CeleryCarrier) -> None:
    """Within the same call: idle connections are closed by brokers and what is between."""
    assert await carrier.send([rabbitmq.send("a")]) == (Answer.TAKEN,)
    carrier._links[rabbitmq.name]._connection.connection.transport.sock.close()
    assert await carrier.send([rabbitmq.send("b")]) == (Answer.TAKEN,)
    assert [each.headers["id"] for each in rabbitmq.received()] == ["a", "b"]


async def test_a_process_without_the_application_refuses(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the message to one that has it."""
    monkeypatch.setattr("onceonly.systems.carriers._OPENERS", {})

    class Own:
        """A transport that takes everything."""

        async def send(self, sends: Any) -> tuple[Answer, ...]:
            """Take them."""
            return (Answer.TAKEN,) * len(sends)

    transport = CarryingTransport(Own(), "shop")  # type: ignore[arg-type]
    other = Send(message=broker.send("a").message, to="billing")
    assert await transport.send([broker.send("a"), other]) == (Answer.REFUSED, Answer.TAKEN)


def test_queues_and_exchanges_are_described_completely() -> None:
    """With their arguments and bindings."""
    exchange = Exchange("orders", "topic", durable=False, arguments={"x": 1})
    queue = Queue(
        "q", exchange, "orders.#", queue_arguments={"x-queue-type": "quorum"}, max_priority=9, message_ttl=5.5, expires=60.0,
        bindings=[binding(exchange, "a"), binding(Exchange("other"), "b")],
    )  # fmt: skip
    for entity in (queue, exchange):
        described = msgspec.json.decode(msgspec.json.encode(_described(entity, "t")))
        stored = StoredTask(exchange="", routing_key="", content_type="x", content_encoding="utf-8", declares=[described])
        (read,) = stored.entities
        assert read == entity
    assert len(stored.entities) == 1


def test_a_body_is_read_back_equal() -> None:
    """Text and bytes."""
    for body, encoding in ((b"\x00\xff", "binary"), ("ä".encode(), "utf-8")):
        text, data = _text_or_base64(body, encoding)
        stored = StoredTask(exchange="", routing_key="", content_type="x", content_encoding=encoding, text=text, data=data)
        assert read_stored(msgspec.json.encode(stored)).body == body


@contextmanager
def view_place(tmp_path: Path, broker: str) -> Iterator[CeleryPlace]:
    """Make a place with PostgreSQL."""
    need(POSTGRESQL)
    with postgresql_database() as store:
        place = CeleryPlace(store, broker_url(broker), tmp_path)
        place.create_tables()
        yield place
        place.remove()


VIEW = """
from tests.integrations import celery_app as app
from tests.integrations.celery_models import Line
from onceonly.integrations.celery import captured, delay
with app.sessions() as session:
    session.add(Line(task="view", item="v"))
    with captured(app.shop.enlist(session)):
        app.note.delay("v")
    session.commit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["rabbitmq", pytest.param("redis", marks=pytest.mark.repeated)])
def test_a_relay_sends_what_a_view_has_committed(tmp_path: Path, broker: str) -> None:
    """The view's process ends at once. The endpoint has no transport of its own."""
    with view_place(tmp_path, broker) as place:
        environment = {**os.environ, **place.environment}
        subprocess.run([sys.executable, "-c", VIEW], cwd=ROOT, env=environment, check=True)
        assert (place.records(), place.waiting()) == (1, 0)
        command = [sys.executable, "-m", "onceonly", "relay", "--once", "tests.integrations.celery_app:shop"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        assert (place.records(), place.waiting()) == (0, 1)
        with place.worker():
            place.wait_for("note v")
        assert place.lines() == {"view v": 1, "note v": 1}
