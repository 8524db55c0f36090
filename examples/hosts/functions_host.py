"""A local Azure Functions host: the services that keep the messages, and the host that delivers them to a worker process.

The rules are those of Azure as its users know them. They were not compared with a host in the cloud. Seconds are shorter here.

Service Bus      Peek-lock. A delivery counts from 1. The host renews locks while it lives, completes a message after its
                 function has returned, and abandons it after an exception. A message whose lock expires, or that is abandoned,
                 is delivered again at once, until it was delivered 10 times (`maxDeliveryCount`): then it is dead-lettered.
                 With cardinality many, all messages of a batch are completed, or all are abandoned.
Storage queues   A message is hidden while its function runs. It is deleted after that has returned, and visible again after
                 an exception. After 5 tries (`maxDequeueCount`) it is moved to the poison queue.
Event Hubs       A batch of a partition, from its checkpoint. The checkpoint is written after the function has ended, also
                 with an exception, unless a retry policy repeats it in the host. A host that dies has not written it.
Timers           The status {Last, Next} is stored. It is written after the function has ended, also with an exception, unless
                 a retry policy repeats it. A host that starts and finds Next in the past runs that tick, past due. A tick
                 during which the host died runs twice.
Output bindings  What a function returns is sent after it has returned, and before the message is completed.

Services outlive hosts. `kill` ends the host and its worker: nothing is settled, and locks expire. `kill_worker` ends the worker
only: the host sees its invocations fail. `freeze` stops both: no lock is renewed, and another host may get the messages.
"""

import asyncio
import json
import os
import signal
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

ROOT = Path(__file__).parents[2]
MAX_DELIVERY_COUNT, MAX_DEQUEUE_COUNT = 10, 5
LOCK_SECONDS, GLANCE_SECONDS = 1.0, 0.02
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass
class Kept:
    """A message in a service, and its lease."""

    id: str
    body: bytes
    properties: Mapping[str, object] = field(default_factory=dict)
    deliveries: int = 0
    lock: str = ""
    until: float = 0.0


class LeasingQueue:
    """A queue of Service Bus, or of Azure Storage: a message is leased to one host at a time."""

    def __init__(self, most: int, *, lease: float = LOCK_SECONDS) -> None:
        self._most, self._lease = most, lease
        self.messages: list[Kept] = []
        self.dead: list[Kept] = []

    def send(self, body: object, *, id_: str = "", **properties: object) -> None:
        """Keep a message. A sender without ids of its own gets a new one for each."""
        self.messages.append(Kept(id_ or uuid4().hex, json.dumps(body).encode(), properties))

    def receive(self, most: int = 1) -> list[Kept]:
        """Lease messages that are not leased. One that was delivered too often is dead."""
        now, found = time.monotonic(), list[Kept]()
        for message in [each for each in self.messages if each.until <= now]:
            if len(found) == most:
                break
            if message.deliveries >= self._most:
                self.messages.remove(message)
                self.dead.append(message)
                continue
            message.deliveries += 1
            message.lock, message.until = uuid4().hex, now + self._lease
            found.append(Kept(**vars(message)))
        return found

    def renew(self, leased: Sequence[Kept]) -> None:
        """Extend leases that are not lost."""
        for message in self._held(leased):
            message.until = time.monotonic() + self._lease

    def complete(self, leased: Sequence[Kept]) -> int:
        """Remove messages whose lease is not lost. Returns how many these are."""
        held = self._held(leased)
        self.messages = [each for each in self.messages if each not in held]
        return len(held)

    def abandon(self, leased: Sequence[Kept]) -> None:
        """Make messages visible at once."""
        for message in self._held(leased):
            message.until = 0.0

    def _held(self, leased: Sequence[Kept]) -> list[Kept]:
        locks, now = {each.lock for each in leased}, time.monotonic()
        return [each for each in self.messages if each.lock in locks and each.until > now]


@dataclass
class Partition:
    """A partition of an event hub, and the checkpoint of one consumer group."""

    events: list[Kept] = field(default_factory=list)
    checkpoint: int = 0

    def send(self, body: object, **properties: object) -> None:
        """Append an event."""
        self.events.append(Kept(uuid4().hex, json.dumps(body).encode(), properties))


@dataclass
class TimerStatus:
    """The stored schedule of a timer that is due each minute. `wanted` ticks are planned, all of them in the past."""

    wanted: int = 0
    ticks: int = 0
    runs: int = 0

    @property
    def due(self) -> bool:
        """Whether a planned tick has not run."""
        return self.ticks < self.wanted

    @property
    def status(self) -> dict[str, str]:
        """What a function sees while the next tick runs."""
        last, planned = (EPOCH + timedelta(minutes=each) for each in (self.ticks - 1, self.ticks))
        return {"Last": last.isoformat(), "Next": planned.isoformat(), "LastUpdated": last.isoformat()}


