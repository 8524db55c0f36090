"""One harness of all fault runs: foreign producers, processes that are killed, a fault on the way, an audit that wants zeros.

    result = await fault_run(place, Plan(messages=100_000, kill_every=1.0), fault)

Every tenth message is sent twice, all in an order that the seed decides. `fault` runs beside the work until it returns or
the work is done. The audit at the end fails on anything that was lost, handled twice, announced twice or
without a row, left over, or given up.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.adversary.harness import Headers, Place, Worker, cloud_event
from tests.servers.available import MEASURED

CHUNK = 200
COPIED_EVERY = 10
SLOW_EVERY = 100
AHEAD = 5_000
"""Messages that the producer may be ahead of the handlers."""
Fault = Callable[[Place, "Progress"], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. `patience` is how many seconds may pass without any progress."""

    messages: int
    processes: int = 3
    kill_every: float = 0.0
    seed: int = field(
        default_factory=lambda: int(os.environ.get("ADVERSARY_SEED", "0")) or random.SystemRandom().getrandbits(32)
    )
    hot: int = 0
    """How many rows all messages change, two each in an order of their own; 0 is none."""
    slow: float = 0.0
    """Seconds that the handler of each hundredth message takes."""
    patience: float = 180.0


@dataclass
class Progress:
    """How far a run has come."""

    total: int
    handled: int = 0
    sent: int = 0
    """Messages sent, copies included."""
    kills: int = 0
    memory: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """How many were handled, and the resident KiB of each process then."""

    async def until(self, share: float) -> None:
        """Wait until this share of the messages is handled."""
        while self.handled < share * self.total:  # noqa: ASYNC110 - it polls a database
            await asyncio.sleep(0.05)


async def fault_run(place: Place, plan: Plan, fault: Fault | None = None, *, name: str = "run") -> Progress:
    """Run it all, audit it, and report the numbers. Fails unless everything that must be zero is zero."""
    print(f"{name}: seed {plan.seed}")  # noqa: T201 - pytest shows it with a failure
    progress = Progress(plan.messages)
    place.settings.setdefault("ADVERSARY_DELAYED", "5")
    worker = place.start("--processes", str(plan.processes))
    since = time.monotonic()
    await worker.ready()
    beside = [asyncio.create_task(_produce(place, plan, progress)), asyncio.create_task(_watch(place, worker, progress))]
    if plan.kill_every:
        beside.append(asyncio.create_task(_kill(worker, plan, progress)))
    if fault is not None:
        beside.append(asyncio.create_task(_as_long_as_it_likes(fault, place, progress)))
    try:
        await _until_handled(place, plan, progress, beside)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    seconds = time.monotonic() - since
    await place.audit(handled=plan.messages, dead=0)
    if plan.hot:
        counted = await place.value(f"SELECT sum(count) FROM {place.prefix}effects_hot")
        assert int(counted) == 2 * plan.messages
    MEASURED.append(
        f"{name}: {plan.messages:,} messages, {progress.kills} kills, seed {plan.seed}: all zeros, {seconds:.0f} s, "
        f"{plan.messages / seconds:.0f}/s"
    )
    return progress


async def _as_long_as_it_likes(fault: Fault, place: Place, progress: Progress) -> None:
    await fault(place, progress)


async def _until_handled(place: Place, plan: Plan, progress: Progress, beside: Sequence[asyncio.Task[None]]) -> None:
    seen, end = -1, time.monotonic() + plan.patience
    while progress.handled < plan.messages:
        for task in beside:
            if task.done():
                task.result()  # what failed ends the run
        if progress.handled != seen:
            seen, end = progress.handled, time.monotonic() + plan.patience
        if time.monotonic() > end:
            raise AssertionError(await _stuck(place, plan, progress))
        await asyncio.sleep(0.1)


async def _stuck(place: Place, plan: Plan, progress: Progress) -> str:
    """Describe a run that does not go on."""
    records = await place.value(f"SELECT count(*) FROM {place.prefix}records")
    reasons = await place.dead()
    return (
        f"{progress.handled} of {plan.messages} handled, then nothing for {plan.patience:g} s; sent {progress.sent}, waiting "
        f"{await place.queue.waiting()}, records {records}, dead letters {len(reasons)} {reasons[:3]}\n{place.said()[-6000:]}"
    )


async def _produce(place: Place, plan: Plan, progress: Progress) -> None:
    rng = random.Random(plan.seed)  # noqa: S311 - reproducible
    numbers = list(range(plan.messages))
    numbers += [number for number in numbers if number % COPIED_EVERY == 0]
    rng.shuffle(numbers)
    if plan.hot:
        await place.execute(
            *(f"INSERT INTO {place.prefix}effects_hot VALUES ('{number}', 0)" for number in range(plan.hot))  # a few rows
        )
    for start in range(0, len(numbers), CHUNK):
        while progress.sent * COPIED_EVERY / (COPIED_EVERY + 1) - progress.handled > AHEAD:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.02)
        messages = [_message(number, plan) for number in numbers[start : start + CHUNK]]
        while True:
            try:
                await place.queue.send_many(messages)
                break
            except Exception:  # noqa: BLE001 - whatever a foreign client raises while its server is away: it sends again
                await asyncio.sleep(0.5)
        progress.sent += len(messages)


def _message(number: int, plan: Plan) -> tuple[Headers, bytes]:
    if plan.slow and number % SLOW_EVERY == 0:
        return cloud_event(f"m-{number}", kind="Slow"), f'{{"seconds": {plan.slow}}}'.encode()
    if not plan.hot:
        return cloud_event(f"m-{number}"), b'{"n": 1}'
    one, other = random.Random(plan.seed + number).sample(range(plan.hot), 2)  # noqa: S311 - reproducible
    return cloud_event(f"m-{number}", kind="Hot"), f'{{"keys": ["{one}", "{other}"]}}'.encode()


async def _watch(place: Place, worker: Worker, progress: Progress) -> None:
    while True:
        with suppress(Exception):  # the server may be away: that is the point
            await place.queue.drain()
            progress.handled = await place.handled()
        progress.memory.append((progress.handled, {pid: resident(pid) for pid in worker.children()}))
        await asyncio.sleep(0.5)


async def _kill(worker: Worker, plan: Plan, progress: Progress) -> None:
    rng = random.Random(plan.seed)  # noqa: S311 - reproducible
    handled = -1
    while True:
        await asyncio.sleep(plan.kill_every)
        children = worker.children()
        if children and progress.handled != handled:  # else those that just start are killed before they work
            handled = progress.handled
            with suppress(ProcessLookupError):
                os.kill(rng.choice(children), signal.SIGKILL)
                progress.kills += 1


def resident(pid: int) -> int:
    """Read the resident memory of a process, in KiB; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def growth(progress: Progress) -> float:
    """Compare each process's memory after a fifth of the run with the most it had later: the worst ratio of all."""
    first = next(index for index, (handled, _) in enumerate(progress.memory) if handled >= 0.2 * progress.total)
    base = progress.memory[first][1]
    return max(max(memory.get(pid, 0) for _, memory in progress.memory[first:]) / kib for pid, kib in base.items() if kib)
