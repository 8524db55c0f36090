"""Every schedule of several processes that write one key of a projection, with calls whose answers are lost; and mutants."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.documents import projections
from onceonly.documents.projections import DocumentProjection, ProjectedValue
from onceonly.model.errors import OutcomeUnknown
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer
from onceonly.ports.documents import Change, Document, Version
from onceonly.testing.environment import RunClock

KEY = "k"
JSON = "application/json"


def put(version: int, text: str = "") -> ProjectedWrite:
    """Return a write of this version."""
    return ProjectedWrite("cache", KEY, version, b'"%s"' % (text or f"v{version}").encode(), JSON)


def delete(version: int) -> ProjectedWrite:
    """Return a deletion of this version."""
    return ProjectedWrite("cache", KEY, version)


class Call(NamedTuple):
    """A call of a process that waits until the schedule lets it go on."""

    process: int
    operation: PortOperation
    answer: asyncio.Future[Any]


class Process:
    """The driver of one process: its calls wait."""

    def __init__(self, number: int, waiting: list[Call], world: Live) -> None:
        self._number, self._waiting, self._world = number, waiting, world

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Wait for the schedule."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(Call(self._number, operation, answer))
        return await answer

    def at_once(self, operation: PortOperation) -> Any:
        """Carry it out."""
        return self._world.at_once(operation)


class Schedule:
    """One run: the choices that it makes, first those it is given, then always the first one."""

    def __init__(self, given: Sequence[int]) -> None:
        self.taken: list[tuple[int, int]] = []
        self._given = list(given)

    def choose(self, count: int) -> int:
        """Choose one of so many."""
        chosen = self._given[len(self.taken)] if len(self.taken) < len(self._given) else 0
        self.taken.append((chosen, count))
        return chosen

    def next(self) -> list[int] | None:
        """Return the choices of the next schedule; None after the last one."""
        taken = list(self.taken)
        while taken:
            chosen, count = taken.pop()
            if chosen + 1 < count:
                return [*(each for each, _ in taken), chosen + 1]
        return None


async def run(schedule: Schedule, writes: Sequence[Sequence[ProjectedWrite]], kind: type[DocumentProjection], lost: int) -> str:
    """Run processes, each of which makes its writes until they are taken. Say what is wrong with the end, or on the way."""
    world, waiting = Live(), list[Call]()
    newest = max((write for some in writes for write in some), key=lambda write: write.version)
    seen = DocumentProjection(MemoryDocuments(world), "cache", clock=RunClock())

    async def work(number: int, some: Sequence[ProjectedWrite]) -> None:
        projection = kind(MemoryDocuments(Process(number, waiting, world)), "cache", clock=RunClock())  # type: ignore[arg-type]
        while set(await projection.write(some)) != {Answer.TAKEN}:
            pass

    tasks = [asyncio.create_task(work(number, some)) for number, some in enumerate(writes)]
    before = 0
    while True:
        for _ in range(20):  # every task goes on to its next call, or ends
            await asyncio.sleep(0)
        if not waiting:
            break
        calls = sorted(waiting, key=lambda call: call.process)
        ways = 3 if lost else 1
        choice = schedule.choose(len(calls) * ways)
        call, way = calls[choice // ways], choice % ways
        waiting.remove(call)
        result = None if way == 1 else world.at_once(call.operation)
        if way:
            lost -= 1
            call.answer.set_exception(OutcomeUnknown("the answer is lost"))
        else:
            call.answer.set_result(result)
        stored = world.at_once(PortOperation("load", MemoryDocuments(world).place, _load, (f"projection/cache/{KEY}",)))
        now = 0 if stored is None else projections._read(KEY, stored).version
        if now < before:
            return f"version {before} was replaced by {now}"
        before = now
    await asyncio.gather(*tasks)
    expected = None if newest.body is None else ProjectedValue(newest.body, newest.version, JSON)
    found = await seen.get(KEY)
    return "" if found == expected else f"ended with {found} instead of {expected}"


def _load(world: Any, key: str) -> tuple[Any, Document | None]:
    known = next((each for each in world.written if each.key == key and each.body is not None), None)
    return world, None if known is None else Document(known.body or b"", known.version)


async def explore(writes: Sequence[Sequence[ProjectedWrite]], kind: type[DocumentProjection], lost: int = 0) -> tuple[int, str]:
    """Run every schedule. Return their number, and the first problem."""
    given: list[int] | None = []
    count = 0
    while given is not None:
        schedule = Schedule(given)
        count += 1
        if problem := await run(schedule, writes, kind, lost):
            return count, problem
        given = schedule.next()
    return count, ""


THREE = [[put(1)], [delete(2)], [put(3)]]
TWO = [[put(1), delete(2)], [put(3), put(2)]]
DELETED = [[put(1)], [put(2)], [delete(3)]]
REPEATED = [[put(1, "first")], [put(1, "first"), put(2)], [put(2)]]


@pytest.mark.parametrize("writes", [THREE, TWO, DELETED, REPEATED], ids=["three", "two", "deleted", "repeated"])
async def test_every_schedule_ends_with_the_newest_version(writes: Sequence[Sequence[ProjectedWrite]]) -> None:
    """And no version ever replaces a newer one."""
    count, problem = await explore(writes, DocumentProjection)
    assert problem == ""
    assert count > 5


async def test_a_lost_answer_changes_nothing() -> None:
    """A call that was carried out or not, and whose process does not know."""
    count, problem = await explore([[put(1)], [delete(2)]], DocumentProjection, lost=1)
    assert problem == ""
    assert count > 100


class WithoutVersions(DocumentProjection):
    """Compares and sets documents, and asks for no version of the value: who comes last wins."""

    async def _save(self, wanted: Mapping[str, ProjectedWrite]) -> None:
        """Replace whatever is stored."""

        def replaced(name: str, found: Document | None) -> Change:
            write = wanted[name.rpartition("/")[2]]
            return Change(key=name, body=projections._body(write, 0), expected=found.version if found else "")

        left = [f"projection/cache/{key}" for key in wanted]
        while left:
            found = await self._documents.load(left)
            answers = await self._documents.save([replaced(name, found.get(name)) for name in left])
            left = [name for name, answer in zip(left, answers, strict=True) if answer is None]


class Unconditional(DocumentProjection):
    """Compares versions, and writes without a condition."""

    def __init__(self, documents: MemoryDocuments, name: str, **options: Any) -> None:
        """Wrap the documents."""
        super().__init__(Upserting(documents), name, **options)  # type: ignore[arg-type]


class Upserting:
    """Documents whose writes have no condition."""

    def __init__(self, inner: MemoryDocuments) -> None:
        self.limits, self.load, self.keys, self._inner = inner.limits, inner.load, inner.keys, inner

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Save over what is there by now."""
        answers = await self._inner.save(changes)
        for change, answer in zip(changes, answers, strict=True):
            if answer is None:
                (found,) = (await self._inner.load([change.key])).values()
                await self._inner.save([Change(key=change.key, body=change.body, expected=found.version)])
        return tuple("1" for _ in changes)


