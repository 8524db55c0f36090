"""A local Azure Functions host: the services that keep the messages, and the host that delivers them to a worker process.

The rules are those of Azure's documentation and of the published source of the host's extensions. They were not compared with
a host in the cloud. Seconds are shorter here. The source of each rule is in brackets, and listed below.

Service Bus      Peek-lock. A delivery counts from 1. The host renews locks while it lives, completes a message after its
                 function has returned, and abandons it after an exception [1]. A message whose lock expires, or that is
                 abandoned, is delivered again at once, until it was delivered 10 times (`maxDeliveryCount`). Then the service
                 dead-letters it with the reason `MaxDeliveryCountExceeded` [2]. A settlement with a lock that has expired
                 fails. With cardinality many, all messages of a batch are completed, or all are abandoned.
Sessions         The messages of a session are delivered one after another, in order, to one host at a time [3]. Here a batch
                 has one message of a session.
Storage queues   A message is hidden while its function runs. It is deleted after that has returned, and visible again after
                 an exception. After 5 tries (`maxDequeueCount`) the host moves it to the queue `<name>-poison`, which keeps no
                 reason [4].
Event Hubs       A batch of a partition, from its checkpoint. The checkpoint is written after the function has ended, also
                 with an exception, unless a retry policy repeats it in the host [5]. A host that dies has not written it.
Timers           One host at a time runs a timer: it holds a lease. The status {Last, Next} is stored. It is written after the
                 function has ended, also with an exception, after all repetitions of a retry policy. Next is the first
                 instant of the schedule after the run began, so ticks that no host ran are one run, not several. A host that
                 starts and finds Next in the past runs that tick, past due. All later runs of this host are not past due.
                 A tick during which the host died runs again, by the next host [6]. The documentation says that the retries
                 of a timer do not go on in another instance [5]. The run of a tick that is past due is not one of these.
HTTP             The client waits. It gets the response, 500 after an exception, or none if the host dies. Nothing is repeated.
Output bindings  What a function returns is sent after it has returned, and before the message is completed.

Services outlive hosts. `kill` ends the host and its worker: nothing is settled, and locks expire. `kill_worker` ends the worker
only: the host sees its invocations fail. `freeze` stops both: no lock is renewed, and another host may get the messages.

1  Azure Service Bus trigger for Azure Functions, PeekLock behavior
2  Overview of Service Bus dead-letter queues, maximum delivery count
3  Message sessions (Azure Service Bus)
4  Azure Queue storage trigger for Azure Functions, poison messages
5  Azure Functions error handling and retries, retry policies
6  Timer trigger for Azure Functions; TimerListener of azure-webjobs-sdk-extensions
"""

import asyncio
import json
import os
import signal
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

ROOT = Path(__file__).parents[2]
MAX_DELIVERY_COUNT, MAX_DEQUEUE_COUNT = 10, 5
SERVER_ERROR = 500
TOO_MANY_DELIVERIES = "MaxDeliveryCountExceeded"
SESSION = "session"
"""The property of a message in this model that is its session."""
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
    reason: str = ""
    """Why it is a dead letter. A poison queue keeps none."""

    @property
    def session(self) -> str:
        """The session of the message. Empty if it has none."""
        return str(self.properties.get(SESSION, ""))


class LeasingQueue:
    """A queue or a subscription of Service Bus, or a queue of Azure Storage: a message is leased to one host at a time."""

    def __init__(self, most: int, *, lease: float = LOCK_SECONDS, reason: str = TOO_MANY_DELIVERIES) -> None:
        self._most, self._lease, self._reason = most, lease, reason
        self.messages: list[Kept] = []
        self.dead: list[Kept] = []

    def send(self, body: object, *, id_: str = "", **properties: object) -> None:
        """Keep a message. A sender without ids of its own gets a new one for each."""
        self.messages.append(Kept(id_ or uuid4().hex, json.dumps(body).encode(), properties))

    def receive(self, most: int = 1) -> list[Kept]:
        """Lease messages that are not leased. One that was delivered too often is dead."""
        now, found = time.monotonic(), list[Kept]()
        busy = {each.session for each in self.messages if each.session and each.until > now}
        for message in [each for each in self.messages if each.until <= now]:
            if len(found) == most:
                break
            if message.session in busy:
                continue
            if message.deliveries >= self._most:
                self.messages.remove(message)
                message.reason = self._reason
                self.dead.append(message)
                continue
            if message.session:
                busy.add(message.session)
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

    def abandon(self, leased: Sequence[Kept]) -> int:
        """Make messages visible at once whose lease is not lost. Returns how many these are."""
        held = self._held(leased)
        for message in held:
            message.until = 0.0
        return len(held)

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
    """The stored schedule of a timer that is due each minute, and the lease of the host that runs it.

    `wanted` counts the ticks whose instant has passed. `ticks` is the number of the next one by the stored status.
    """

    wanted: int = 0
    ticks: int = 0
    runs: int = 0
    began: set[int] = field(default_factory=set)
    """The numbers of the ticks that were run, or begun."""
    holder: object = None
    until: float = 0.0

    @property
    def due(self) -> bool:
        """Whether a planned tick has not run."""
        return self.ticks < self.wanted

    @property
    def status(self) -> dict[str, str]:
        """What a function sees while the next tick runs."""
        last, planned = (EPOCH + timedelta(minutes=each) for each in (self.ticks - 1, self.ticks))
        return {"Last": last.isoformat(), "Next": planned.isoformat(), "LastUpdated": last.isoformat()}

    def is_held_by(self, host: object) -> bool:
        """Take or renew the lease for a host. Returns whether it has it."""
        if self.holder not in {None, host} and self.until > time.monotonic():
            return False
        self.holder, self.until = host, time.monotonic() + LOCK_SECONDS
        return True


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
    def messages_waiting(self) -> int:
        """How many messages and events are not handled."""
        queues = [*self.service_bus.values(), *self.storage.values()]
        behind = sum(len(each.events) - each.checkpoint for each in self.partitions.values())
        return sum(len(each.messages) for each in queues) + behind

    @property
    def waiting(self) -> int:
        """How much is not handled, ticks included."""
        return self.messages_waiting + sum(each.due for each in self.timers.values())


