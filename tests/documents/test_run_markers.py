"""Records of runs, in memory and on documents."""

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.run_markers import MemoryRunMarkers
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentRunMarkers
from onceonly.ports.run_markers import BEGUN, FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS
from onceonly.runtime.environment import LIVE
from onceonly_conformance.clock import ManualClock
from tests.conformance.run_markers_contract import MESSAGE, check


async def test_in_memory() -> None:
    """For one process, and for the checker."""
    world = Live()
    await check(lambda lasts: MemoryRunMarkers(world, "shop", lasts=lasts))


async def test_on_documents() -> None:
    """One document for each run."""
    documents = MemoryDocuments(Live())
    await check(lambda lasts: DocumentRunMarkers(documents, "shop", LIVE.clock, lasts))
    assert len(await documents.keys("start/")) == 1


async def test_a_run_is_waited_for_in_growing_steps() -> None:
    """Short ones at first, as most runs end soon, and never beyond the instant at which it counts as dead."""
    documents, clock = MemoryDocuments(Live()), ManualClock()
    assert await DocumentRunMarkers(documents, "shop", clock, 70).begin(MESSAGE, 0) == BEGUN
    waits = list[float]()
    while (started := await DocumentRunMarkers(documents, "shop", clock, 70).begin(MESSAGE, 0)).wait:
        waits.append(started.wait)
        clock.advance(int(started.wait * 1000))
    assert waits[:6] == [FIRST_WAIT_SECONDS, FIRST_WAIT_SECONDS, 0.5, 1.0, 2.0, 4.0]
    assert set(waits[6:-1]) == {MOST_WAIT_SECONDS}
    assert sum(waits) == 70
    assert started.died == 0
