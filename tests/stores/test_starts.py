"""Records of runs, in memory and on documents."""

from onceonly.drivers.memory import Live
from onceonly.runtime.surroundings import LIVE
from onceonly.stores.document_starts import DocumentStarts
from onceonly.stores.memory_documents import MemoryDocuments
from onceonly.stores.memory_starts import MemoryStarts
from starts_contract import check


async def test_in_memory() -> None:
    """For one process, and for the checker."""
    world = Live()
    await check(lambda lasts: MemoryStarts(world, "shop", lasts=lasts))


async def test_on_documents() -> None:
    """One document for each run."""
    documents = MemoryDocuments(Live())
    await check(lambda lasts: DocumentStarts(documents, "shop", LIVE.clock, lasts))
    assert len(await documents.keys("start/")) == 1