class ClientRequest(NamedTuple):
    """A request of a client to an HTTP function."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class ClientResponse(NamedTuple):
    """The response to it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Settled(NamedTuple):
    """What the host did with the messages of an invocation. `held` counts those whose lock was not lost."""

    ids: Sequence[str]
    is_completed: bool
    held: int


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
        self.settled: asyncio.Queue[Settled] = asyncio.Queue()

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
        process, self._process = self._process, None
        if process is not None:
            await process.wait()
        self._fail(self._waiting)

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
        self._fail(waiting)
        self._reported.put_nowait("")
        self._ready.set()

    @staticmethod
    def _fail(waiting: dict[int, "asyncio.Future[Any]"]) -> None:
        for each in waiting.values():
            if not each.done():
                each.set_exception(WorkerDied())

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
        return told.get("returned")

    async def request(self, function: str, request: ClientRequest) -> ClientResponse:
        """Send a request to an HTTP function. Returns 500 after an exception. Raises WorkerDied if there is no response."""
        try:
            returned = await self.invoke(function, http_data(request), {})
        except FunctionFailed:
            return ClientResponse(SERVER_ERROR, {}, b"")
        return ClientResponse(returned["status"], returned["headers"], b64decode(returned["body"]))

    async def _leasing(self, name: str, queue: LeasingQueue, service: str) -> None:
        while True:
            await self._turning.wait()
            if not (leased := queue.receive(self._batch)):
                await asyncio.sleep(GLANCE_SECONDS)
                continue
            renewing = asyncio.create_task(self._renew(queue, leased))
            try:
                returned = await self.invoke(name, *_DATA[service](leased))
                if returned is not None:
                    self._cloud.sent += returned if isinstance(returned, list) else [returned]
            except (FunctionFailed, WorkerDied):
                self.settled.put_nowait(Settled([each.id for each in leased], is_completed=False, held=queue.abandon(leased)))
                await asyncio.sleep(GLANCE_SECONDS)
            else:
                self.settled.put_nowait(Settled([each.id for each in leased], is_completed=True, held=queue.complete(leased)))
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
        is_past_due = timer.due
        while True:
            await self._turning.wait()
            if not timer.is_held_by(self) or not timer.due:
                await asyncio.sleep(GLANCE_SECONDS)
                continue
            timer.runs += 1
            timer.began.add(timer.ticks)
            next_ = timer.wanted  # of the instant at which it began
            renewing = asyncio.create_task(self._hold(timer))
            told = {"IsPastDue": is_past_due, "ScheduleStatus": timer.status, "Schedule": {"AdjustForDST": True}}
            try:
                await self._repeated(partial(self.invoke, name, {"type": "json", "value": json.dumps(told)}, {}))
            finally:
                renewing.cancel()
            timer.ticks, is_past_due = next_, False

    async def _hold(self, timer: TimerStatus) -> None:
        while True:
            await asyncio.sleep(LOCK_SECONDS / 4)
            await self._turning.wait()
            timer.is_held_by(self)


def _text(value: object) -> dict[str, object]:
    return {"type": "string", "value": value}


def _json(value: object) -> dict[str, object]:
    return {"type": "json", "value": json.dumps(value)}


def http_data(request: ClientRequest) -> Mapping[str, Any]:
    """Return what an HTTP trigger sends to a worker."""
    query = dict(parse_qsl(urlsplit(request.url).query))
    value = {"method": request.method, "url": request.url, "headers": request.headers, "query": query}
    return {"type": "http", "value": {**value, "body": b64encode(request.body).decode()}}


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
            "SessionIdArray": _json([each.session or None for each in leased]),
        }
    (message,) = leased
    return {"type": "bytes", "value": bodies[0]}, {
        "MessageId": _text(message.id),
        "DeliveryCount": _json(message.deliveries),
        "ContentType": _text("application/json"),
        "LockToken": _text(message.lock),
        "ApplicationProperties": _json(message.properties),
        "UserProperties": _json(message.properties),
        **({"SessionId": _text(message.session)} if message.session else {}),
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