@dataclass
class Cloud:
    """What outlives a host. Keys are names of functions."""

    service_bus: dict[str, LeasingQueue] = field(default_factory=dict)
    storage: dict[str, LeasingQueue] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    timers: dict[str, TimerStatus] = field(default_factory=dict)
    sent: list[Any] = field(default_factory=list)
    """What output bindings have sent."""

    @property
    def waiting(self) -> int:
        """How much is not handled."""
        queues = [*self.service_bus.values(), *self.storage.values()]
        behind = sum(len(each.events) - each.checkpoint for each in self.partitions.values())
        ticks = sum(each.wanted - each.ticks for each in self.timers.values())
        return sum(len(each.messages) for each in queues) + behind + ticks


class WorkerDied(Exception):
    """The worker process ended during an invocation."""


class FunctionFailed(Exception):
    """A function has raised."""


class FunctionsHost:
    """One instance: a host and its worker process. It delivers until it is killed, frozen or stopped."""

    def __init__(
        self,
        cloud: Cloud,
        module: str,
        environment: Mapping[str, str],
        *,
        concurrency: int = 8,
        batch: int = 1,
        has_retry_policy: bool = True,
    ) -> None:
        self._cloud, self._module, self._environment = cloud, module, environment
        self._concurrency, self._batch, self._has_retry_policy = concurrency, batch, has_retry_policy
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._turning, self._ready = asyncio.Event(), asyncio.Event()
        self._reported: asyncio.Queue[str] = asyncio.Queue()
        self.errors: list[str] = []

    async def start(self) -> None:
        """Start the worker, and deliver."""
        self._turning.set()
        await self._start_worker()
        leasing = [(self._cloud.service_bus, "service_bus"), (self._cloud.storage, "storage")]
        pumps = [
            *(
                self._leasing(name, each, service)
                for queues, service in leasing
                for name, each in queues.items()
                for _ in range(self._concurrency)
            ),
            *(self._partition(name, each) for name, each in self._cloud.partitions.items()),
            *(self._timer(name, each) for name, each in self._cloud.timers.items()),
        ]
        self._tasks += [asyncio.create_task(each) for each in pumps]

    async def kill(self) -> None:
        """End host and worker with SIGKILL. What was leased stays so until its lease ends."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End host and worker."""
        await self._end(signal.SIGTERM)

    async def kill_worker(self) -> None:
        """End the worker with SIGKILL. Its invocations fail, and the host starts another one."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            await self._start_worker()

    def freeze(self) -> None:
        """Stop host and worker where they are."""
        self._turning.clear()
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)
        self._turning.set()

    async def report(self) -> str:
        """Wait for the next line that the application prints."""
        return await self._reported.get()

    def reports(self) -> list[str]:
        """Return the lines that the application has printed and that were not waited for."""
        return [self._reported.get_nowait() for _ in range(self._reported.qsize())]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _end(self, number: signal.Signals) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._signal(number)
        if self._process is not None:
            await self._process.wait()

    async def _start_worker(self) -> None:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "examples.hosts.functions_worker",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **self._environment},
            limit=1 << 24,
        )
        self._ready.clear()
        self._waiting = {}
        self._tasks.append(asyncio.create_task(self._read(process.stdout, self._waiting)))
        await self._ready.wait()

    async def _read(self, output: asyncio.StreamReader | None, waiting: dict[int, "asyncio.Future[Any]"]) -> None:
        """Take outcomes and reports. Whatever the worker had in work when it ended has failed."""
        while output is not None and (line := (await output.readline()).decode().strip()):
            if line == "ready":
                self._ready.set()
            elif line.startswith("{"):
                told = json.loads(line)
                if (found := waiting.pop(told["invocation"], None)) is not None and not found.done():
                    found.set_result(told)
            else:
                self._reported.put_nowait(line)
        for each in waiting.values():
            if not each.done():
                each.set_exception(WorkerDied())
        self._reported.put_nowait("")
        self._ready.set()

    async def invoke(self, function: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> Any:
        """Have the worker call a function. Raises FunctionFailed, WorkerDied."""
        process = self._process
        if process is None or process.stdin is None:
            raise WorkerDied
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        invocation = {"invocation": number, "function": function, "data": data, "metadata": metadata}
        try:
            process.stdin.write(f"{json.dumps(invocation)}\n".encode())
            await process.stdin.drain()
        except ConnectionError:
            raise WorkerDied from None
        told = await future
        if not self._turning.is_set():
            await self._turning.wait()  # it is frozen, so it sees the outcome later
        if "error" in told:
            self.errors.append(told["error"])
            raise FunctionFailed(told["error"])
        if told["returned"] is not None:
            returned = told["returned"]
            self._cloud.sent += returned if isinstance(returned, list) else [returned]
        return told["returned"]

    async def _leasing(self, name: str, queue: LeasingQueue, service: str) -> None:
        while True:
            await self._turning.wait()
            if not (leased := queue.receive(self._batch)):
                await asyncio.sleep(GLANCE_SECONDS)
                continue
            renewing = asyncio.create_task(self._renew(queue, leased))
            try:
                await self.invoke(name, *_DATA[service](leased))
            except (FunctionFailed, WorkerDied):
                queue.abandon(leased)
                await asyncio.sleep(GLANCE_SECONDS)
            else:
                queue.complete(leased)
            finally:
                renewing.cancel()

    async def _renew(self, queue: LeasingQueue, leased: Sequence[Kept]) -> None:
        while True:
            await asyncio.sleep(LOCK_SECONDS / 4)
            await self._turning.wait()
            queue.renew(leased)

    async def _partition(self, name: str, partition: Partition) -> None:
        while True:
            await self._turning.wait()
            first = partition.checkpoint
            if not (events := partition.events[first : first + max(self._batch, 10)]):
                await asyncio.sleep(GLANCE_SECONDS)
                continue
            await self._repeated(partial(self.invoke, name, *events_data(events, first)))
            partition.checkpoint = first + len(events)

    async def _repeated(self, call: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await call()
            except (FunctionFailed, WorkerDied):
                await asyncio.sleep(GLANCE_SECONDS)
                if self._has_retry_policy:
                    continue
            return

    async def _timer(self, name: str, timer: TimerStatus) -> None:
        while True:
            await self._turning.wait()
            if not timer.due:
                await asyncio.sleep(GLANCE_SECONDS)
                continue
            timer.runs += 1
            told = {"IsPastDue": True, "ScheduleStatus": timer.status, "Schedule": {"AdjustForDST": True}}
            await self._repeated(partial(self.invoke, name, {"type": "json", "value": json.dumps(told)}, {}))
            timer.ticks += 1


def _text(value: object) -> dict[str, object]:
    return {"type": "string", "value": value}


def _json(value: object) -> dict[str, object]:
    return {"type": "json", "value": json.dumps(value)}


def service_bus_data(leased: Sequence[Kept], *, many: bool = False) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a Service Bus trigger sends to a worker for one message, or for a batch."""
    bodies = [b64encode(each.body).decode() for each in leased]
    if many or len(leased) > 1:
        return {"type": "collection_bytes", "value": bodies}, {
            "MessageIdArray": _json([each.id for each in leased]),
            "DeliveryCountArray": _json([each.deliveries for each in leased]),
            "ContentTypeArray": _json(["application/json"] * len(leased)),
            "LockTokenArray": _json([each.lock for each in leased]),
            "ApplicationPropertiesArray": _json([each.properties for each in leased]),
            "UserPropertiesArray": _json([each.properties for each in leased]),
        }
    (message,) = leased
    return {"type": "bytes", "value": bodies[0]}, {
        "MessageId": _text(message.id),
        "DeliveryCount": _json(message.deliveries),
        "ContentType": _text("application/json"),
        "LockToken": _text(message.lock),
        "ApplicationProperties": _json(message.properties),
        "UserProperties": _json(message.properties),
    }


def storage_data(leased: Sequence[Kept]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what a Storage queue trigger sends to a worker. It has no batches, and no properties."""
    (message,) = leased
    metadata = {"Id": _text(message.id), "DequeueCount": _json(message.deliveries), "PopReceipt": _text(message.lock)}
    return {"type": "string", "value": message.body.decode()}, metadata


def events_data(events: Sequence[Kept], first: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what an Event Hubs trigger with cardinality many sends to a worker."""
    places = [{"SequenceNumber": number, "Offset": str(number)} for number in range(first, first + len(events))]
    return {"type": "collection_bytes", "value": [b64encode(each.body).decode() for each in events]}, {
        "SystemPropertiesArray": _json(places),
        "PropertiesArray": _json([each.properties for each in events]),
        "PartitionContext": _json({"EventHubName": "orders", "ConsumerGroup": "$Default", "PartitionId": "0"}),
    }


_DATA: Mapping[str, Callable[[Sequence[Kept]], tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "service_bus": service_bus_data,
    "storage": storage_data,
}
