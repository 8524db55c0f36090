"""What the tests of entity handlers share: one endpoint on documents in memory, delivered to batch by batch."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from onceonly import Endpoint, Message, Retry
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.settlement import BatchReport
from onceonly.documents.store import ENTITY, DocumentStore
from onceonly.endpoint.host import host_of
from onceonly.formats.bodies import encode_body, type_name
from onceonly.formats.documents import EntityDocument, encode_entity
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import Send
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Change
from onceonly.ports.transport import Topology
from tests.endpoint.harness import STILL, endpoint


@dataclass
class Deposit:
    """A message about one account."""

    account_id: str
    amount: int = 1


def bank(handler: Callable[..., Any] | None = None, *, key: Any = "account_id", entity: Any = None, **options: Any) -> Endpoint:
    """Make an endpoint, with one handler of entities if there is one. A failed message is a dead letter at once."""
    made = endpoint(name="bank", retry=Retry(immediate=0, delayed=0))
    if handler is not None:
        made.handler(entity=entity, key=key, **options)(handler)
    return made


class Counter:
    """One endpoint's counter: what is handed in here is delivered, and its documents can be looked at."""

    def __init__(self, made: Endpoint) -> None:
        self._live = Live()
        self.documents = MemoryDocuments(self._live)
        self._sent = 0
        store = DocumentStore(self.documents, "bank", clock=STILL.clock, history=timedelta(days=1))
        self._ports = Ports(
            endpoint="bank",
            store=store,
            fence=store,
            pending=None,
            handlers=host_of(made).handlers(STILL),
            admission=StoreAdmission(),
            effects=NoArtifacts(),
            transport=MemoryTransport(self._live, "bank", clock=STILL.clock),
            dead_letters=MemoryDeadLetters(self._live, clock=STILL.clock),
        )

    def message(self, body: object) -> Message:
        """Make a message with an id of its own."""
        self._sent += 1
        encoded, content_type = encode_body(body)
        name = type_name(type(body)) or "dict"
        return Message(id=f"m{self._sent}", source="web", type=name, body=encoded, datacontenttype=content_type)

    async def deliver(self, *bodies: object) -> BatchReport:
        """Deliver these in one batch; gives what became of them."""
        messages = [body if isinstance(body, Message) else self.message(body) for body in bodies]
        transport = self._ports.transport
        await transport.declare([Topology(endpoint="bank")])
        await transport.send([Send(message=message, to="bank") for message in messages])
        return await deliver(await transport.receive(100, 0), self._ports)

    async def state(self, unit: str) -> Any:
        """Return the state of an entity, as JSON values; None when there is none."""
        loaded = (await self.documents.load([ENTITY + unit])).get(ENTITY + unit)
        return None if loaded is None else msgspec.json.decode(loaded.body)["state"]

    async def put(self, unit: str, state: object) -> None:
        """Change the state of an entity by hand."""
        body = encode_entity(EntityDocument(state=msgspec.json.encode(state)))
        loaded = (await self.documents.load([ENTITY + unit])).get(ENTITY + unit)
        await self.documents.save([Change(key=ENTITY + unit, body=body, expected=loaded.version if loaded else "")])

    async def letters(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters."""
        return await self._ports.dead_letters.page(Filter(endpoint="bank"), limit=100)

    async def reason(self) -> str:
        """Return the reason of the one dead letter."""
        (letter,) = await self.letters()
        return letter.reason
