"""Counting what an endpoint keeps next to its store and its queue: tokens, marks, open attempts, and what it dropped."""

from datetime import timedelta
from typing import Any, NamedTuple

from msgspec import Struct, structs

from onceonly.assembly import look_at_store
from onceonly.assembly.deduplication import drops_of
from onceonly.assembly.documents import open_documents
from onceonly.assembly.looking import looked_at
from onceonly.assembly.token_issuer import count_live
from onceonly.cli.reaching import answering
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.durations import in_words
from onceonly.model.errors import SchemaMissing
from onceonly.model.journal import Journal, TaskRun
from onceonly.runtime.environment import LIVE
from onceonly.runtime.maintenance.tasks import late_buckets

MOST = 1000
"""Documents are listed up to here: some services are paid by the page."""


class MaintenanceState(Struct, frozen=True, kw_only=True):
    """How an endpoint's janitor is. `state` is "ok", "failing", "overdue" or "never"; `age` is for how many seconds it rests.

    `troubles` describes what is wrong; `chores` how each of them went last.
    """

    state: str
    age: int | None = None
    troubles: tuple[str, ...] = ()
    chores: dict[str, TaskRun] = {}

    def in_words(self) -> str:
        """Say it in a few words."""
        return self.state if self.age is None else f"{self.state}, {in_words(self.age)} ago"


async def read_maintenance(settings: Settings) -> dict[str, Any]:
    """Return the state of an endpoint's janitor, late buckets, events without subscribers, and the processes that run it."""
    async with answering("store", settings.store), look_at_store(settings) as opened:
        journal = await opened.journals.read() if opened.journals is not None else None
        late = await late_buckets(opened.ring) if opened.ring is not None else None
        unsubscribed = await opened.unsubscribed.read() if opened.unsubscribed is not None else {}
        processes = await opened.presence.read() if opened.presence is not None else None
    if late is None and settings.plan.history is not None and opened.leader is not None:
        late = ()  # time is not cut yet
    sweeps = settings.plan.tokens is not None or settings.makes_things
    found: dict[str, Any] = {} if late is None else {"late_buckets": len(late)}
    if processes is not None:
        found["processes"] = tuple(processes)
    if unsubscribed:
        found["unsubscribed"] = dict(unsubscribed)
    if journal is None and (late is not None or sweeps):
        return found | {"janitor": MaintenanceState(state="never")}
    if journal is None:
        return found
    now = LIVE.clock.now()
    current = structs.replace(journal, late=late or ())
    return found | {"janitor": _state(current, now)}


def _state(journal: Journal, now: int) -> MaintenanceState:
    troubles = tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(now))
    overdue = journal.overdue(now)
    state = "failing" if journal.is_failing() else "overdue" if overdue else "ok"
    return MaintenanceState(state=state, age=max(0, now - journal.at) // 1000, troubles=troubles, chores=journal.chores)


async def count_left_behind(settings: Settings) -> dict[str, Any]:
    """Give the numbers that an endpoint has, and under `more` the names of those that are more than they say."""
    found: dict[str, PartialCount] = {}
    plan = settings.plan
    if plan.marks is not None:
        found |= await _count_marks(plan.marks)
    if plan.tokens is not None:
        found |= await _count_tokens(settings, plan.tokens)
    if settings.makes_things:
        found |= await _count_attempts(settings)
    numbers = {name: count.number for name, count in found.items()}
    return {**numbers, "more": tuple(name for name, count in found.items() if count.more)}


class PartialCount(NamedTuple):
    """A number, and whether it is more than that."""

    number: int
    more: bool = False


def _limited(listed: int) -> PartialCount:
    return PartialCount(min(listed, MOST), listed > MOST)


async def _count_marks(place: Location) -> dict[str, PartialCount]:
    async with answering("deduplication", place), open_documents(looked_at(place), clock=LIVE.clock) as documents:
        done = DocumentMarkStore(documents, retention=timedelta(days=1), clock=LIVE.clock)
        return {"marks": _limited(await done.count(MOST + 1))}


async def _count_tokens(settings: Settings, place: Location) -> dict[str, PartialCount]:
    if settings.plan.tokens_in_store:  # prepared ones are not committed there, so they are invisible
        async with answering("tokens", place):
            live = PartialCount(await count_live(locate(looked_at(place), "store"), clock=LIVE.clock))
            return {"dropped": await _count_dropped_in_store(settings, place), "live": live}
    async with answering("tokens", place), open_documents(looked_at(place), clock=LIVE.clock) as documents:
        dropped = PartialCount(await drops_of(documents, settings.name).read())
        prepared, waiting, more = await DocumentTokens(documents, clock=LIVE.clock).census(settings.name, MOST)
        return {"dropped": dropped, "prepared": PartialCount(prepared, more), "live": PartialCount(waiting, more)}


async def _count_dropped_in_store(settings: Settings, place: Location) -> PartialCount:
    """Read the count; messages may be sent before the endpoint ran for the first time, and made its table."""
    try:
        async with open_documents(looked_at(place), clock=LIVE.clock) as documents:
            return PartialCount(await drops_of(documents, settings.name).read())
    except SchemaMissing:
        return PartialCount(0)


async def _count_attempts(settings: Settings) -> dict[str, PartialCount]:
    async with answering("store", settings.store), look_at_store(settings) as opened:
        if opened.register is None:
            return {}
        return {"attempts": _limited(len(await opened.register.old(LIVE.clock.now() + 1, MOST + 1)))}
