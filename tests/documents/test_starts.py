"""Records of runs, in memory and on documents."""

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.starts import MemoryStarts
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentStarts
from onceonly.runtime.environment import LIVE
from tests.conformance.starts_contract import check


async def test_in_memory() -> None:
    """For one process, and for the checker."""
    world = Live()
    await check(lambda lasts: MemoryStarts(world, "shop", lasts=lasts))


async def test_on_documents() -> None:
    """One document for each run."""
    documents = MemoryDocuments(Live())
    await check(lambda lasts: DocumentStarts(documents, "shop", LIVE.clock, lasts))
    assert len(await documents.keys("start/")) == 1