class WithoutTombstones(DocumentProjection):
    """Deletes the document, and with it the version."""

    async def _save(self, wanted: Any) -> None:
        """Remove what is deleted."""
        await super()._save(wanted)
        for key, write in wanted.items():
            if write.body is None:
                found = await self._documents.load([f"projection/cache/{key}"])
                for name, document in found.items():
                    if projections._read(name, document).is_tombstone:
                        await self._documents.save([Change(key=name, body=None, expected=document.version)])


class LastOfABatch(DocumentProjection):
    """Takes the last write of a key in a batch for the newest."""

    async def write(self, writes: Sequence[ProjectedWrite]) -> tuple[Answer, ...]:
        """Drop the others."""
        await super().write(writes[-1:])
        return (Answer.TAKEN,) * len(writes)


class UnknownIsTaken(DocumentProjection):
    """Takes a write whose answer is lost for done."""

    async def write(self, writes: Sequence[ProjectedWrite]) -> tuple[Answer, ...]:
        """Call everything done."""
        await super().write(writes)
        return (Answer.TAKEN,) * len(writes)


@pytest.mark.parametrize(
    ("mutant", "writes", "lost"),
    [
        (WithoutVersions, THREE, 0),
        (Unconditional, THREE, 0),
        (WithoutTombstones, DELETED, 0),
        (LastOfABatch, [[put(2), put(1)]], 0),
        (UnknownIsTaken, [[put(1)], [delete(2)]], 1),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
async def test_a_mutant_is_caught(
    mutant: type[DocumentProjection], writes: Sequence[Sequence[ProjectedWrite]], lost: int
) -> None:
    """By some schedule."""
    _, problem = await explore(writes, mutant, lost)
    assert problem
