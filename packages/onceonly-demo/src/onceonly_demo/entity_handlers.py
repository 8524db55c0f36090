"""The handlers on entities, written as a user would write them, and the totals that a run reads from the entities."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import uuid4

import msgspec

from onceonly import Context, Endpoint
from onceonly_demo.audit import JournalRow
from onceonly_demo.flights import LEDGER, LOYALTY, FlightDeparted, MilesFlown, receipt_of


class Leg(msgspec.Struct):
    """What `ledger` counted on one leg of one carrier, and a journal that nothing protects from repetition."""

    leg: str
    carrier: str = ""
    miles: int = 0
    journal: list[JournalRow] = []


class Credit(Leg):
    """The same, as `loyalty` counted it: no entity belongs to two endpoints."""


_decode = msgspec.json.Decoder(Leg).decode


class EndpointCounts(NamedTuple):
    """What the endpoints wrote: the journal, and the miles by endpoint and carrier."""

    journal: Sequence[JournalRow]
    miles: Mapping[str, Mapping[str, int]]


class WritesDocuments(Protocol):
    """Documents of the application next to the entities."""

    async def write(self, leg: Leg, miles: int, mark: str, context: Context) -> None:
        """Write those of one message."""


def register_entity_handlers(ledger: Endpoint, loyalty: Endpoint, documents: WritesDocuments | None = None) -> None:
    """Register the handlers that work on entities. With `documents` they also write those, in the partition of the carrier."""
    partition = None if documents is None else "carrier"

    @ledger.handler(entity=Leg, key="leg", partition_key=partition)
    async def count(flight: FlightDeparted, leg: Leg, context: Context) -> None:
        mark = await add(leg, flight, context)
        receipt = await receipt_of(flight, context)
        context.publish(MilesFlown(flight.carrier, flight.miles, mark, flight.leg, receipt))

    @loyalty.handler(entity=Credit, key="leg", partition_key=partition)
    async def credit(flown: MilesFlown, leg: Credit, context: Context) -> None:
        await add(leg, flown, context)

    async def add(leg: Leg, flown: FlightDeparted | MilesFlown, context: Context) -> str:
        handled, mark = context.message, uuid4().hex
        leg.carrier = flown.carrier
        leg.miles += flown.miles
        leg.journal.append(JournalRow(context.endpoint, handled.source, handled.id, mark))
        if documents is not None:
            await documents.write(leg, flown.miles, mark, context)
        return mark


def read_entities(states: Sequence[bytes]) -> EndpointCounts:
    """Read the entities, and add up their miles."""
    miles: dict[str, Counter[str]] = {LEDGER: Counter(), LOYALTY: Counter()}
    journal: list[JournalRow] = []
    for state in states:
        leg = _decode(state)
        journal += leg.journal
        miles[leg.journal[0].endpoint][leg.carrier] += leg.miles
    return EndpointCounts(journal, miles)
