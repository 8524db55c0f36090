"""The handlers on entities, written as a user would write them, and the totals that a run reads from the entities."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
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


def register_entity_handlers(ledger: Endpoint, loyalty: Endpoint) -> None:
    """Register the handlers that work on entities."""

    @ledger.handler(entity=Leg, key="leg")
    async def count(flight: FlightDeparted, leg: Leg, context: Context) -> None:
        mark = add(leg, flight, context)
        receipt = await receipt_of(flight, context)
        context.publish(MilesFlown(flight.carrier, flight.miles, mark, flight.leg, receipt))

    @loyalty.handler(entity=Credit, key="leg")
    async def credit(flown: MilesFlown, leg: Credit, context: Context) -> None:
        add(leg, flown, context)

    def add(leg: Leg, flown: FlightDeparted | MilesFlown, context: Context) -> str:
        handled, mark = context.message, uuid4().hex
        leg.carrier = flown.carrier
        leg.miles += flown.miles
        leg.journal.append(JournalRow(context.endpoint, handled.source, handled.id, mark))
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
