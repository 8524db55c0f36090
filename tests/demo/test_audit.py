"""The demo's audit sees every kind of wrong."""

import msgspec
import pytest

from onceonly.model.identity import Identity, outgoing_id
from onceonly_demo.audit import AuditFindings, JournalRow, Leftovers, RunRemains, SinkMessage, audit, differences
from onceonly_demo.flights import LEDGER, LOYALTY, SOURCE, Flight, MilesFlown, load, sends, totals, with_receipts


def announcement(flight: Flight, instant: int = 1_700_000_000_000) -> str:
    """Return the id of what the ledger sends for a flight at some instant."""
    return outgoing_id(LEDGER, Identity(SOURCE, flight.id), 0, instant)


def clean_run(flights: list[Flight]) -> RunRemains:
    """Make the remains of a run in which everything happened once."""
    ledger = [JournalRow(LEDGER, SOURCE, flight.id, f"a{flight.id}") for flight in flights]
    loyalty = [JournalRow(LOYALTY, LEDGER, announcement(flight), f"b{flight.id}") for flight in flights]
    sunk = [SinkMessage(LEDGER, announcement(flight), announced(flight, f"a{flight.id}")) for flight in flights]
    miles = {LEDGER: totals(flights), LOYALTY: totals(flights)}
    receipts = [receipt_of(flight) for flight in flights if flight.body.receipt]
    return RunRemains(journal=ledger + loyalty, sunk=sunk, dead=[], miles=miles, left=Leftovers(), blobs=receipts)


def announced(flight: Flight, mark: str) -> bytes:
    """Make the body of the event that announces a flight."""
    return msgspec.json.encode(MilesFlown(flight.body.carrier, flight.body.miles, mark, receipt=receipt_of(flight)))


def receipt_of(flight: Flight) -> str:
    """Return the name of a flight's blob, if it has one."""
    return f"{flight.id}/receipt.txt" if flight.body.receipt else ""


@pytest.fixture(name="flights")
def some_flights() -> list[Flight]:
    """Read a few real flights, some with receipts."""
    return with_receipts(load(30))


def test_a_clean_run_has_no_findings(flights: list[Flight]) -> None:
    """Nothing is wrong when everything happened once."""
    findings = msgspec.structs.asdict(audit(flights, clean_run(flights)))
    assert findings == {**dict.fromkeys(AuditFindings.__struct_fields__, 0), "effects": 30}


def test_two_announcements_of_one_flight_are_a_duplicate_whenever_they_were_sent(flights: list[Flight]) -> None:
    """Their ids contain different instants."""
    clean = clean_run(flights)
    again = JournalRow(LOYALTY, LEDGER, announcement(flights[0], 1_700_000_000_001), "c")
    assert audit(flights, msgspec.structs.replace(clean, journal=[*clean.journal, again])).duplicated == 1


def test_every_kind_of_wrong_is_found(flights: list[Flight]) -> None:
    """Each tampering shows in its own number."""
    clean = clean_run(flights)
    wrong_miles = {LEDGER: {**totals(flights), "UA": 1}, LOYALTY: totals(flights)}
    tampered = {
        "lost": msgspec.structs.replace(clean, journal=clean.journal[:-1]),
        "duplicated": msgspec.structs.replace(clean, journal=[*clean.journal, clean.journal[-1]]),
        "ghosts": msgspec.structs.replace(clean, sunk=[*clean.sunk, SinkMessage(LEDGER, "x", announced(flights[0], "nobody"))]),
        "phantoms": msgspec.structs.replace(clean, sunk=clean.sunk[1:]),
        "dead_letters": msgspec.structs.replace(clean, dead=[JournalRow(LEDGER, "", "", "")]),
        "missing_blobs": msgspec.structs.replace(clean, blobs=clean.blobs[1:]),
        "unannounced_blobs": msgspec.structs.replace(clean, blobs=[*clean.blobs, "nobody/receipt.txt"]),
        "half_batches": msgspec.structs.replace(clean, half_batches=1),
        "wrong_totals": msgspec.structs.replace(clean, miles=wrong_miles),
    }
    for name, remains in tampered.items():
        assert getattr(audit(flights, remains), name) == 1, name


@pytest.mark.parametrize("name", Leftovers.__struct_fields__)
def test_whatever_deduplication_left_at_rest_is_a_leftover(name: str, flights: list[Flight]) -> None:
    """Each kind counts."""
    remains = msgspec.structs.replace(clean_run(flights), left=Leftovers(**{name: 1}))
    assert audit(flights, remains).leftovers == 1


def test_a_wanted_receipt_that_nobody_announced_is_missing(flights: list[Flight]) -> None:
    """Although no blob is left over."""
    wanted = next(flight for flight in flights if flight.body.receipt)
    clean = clean_run(flights)
    bare = msgspec.json.encode(MilesFlown(wanted.body.carrier, wanted.body.miles, f"a{wanted.id}"))
    sunk = [SinkMessage(each.source, each.id, bare) if each.id == announcement(wanted) else each for each in clean.sunk]
    blobs = [name for name in clean.blobs if name != receipt_of(wanted)]
    assert audit(flights, msgspec.structs.replace(clean, sunk=sunk, blobs=blobs)).missing_blobs == 1


def test_a_dead_letter_is_not_lost(flights: list[Flight]) -> None:
    """What is kept for a person is not lost."""
    clean = clean_run(flights)
    dead = [msgspec.structs.replace(clean.journal[-1], mark="")]
    assert audit(flights, msgspec.structs.replace(clean, journal=clean.journal[:-1], dead=dead)).lost == 0


def test_a_redispatched_effect_is_one_effect(flights: list[Flight]) -> None:
    """The sink may see a message twice: same id, same mark."""
    clean = clean_run(flights)
    findings = audit(flights, msgspec.structs.replace(clean, sunk=[*clean.sunk, clean.sunk[0]]))
    assert (findings.effects, findings.ghosts, findings.duplicated) == (30, 0, 0)


def test_differences_name_the_carriers() -> None:
    """Missing and wrong carriers are both named."""
    assert differences({"UA": 5, "DL": 1}, {"UA": 6, "XX": 1}) == {"DL": (1, 0), "UA": (5, 6), "XX": (0, 1)}


def test_flights_are_real_distinct_and_repeated_every_fifth_time() -> None:
    """The messages come from the file, and every fifth is sent at least twice."""
    flights = load(100)
    messages = [send.message.id for send in sends(flights, seed=1)]
    copied = [flight for flight in flights if messages.count(flight.id) > 1]
    assert len({flight.id for flight in flights}) == 100
    assert len(copied) == 20
    assert set(messages) == {flight.id for flight in flights}


def test_a_tenth_of_each_carriers_flights_has_a_receipt() -> None:
    """At least one; and the totals stay what they were."""
    flights = load(400)
    wanting = with_receipts(flights)
    carriers = {flight.body.carrier for flight in flights}
    assert {flight.body.carrier for flight in wanting if flight.body.receipt} == carriers
    assert 40 <= sum(flight.body.receipt for flight in wanting) <= 40 + len(carriers)
    assert totals(wanting) == totals(flights)


def test_asking_for_more_flights_than_there_are_says_how_many_there_are() -> None:
    """The file's limit is named."""
    with pytest.raises(ValueError, match="between 1 and 10000"):
        load(10_001)
