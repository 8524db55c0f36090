"""What a host started is counted: in metrics, gauges, spans and the status, with `hosted` and in FastStream's transactions."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pydantic import BaseModel

from onceonly import Endpoint, IdentityField, Reject, Retry
from onceonly.assembly import open_store, open_transport
from onceonly.integrations.faststream import ExactlyOnceMiddleware, Tx
from onceonly.model.health import ProcessState
from onceonly.ports.transport import Topology
from onceonly.runtime.metrics import catalog
from tests.endpoint.hosted_harness import Order, Placed, order, sql_shop
from tests.telemetry.recording import Recording, attributes, id_of, parent_of, trace_of
from tests.telemetry.test_metrics import counted, points

Points = dict[str, tuple[str, list[Any]]]


class PlaceOrder(BaseModel):
    """What a client sends to FastStream."""

    order_id: str


def gauge(found: Points, metric: catalog.Metric) -> dict[str, float]:
    """Return the values of a gauge by endpoint."""
    _, rows = found.get(metric.name, ("", []))
    return {row.attributes[catalog.ENDPOINT]: row.value for row in rows}


async def until(reader: InMemoryMetricReader, holds: Callable[[Points], bool]) -> Points:
    """Read until something holds."""
    async with asyncio.timeout(60):
        while not holds(found := points(reader)):  # noqa: ASYNC110 - the reader has no event
            await asyncio.sleep(0.05)
    return found


async def reported(shop: Endpoint, holds: Callable[[ProcessState], bool]) -> ProcessState:
    """Return the report of the process, once it says something."""
    async with open_store(shop.settings) as opened, asyncio.timeout(60):
        assert opened.presence is not None
        while True:
            for each in await opened.presence.read():
                if holds(each):
                    return each
            await asyncio.sleep(0.05)


async def test_units_of_hosted_are_counted_as_those_of_a_worker(recording: Recording, tmp_path: Path) -> None:
    """A message, a copy of it, and one that is given up."""
    reader = InMemoryMetricReader()
    telemetry = recording.setting(meter_provider=MeterProvider([reader]), gauges=timedelta(seconds=1))
    queue = f"sqlite:///{tmp_path}/queue.db"
    shop = sql_shop(f"sqlite:///{tmp_path}/shop.db", queue, telemetry=telemetry, retry=Retry(immediate=0, delayed=0))

    @shop.handler(type="Refused")
    async def refuse(_: Order) -> None:
        raise Reject("no")

    headers = {**order("c").headers, "ce-type": "Refused"}
    async with shop.hosted() as hosted, open_transport(queue, "shop") as transport:
        await transport.declare([Topology(endpoint="shop")])
        await hosted.handle([order("a")])
        await hosted.handle([order("a", 2)])
        assert (await hosted.handle([order("c", headers=headers)]))[0].is_dead
        found = await until(reader, lambda found: gauge(found, catalog.DEAD_LETTERS) == {"shop": 1})
        process = await reported(shop, lambda each: each.report.counters["handled"] == 1)
    outcomes = counted(found, catalog.MESSAGES)
    assert outcomes == {
        ("shop", "Order", "handled"): 1,
        ("shop", "Order", "duplicate"): 1,
        ("shop", "Refused", "dead_letter"): 1,
    }
    assert counted(found, catalog.CONSUMED)["shop", "sqlite", "receive", "shop", ""] == 3
    assert counted(found, catalog.SENT)["shop", "sqlite", "send", "Placed", ""] == 1
    assert {row.attributes[catalog.ENDPOINT]: row.count for row in found[catalog.PROCESS_DURATION.name][1]} == {"shop": 1}
    assert gauge(found, catalog.PENDING) == {"shop": 0}
    assert gauge(found, catalog.DEAD_LETTERS_OLDEST)["shop"] >= 0
    assert gauge(found, catalog.PENDING_OLDEST) == {"shop": 0}
    assert {row.value for row in found[catalog.UP.name][1]} == {1}
    assert {row.attributes[catalog.STATE] for row in found[catalog.QUEUE_MESSAGES.name][1]} == {"waiting", "held", "delayed"}
    assert (process.report.counters["duplicates"], process.report.counters["dead_letters"], process.is_stale) == (1, 1, False)
    assert {attributes(span)["messaging.message.id"] for span in recording.named("process shop")} == {"a", "c"}
    assert parent_of(recording.one("commit")) in {id_of(span) for span in recording.named("onceonly.unit")}
    (send,) = recording.named("send Placed")
    assert parent_of(recording.one("create Placed")) is not None
    assert send.end_time is not None


async def test_transactions_of_faststream_are_counted(recording: Recording, tmp_path: Path) -> None:
    """Commits and known keys in the status, phases and messages in metrics; spans belong to the trace of the consumer."""
    reader = InMemoryMetricReader()
    telemetry = recording.setting(meter_provider=MeterProvider([reader]), gauges=timedelta(seconds=1))
    shop = Endpoint(
        "shop", store=f"sqlite:///{tmp_path}/shop.db", transport=f"sqlite:///{tmp_path}/queue.db", telemetry=telemetry
    )
    broker = RabbitBroker(middlewares=[ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))])

    @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def place(order: PlaceOrder, tx: Tx) -> None:
        tx.publish(Placed(order.order_id))

    async with shop.sending(), TestRabbitBroker(broker) as test:
        with recording.request("orders process") as consumer:
            for _ in range(2):
                await test.publish({"order_id": "a"}, "orders")
        found = await until(reader, lambda found: catalog.SENT.name in found and gauge(found, catalog.PENDING) == {"shop": 0})
        process = await reported(shop, lambda each: each.report.counters["handled"] == 1)
    assert process.report.counters["duplicates"] == 1
    assert process.report.types == ()
    assert not process.is_stale
    assert counted(found, catalog.SENT) == {("shop", "sqlite", "send", "Placed", ""): 1}
    phases = {row.attributes[catalog.PHASE]: row.count for row in found[catalog.UNIT_DURATION.name][1]}
    assert (phases["begin"], phases["commit"]) == (2, 1)
    assert gauge(found, catalog.DEAD_LETTERS) == {"shop": 0}
    assert trace_of(recording.one("create Placed")) == consumer.trace_id
    await recording.until("onceonly.relay")
