"""How long messages wait for their next step, and why. Each worker process writes down what happens to its messages."""

import os
from collections import defaultdict
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import msgspec

from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send, Unreadable
from onceonly.model.wording import counted
from onceonly.ports.environment import Clock
from onceonly.runtime.observe.observer import Point, PortCall

FILES = "waits-*.jsonl"
COPIED = "sent again: another process held it and died"
ALONE = "sent again, to run alone: a process died, perhaps because of it"
IN_PROGRESS = "put off: another run of it may be in progress"
NO_WAIT = "no message waited"


class StepKind(StrEnum):
    """What happened to a message. DONE ends its waits."""

    RECEIVED = "received"
    COPIED = "copied"
    RELEASED = "released"
    DONE = "done"


class MessageStep(msgspec.Struct, frozen=True):
    """One step of one message in one process. `at` is in milliseconds since 1970, `why` is for people."""

    at: int
    endpoint: str
    source: str
    id: str
    kind: StepKind
    process: int
    why: str = ""


class LongestWait(msgspec.Struct, frozen=True):
    """The longest time that a message waited between two steps, and the cause."""

    seconds: float = 0.0
    cause: str = NO_WAIT


class StepRecorder:
    """An observer that appends the steps of one process to a file. They survive its SIGKILL."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Begin a file of this process in the folder."""
        self._process = os.getpid()
        self._file = os.open(folder / FILES.replace("*", str(self._process)), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._clock = clock
        self._held: dict[tuple[str, Hashable], Identity] = {}
        self._copied: set[Identity] = set()

    def read(self, endpoint: str, delivery: Delivery, message: Message | Unreadable) -> None:
        """Write down a delivery."""
        if isinstance(message, Message):
            self._held[endpoint, delivery.receipt] = message.identity
            self._write(endpoint, [message.identity], StepKind.RECEIVED)

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Enclose what settles deliveries."""
        return self._settling(call) if call.point in {Point.RETRY_COPY, Point.RELEASE, Point.ACK} else nullcontext()

    @asynccontextmanager
    async def _settling(self, call: PortCall) -> AsyncIterator[None]:
        yield
        if call.point is Point.RETRY_COPY:
            for send in call.items:
                self._copied.add(send.message.identity)
                self._write(call.endpoint, [send.message.identity], StepKind.COPIED, _why(send))
            return
        held = [self._held.pop((call.endpoint, delivery.receipt), None) for delivery in call.items]
        settled = list(dict.fromkeys(identity for identity in held if identity is not None))
        done = call.point is Point.ACK
        self._write(
            call.endpoint,
            [identity for identity in settled if not (done and identity in self._copied)],
            StepKind.DONE if done else StepKind.RELEASED,
        )
        self._copied.difference_update(settled)

    def _write(self, endpoint: str, identities: Sequence[Identity], kind: StepKind, why: str = "") -> None:
        now = self._clock.now()
        steps = [MessageStep(now, endpoint, each.source, each.id, kind, self._process, why) for each in identities]
        os.write(self._file, b"".join(msgspec.json.encode(step) + b"\n" for step in steps))


def read_steps(folder: Path) -> list[MessageStep]:
    """Read what all processes have written; the last line of one that was killed may be a part."""
    lines = [line for path in folder.glob(FILES) for line in path.read_bytes().splitlines(keepends=True)]
    return [msgspec.json.decode(line, type=MessageStep) for line in lines if line.endswith(b"\n")]


def longest_wait(steps: Sequence[MessageStep]) -> LongestWait:
    """Return the longest wait of a message until it was done for the first time.

    The cause includes how many other messages its endpoint received meanwhile: one that comes again waits behind the queue.
    """
    messages = defaultdict[tuple[str, str, str], list[MessageStep]](list)
    for step in sorted(steps, key=lambda step: step.at):
        messages[step.endpoint, step.source, step.id].append(step)
    waits = [pair for each in messages.values() for pair in _waits(each)]
    if not waits:
        return LongestWait()
    before, after = max(waits, key=lambda pair: pair[1].at - pair[0].at)
    others = sum(
        step.kind is StepKind.RECEIVED and step.endpoint == before.endpoint and before.at < step.at < after.at for step in steps
    )
    behind = f", behind {counted(others, 'other message')}" if others else ""
    return LongestWait((after.at - before.at) / 1000, f"{_cause(before, after)}{behind}")


def _waits(steps: Sequence[MessageStep]) -> Iterator[tuple[MessageStep, MessageStep]]:
    """List the pairs of steps between which a message waited."""
    for before, after in pairwise(steps):
        if before.kind is StepKind.DONE:
            return
        yield before, after


def _cause(before: MessageStep, after: MessageStep) -> str:
    if before.kind is StepKind.RELEASED:
        return "released"
    if before.kind is StepKind.COPIED:
        return before.why
    if after.kind is not StepKind.RECEIVED:
        return "in work"
    return "held by a process that died" if before.process != after.process else "delivered again to the same process"


def _why(send: Send) -> str:
    if send.due:
        return f"put off: {send.history[-1].reason}" if send.history else IN_PROGRESS
    return f"sent again: {send.history[-1].reason}" if send.history else ALONE if send.alone else COPIED
