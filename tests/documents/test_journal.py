"""The janitor's journal in a document: what one process writes another one reads."""

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentJournals
from onceonly.model.maintenance_journal import MaintenanceJournal, TaskRun
from onceonly.ports.documents import Change


async def test_the_last_journal_stays() -> None:
    """Each endpoint has one of its own."""
    documents = MemoryDocuments(Live())
    journals = DocumentJournals(documents, "shop")
    assert (await journals.read(), await journals.longest_retention()) == (None, 0)
    await journals.write(MaintenanceJournal(at=1, interval=2))
    last = MaintenanceJournal(at=3, interval=2, retention=9, tasks={"sweeping tokens": TaskRun(at=3, count=1)})
    await DocumentJournals(documents, "shop").write(last)
    await DocumentJournals(documents, "mailer").write(MaintenanceJournal(at=7, interval=2, retention=10))
    assert await journals.read() == last
    assert await journals.longest_retention() == 9


async def test_a_journal_of_another_format_is_replaced() -> None:
    """The janitor does its tasks once more than it had to."""
    documents = MemoryDocuments(Live())
    await documents.save([Change(key="janitor/shop", body=b"[9]")])
    journals = DocumentJournals(documents, "shop")
    assert await journals.read() is None
    await journals.write(MaintenanceJournal(at=1, interval=2))
    assert await journals.read() == MaintenanceJournal(at=1, interval=2)
