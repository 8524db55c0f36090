"""The audit: compares what a run left behind with what the file says. It trusts neither the endpoints nor the library."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from onceonly.model.identity import without_instant
from onceonly_demo.flights import LEDGER, LOYALTY, SOURCE, Flight, MilesFlown, totals

_decode = msgspec.json.Decoder(MilesFlown).decode


class JournalRow(msgspec.Struct, frozen=True):
    """One journal row: which endpoint handled which message, and the mark of that attempt."""

    endpoint: str
    source: str
    id: str
    mark: str

    @property
    def identity(self) -> tuple[str, str]:
        """Who the message is; see `SinkMessage`."""
        return _identity(self.source, self.id)


class SinkMessage(msgspec.Struct, frozen=True):
    """One message the sink saw on the wire."""

    source: str
    id: str
    body: bytes

    @property
    def identity(self) -> tuple[str, str]:
        """Who the message is, without the instant at which it was sent: two of them for one flight are a duplicate."""
        return _identity(self.source, self.id)

    @property
    def said(self) -> MilesFlown:
        """What it says: the mark of the attempt that sent it, and perhaps the name of a receipt."""
        return _decode(self.body)


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """What deduplication left when everything is idle, counted past the ports: all of it must be zero.

    Records whose messages may not all be sent, queue rows, claims where something else knows what is done, tokens that are
    prepared and live, and register rows of open attempts.
    """

    records: int = 0
    queued: int = 0
    claims: int = 0
    prepared: int = 0
    live: int = 0
    attempts: int = 0


class RunRemains(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run left, read when the queues are empty, the workers have stopped and the sweep is done.

    `marks` are what is kept of finished messages on purpose: claims, finished records, marks of a dedup store. Then come the
    tokens and attempts that the sweeper removed, and the documents of the application that disagree with their entity.
    """

    journal: Sequence[JournalRow]
    sunk: Sequence[SinkMessage]
    dead: Sequence[JournalRow]
    miles: Mapping[str, Mapping[str, int]]
    left: Leftovers
    blobs: Sequence[str] = ()
    marks: int = 0
    swept_tokens: int = 0
    swept_attempts: int = 0
    half_batches: int = 0


class AuditFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit found; all but the effects zero is exactly-once."""

    effects: int
    lost: int
    duplicated: int
    ghosts: int
    phantoms: int
    dead_letters: int
    missing_blobs: int
    unannounced_blobs: int
    half_batches: int
    leftovers: int
    wrong_totals: int


def audit(flights: Sequence[Flight], remains: RunRemains) -> AuditFindings:
    """Compare a run's remains with the flights that were sent."""
    expected = {LEDGER: [(SOURCE, f.id) for f in flights], LOYALTY: [(LEDGER, f.announced_as) for f in flights]}
    handled = {name: _ids(remains.journal, name) for name in expected}
    known = {name: handled[name] | _ids(remains.dead, name) for name in expected}
    committed = {line.mark for line in remains.journal}
    said = [message.said for message in remains.sunk]
    sent = {each.mark for each in said}
    lines = Counter((line.endpoint, *line.identity) for line in remains.journal)
    return AuditFindings(
        effects=len({(message.source, message.id) for message in remains.sunk}),
        lost=sum(identity not in known[name] for name, wanted in expected.items() for identity in wanted),
        duplicated=sum(lines.values()) - len(lines),
        ghosts=sum(each.mark not in committed for each in said),
        phantoms=sum(line.mark not in sent for line in remains.journal if line.endpoint == LEDGER),
        dead_letters=len(remains.dead),
        missing_blobs=_missing(flights, remains),
        unannounced_blobs=len(set(remains.blobs) - {each.receipt for each in said}),
        half_batches=remains.half_batches,
        leftovers=sum(msgspec.structs.astuple(remains.left)),
        wrong_totals=sum(len(differences(totals(flights), remains.miles[name])) for name in expected),
    )


def differences(expected: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the carriers whose miles differ: what the file says, and what was counted."""
    carriers = sorted({*expected, *counted})
    pairs = {carrier: (expected.get(carrier, 0), counted.get(carrier, 0)) for carrier in carriers}
    return {carrier: pair for carrier, pair in pairs.items() if pair[0] != pair[1]}


def _missing(flights: Sequence[Flight], remains: RunRemains) -> int:
    """Count the announced receipts that are not there, and the flights whose receipt was not announced."""
    announced = {(message.identity[1], message.said.receipt) for message in remains.sunk if message.said.receipt}
    unsaid = {flight.announced_as for flight in flights if flight.body.receipt} - {id_ for id_, _ in announced}
    return len({name for _, name in announced} - set(remains.blobs)) + len(unsaid)


def _ids(lines: Iterable[JournalRow], endpoint: str) -> set[tuple[str, str]]:
    return {line.identity for line in lines if line.endpoint == endpoint}


def _identity(source: str, id_: str) -> tuple[str, str]:
    return source, without_instant(id_) if source == LEDGER else id_
