"""Records that processes left in documents: committed, and not sent."""

from msgspec.structs import replace

from onceonly.documents.store import DocumentStore
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.ports.documents import Documents
from onceonly.runtime.environment import LIVE

ENDPOINT, RECEIVER = "desk", "ledger"


def message(name: str) -> Message:
    """Return what is handled."""
    return Message(id=name, source="web", type="Note", body=b"{}")


async def commit(documents: Documents, *names: str, to: str = RECEIVER, body: bytes = b"{}") -> None:
    """Commit a record for each name, each in a document of its own, as a process that dies before it sends."""
    store = DocumentStore(documents, ENDPOINT, clock=LIVE.clock, history=None)
    for name in names:
        about = replace(message(name), unit=f"Note/{name}")
        unit = await store.begin([about])
        send = Send(message=Message(id=f"sent-{name}", source=ENDPOINT, type="Noted", body=body), to=to)
        await unit.commit([Record(about.identity, unit=unit.key, effects=(send,))])
