"""Effects with projections: the writes of committed records are made before their requests and their messages.

Nothing is written before the commit, so an attempt that loses leaves nothing to clean up. A write is made as often as it takes,
and its version makes it harmless when it comes again or late (`documents.projections`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from onceonly.documents.projections import Tell
from onceonly.model.errors import CommitRefused
from onceonly.model.identity import Identity
from onceonly.model.projection import ProjectedWrite
from onceonly.model.record import Answer, Record
from onceonly.ports.effects import Effects
from onceonly.ports.projections import Projection, ProjectionWriter

AT_ONCE = 16
"""Calls of a user's own projection at the same time."""


class ProjectionEffects:
    """The effects of an endpoint with projections. All but the writes is left to `inner`."""

    def __init__(self, inner: Effects, projections: Mapping[str, ProjectionWriter]) -> None:
        """Use these projections, by their names. Writes to any other one wait until an endpoint has it again."""
        self.inner = inner
        self._projections = projections
        self.register, self.create, self.discard, self.clean = inner.register, inner.create, inner.discard, inner.clean
        self.responses = inner.responses

    def with_inner(self, inner: Effects) -> "ProjectionEffects":
        """Return the same projections with these other effects."""
        return ProjectionEffects(inner, self._projections)

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Write the projections, then make the calls of the records all of whose writes were taken."""
        written = await self._write(records)
        ready = [_without_writes(record) for record in records if written.get(record.identity, Answer.TAKEN) is Answer.TAKEN]
        return {**written, **await self.inner.call([record for record in ready if record.requests])}

    async def _write(self, records: Sequence[Record]) -> dict[Identity, Answer]:
        wanted = {record.identity: writes for record in records if (writes := _writes(record))}
        by_name: dict[str, list[ProjectedWrite]] = {}
        for writes in wanted.values():
            for write in writes:
                by_name.setdefault(write.projection, []).append(write)
        answers: dict[ProjectedWrite, Answer] = {}
        for name, writes in by_name.items():
            projection = self._projections.get(name)
            given = [Answer.AWAY] * len(writes) if projection is None else await projection.write(writes)
            answers |= dict(zip(writes, given, strict=True))
        return {identity: _worst(answers[write] for write in writes) for identity, writes in wanted.items()}


class OwnProjection:
    """A user's own projection, as a writer. Each write is a call."""

    def __init__(self, projection: Projection, *, tell: Tell | None = None) -> None:
        self._projection = projection
        self._tell = tell

    async def write(self, writes: Sequence[ProjectedWrite]) -> tuple[Answer, ...]:
        """Apply writes, of one key one after another in the order of their versions; see the port."""
        by_key: dict[str, list[ProjectedWrite]] = {}
        for write in sorted(dict.fromkeys(writes), key=lambda write: write.version):
            by_key.setdefault(write.key, []).append(write)
        slots = asyncio.Semaphore(AT_ONCE)
        answers: dict[ProjectedWrite, Answer] = {}

        async def apply(some: Sequence[ProjectedWrite]) -> None:
            async with slots:
                for write in some:
                    answers[write] = await self._apply(write)

        async with asyncio.TaskGroup() as group:
            for some in by_key.values():
                group.create_task(apply(some))
        return tuple(answers[write] for write in writes)

    def problem(self, write: ProjectedWrite) -> str:
        return ""

    async def _apply(self, write: ProjectedWrite) -> Answer:
        try:
            if write.body is None:
                await self._projection.delete(write.key, write.version)
            else:
                await self._projection.put(write.key, write.body, write.version)
        except CommitRefused as error:
            return self._failed(error, Answer.REFUSED)
        except Exception as error:  # noqa: BLE001 - whatever a user's client raises: it may have happened, and is repeated
            return self._failed(error, Answer.AWAY)
        if self._tell is not None:
            self._tell(0, None)
        return Answer.TAKEN

    def _failed(self, error: Exception, answer: Answer) -> Answer:
        if self._tell is not None:
            self._tell(1, error)
        return answer


def _writes(record: Record) -> list[ProjectedWrite]:
    return [call.write for call in record.requests if call.write is not None]


def _without_writes(record: Record) -> Record:
    return replace(record, requests=tuple(call for call in record.requests if call.write is None))


def _worst(answers: Iterable[Answer]) -> Answer:
    given = frozenset(answers)
    return next((worst for worst in (Answer.REFUSED, Answer.AWAY) if worst in given), Answer.TAKEN)
