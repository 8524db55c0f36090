"""The demo's audit sees every kind of wrong."""

import msgspec
import pytest

from onceonly.demo.audit import Findings, Line, Remains, Sunk, audit, differences
from onceonly.demo.flights import LEDGER, LOYALTY, SOURCE, Flight, MilesFlown, load, sends, totals


def clean_run(flights: list[Flight]) -> Remains:
    """Make the remains of a run in which everything happened once."""
    ledger = [Line(LEDGER, SOURCE, flight.id, f"a{flight.id}") for flight in flights]
    loyalty = [Line(LOYALTY, LEDGER, flight.announced_as, f"b{flight.id}") for flight in flights]
    sunk = [Sunk(LEDGER, flight.announced_as, announced(flight, f"a{flight.id}")) for flight in flights]
    miles = {LEDGER: totals(flights), LOYALTY: totals(flights)}
    return Remains(journal=ledger + loyalty, sunk=sunk, dead=[], miles=miles, records=0, queued=0)


def announced(flight: Flight, mark: str) -> bytes:
    """Make the body of the event that announces a flight."""
    return msgspec.json.encode(MilesFlown(flight.body.carrier, flight.body.miles, mark))


@pytest.fixture(name="flights")
def some_flights() -> list[Flight]:
    """Read a few real flights."""
    return load(30)


def test_a_clean_run_has_no_findings(flights: list[Flight]) -> None:
    """Nothing is wrong when everything happened once."""
    expected = Findings(effects=30, lost=0, duplicated=0, ghosts=0, phantoms=0, leftovers=0, wrong_totals=0)
    assert audit(flights, clean_run(flights)) == expected


def test_every_kind_of_wrong_is_found(flights: list[Flight]) -> None:
    """Each tampering shows in its own number."""
    clean = clean_run(flights)
    wrong_miles = {LEDGER: {**totals(flights), "UA": 1}, LOYALTY: totals(flights)}
    tampered = {
        "lost": msgspec.structs.replace(clean, journal=clean.journal[:-1]),
        "duplicated": msgspec.structs.replace(clean, journal=[*clean.journal, clean.journal[-1]]),
        "ghosts": msgspec.structs.replace(clean, sunk=[*clean.sunk, Sunk(LEDGER, "x", announced(flights[0], "nobody"))]),
        "phantoms": msgspec.structs.replace(clean, sunk=clean.sunk[1:]),
        "leftovers": msgspec.structs.replace(clean, records=1),
        "wrong_totals": msgspec.structs.replace(clean, miles=wrong_miles),
    }
    for name, remains in tampered.items():
        assert getattr(audit(flights, remains), name) == 1, name


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


def test_asking_for_more_flights_than_there_are_says_how_many_there_are() -> None:
    """The file's limit is named."""
    with pytest.raises(ValueError, match="between 1 and 10000"):
        load(10_001)
