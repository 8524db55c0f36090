"""The audit: compares what a run left behind with what the file says. It trusts neither the endpoints nor the library."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from onceonly.demo.flights import LEDGER, LOYALTY, SOURCE, Flight, MilesFlown, totals

_decode = msgspec.json.Decoder(MilesFlown).decode


class Line(msgspec.Struct, frozen=True):
    """One journal row: which endpoint handled which message, and the mark of that attempt."""

    endpoint: str
    source: str
    id: str
    mark: str


class Sunk(msgspec.Struct, frozen=True):
    """One message the sink saw on the wire."""

    source: str
    id: str
    body: bytes

    @property
    def mark(self) -> str:
        """The mark of the attempt that sent it."""
        return _decode(self.body).mark


class Remains(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run left: read from the databases once the queues are empty and the workers have stopped."""

    journal: Sequence[Line]
    sunk: Sequence[Sunk]
    dead: Sequence[Line]
    miles: Mapping[str, Mapping[str, int]]
    records: int
    queued: int


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit found; all zero is exactly-once."""

    effects: int
    lost: int
    duplicated: int
    ghosts: int
    phantoms: int
    leftovers: int
    wrong_totals: int


def audit(flights: Sequence[Flight], remains: Remains) -> Findings:
    """Compare a run's remains with the flights that were sent."""
    expected = {LEDGER: [(SOURCE, f.id) for f in flights], LOYALTY: [(LEDGER, f.announced_as) for f in flights]}
    handled = {name: _ids(remains.journal, name) for name in expected}
    known = {name: handled[name] | _ids(remains.dead, name) for name in expected}
    committed = {line.mark for line in remains.journal}
    sent = {message.mark for message in remains.sunk}
    lines = Counter((line.endpoint, line.source, line.id) for line in remains.journal)
    return Findings(
        effects=len({(message.source, message.id) for message in remains.sunk}),
        lost=sum(identity not in known[name] for name, wanted in expected.items() for identity in wanted),
        duplicated=sum(lines.values()) - len(lines),
        ghosts=sum(message.mark not in committed for message in remains.sunk),
        phantoms=sum(line.mark not in sent for line in remains.journal if line.endpoint == LEDGER),
        leftovers=remains.records + remains.queued,
        wrong_totals=sum(len(differences(totals(flights), remains.miles[name])) for name in expected),
    )


def differences(expected: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Give the carriers whose miles differ: what the file says, and what was counted."""
    carriers = sorted({*expected, *counted})
    pairs = {carrier: (expected.get(carrier, 0), counted.get(carrier, 0)) for carrier in carriers}
    return {carrier: pair for carrier, pair in pairs.items() if pair[0] != pair[1]}


def _ids(lines: Iterable[Line], endpoint: str) -> set[tuple[str, str]]:
    return {(line.source, line.id) for line in lines if line.endpoint == endpoint}
