"""Real departures from New York's airports in 2013 (the CC0 data set nycflights13), as messages with checkable totals."""

import csv
import gzip
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from onceonly import Context, message
from onceonly.model.identity import Identity, outgoing_id, without_instant
from onceonly.model.message import Message, Send

SOURCE = "demo"
LEDGER, LOYALTY, SINK = "ledger", "loyalty", "sink"
COPIED_EVERY = 5
RECEIPTED = 10  # one flight in so many has a receipt, if the run has a URL for blobs
FLIGHT_DEPARTED, MILES_FLOWN = "flights.flight-departed.v1", "flights.miles-flown.v1"
_IDENTITY = ("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin")
_encode = msgspec.json.Encoder().encode


@message(FLIGHT_DEPARTED)
class FlightDeparted(msgspec.Struct, frozen=True, omit_defaults=True):
    """One departure: the airline's two-letter code, the miles flown, its leg, and whether a receipt is wanted, as a blob."""

    carrier: str
    miles: int
    leg: str = ""
    receipt: bool = False


@message(MILES_FLOWN)
class MilesFlown(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `ledger` announces; `mark` is the random mark of the attempt that decided it, `receipt` the name of its blob."""

    carrier: str
    miles: int
    mark: str
    leg: str = ""
    receipt: str = ""


class Flight(msgspec.Struct, frozen=True):
    """A line of the file: an id that follows from what identifies a flight, and what it departed with."""

    id: str
    body: FlightDeparted

    @property
    def announced_as(self) -> str:
        """What is known beforehand of the id of the `MilesFlown` that `ledger` publishes for it: all but its instant."""
        return without_instant(outgoing_id(LEDGER, Identity(SOURCE, self.id), 0))


def load(limit: int) -> list[Flight]:
    """Read the first `limit` flights of the packaged file, which holds 10,000. Raises ValueError for more than it holds."""
    text = gzip.decompress(files(__package__).joinpath("flights.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(text.splitlines()))
    if not 1 <= limit <= len(rows):
        raise ValueError(f"the packaged file holds {len(rows)} flights: choose between 1 and {len(rows)}")
    return [_flight(row) for row in rows[:limit]]


def airlines() -> dict[str, str]:
    """Return the airlines' names by their two-letter codes."""
    with files(__package__).joinpath("airlines.csv").open(encoding="utf-8") as lines:
        return {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def totals(flights: Iterable[Flight]) -> dict[str, int]:
    """Add up the miles by carrier, straight from the file: what the endpoints must arrive at."""
    miles: Counter[str] = Counter()
    for flight in flights:
        miles[flight.body.carrier] += flight.body.miles
    return dict(miles)


def sends(flights: list[Flight], seed: int) -> list[Send]:
    """Make the messages, every fifth of them two to four times, all shuffled."""
    shuffler = random.Random(seed)  # noqa: S311 - a reproducible shuffle, no secret
    copies = [
        flight for index, flight in enumerate(flights) for _ in range(1 if index % COPIED_EVERY else shuffler.randint(2, 4))
    ]
    shuffler.shuffle(copies)
    return [_send(flight) for flight in copies]


def with_receipts(flights: Sequence[Flight]) -> list[Flight]:
    """Want a receipt for the first tenth of each carrier's flights, at least one."""
    left = {carrier: -(-count // RECEIPTED) for carrier, count in Counter(flight.body.carrier for flight in flights).items()}
    return [_receipted(flight, left) for flight in flights]


async def receipt_of(flight: FlightDeparted, context: Context) -> str:
    """Create the receipt of a flight as a blob, if it wants one. Return the name to announce, or an empty string."""
    if not flight.receipt:
        return ""
    text = f"{flight.carrier} {flight.leg} {flight.miles} miles\n"
    return await context.blobs.create(f"{flight.leg}.txt", text.encode(), content_type="text/plain")


def _receipted(flight: Flight, left: dict[str, int]) -> Flight:
    carrier = flight.body.carrier
    left[carrier] -= 1
    return replace(flight, body=replace(flight.body, receipt=True)) if left[carrier] >= 0 else flight


def _flight(row: dict[str, str]) -> Flight:
    identity = "-".join(row[name] for name in _IDENTITY)
    leg = "-".join(row[name] for name in ("carrier", "origin", "dest"))
    return Flight(identity, FlightDeparted(row["carrier"], int(row["distance"]), leg))


def _send(flight: Flight) -> Send:
    body = _encode(flight.body)
    return Send(message=Message(id=flight.id, source=SOURCE, type=FLIGHT_DEPARTED, body=body), to=LEDGER)
