"""What a store on documents knows about messages. Only the document of a message is read: documents cannot be searched."""

from collections.abc import Sequence

from onceonly.documents.store import DocumentStore
from onceonly.model.artifact import Reservation
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.ports.lookup import ClaimState, Knowledge


class DocumentLookup:
    """Looks up messages of one endpoint. Implements the Lookup port.

    A message that works on an entity is in the document of that entity. Without the name of the entity it is not found, and
    the answer is UNDETERMINED.
    """

    def __init__(self, store: DocumentStore, *, entities: bool = True) -> None:
        self._store = store
        self._entities = entities

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        """Read one document for each message; see the port."""
        return tuple([await self._know(message) for message in messages])

    async def near(self, identity: Identity, begin: int, end: int) -> Knowledge:
        """Look it up without the time, which documents do not need."""
        return await self._know(Message(source=identity.source, id=identity.id, type="", body=b""))

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        """List none: they are in documents of attempts, which cannot be searched."""
        return ()

    async def _know(self, message: Message) -> Knowledge:
        key = self._store.unit_key(message)
        known = (await self._store.look(key)).records.get(self._store.name_of(message.identity))
        if known is None:
            is_whole = bool(message.unit) or not self._entities
            absent = ClaimState.NO_CLAIM if is_whole else ClaimState.UNDETERMINED
            return Knowledge(claim=absent if self._store.history is not None else ClaimState.UNKNOWN)
        record = known.record(message.identity, key)
        return Knowledge(
            claim=ClaimState.HANDLED,
            fingerprint=bytes.fromhex(known.body),
            record=record if record.is_pending else None,
        )
