"""Upkeep whose journal is observed: whoever watches port calls knows how the janitor is, also where another process leads."""

from onceonly.model.journal import Journal
from onceonly.ports.upkeep import Journals, Upkeep
from onceonly.runtime.observe.observer import Call, Observer, Point


def observed_upkeep(upkeep: Upkeep, endpoint: str, observer: Observer) -> Upkeep:
    """Give upkeep that does the same. What its chores do is in the journal, and needs no other observer."""
    if upkeep.journals is None:
        return upkeep
    return upkeep._replace(journals=ObservedJournals(upkeep.journals, endpoint, observer))


class ObservedJournals:
    """A journal whose calls are observed."""

    def __init__(self, journals: Journals, endpoint: str, observer: Observer) -> None:
        """Enclose this journal."""
        self._journals, self._endpoint, self._observer = journals, endpoint, observer

    async def read(self) -> Journal | None:
        """Observe `read`, as `journal`."""
        call = Call(Point.JOURNAL, self._endpoint)
        async with self._observer.around(call):
            call.result = journal = await self._journals.read()
        return journal

    async def write(self, journal: Journal) -> None:
        """Observe `write`, as `note`."""
        call = Call(Point.NOTE, self._endpoint, result=journal)
        async with self._observer.around(call):
            await self._journals.write(journal)

    async def longest_retention(self) -> int:
        """Pass through: it belongs to a chore."""
        return await self._journals.longest_retention()
