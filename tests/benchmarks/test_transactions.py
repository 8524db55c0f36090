"""A tiny run of the benchmark of transactions: every way comes to the right totals, and a wrong one ends the run."""

import msgspec
import pytest

from benchmarks.crew import RunFailed
from benchmarks.transactions.places import RunTotals
from benchmarks.transactions.running import TransactionsJob, check, run
from benchmarks.transactions.ways import RATIOS, WAYS
from tests.servers.available import POSTGRESQL, RABBITMQ, need

ORDERS = 6
RIGHT = RunTotals(
    orders=ORDERS,
    distinct_orders=ORDERS,
    messages=ORDERS,
    distinct_messages=ORDERS,
    records=0,
    outbox=0,
    keys=ORDERS,
)
OWN = next(way for way in WAYS if way.is_own and way.has_key)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_way_and_every_relay_comes_to_the_right_totals() -> None:
    """Rates, ratios, latencies and backlogs are there, for each concurrency and each number of relays."""
    job = TransactionsJob(
        database=need(POSTGRESQL),
        broker=need(RABBITMQ),
        orders=ORDERS,
        rounds=2,
        concurrencies=(1, 3),
        seconds=0.2,
        backlog=250,
        relays=(2,),
    )
    said: list[str] = []
    outcome = await run(job, said.append)
    assert {(each.way, each.concurrency) for each in outcome.rates} == {(way.name, n) for way in WAYS for n in (1, 3)}
    assert all(len(each.committed) == 2 for each in outcome.rates)
    assert [(each.over, each.under) for each in outcome.ratios] == [*RATIOS, *RATIOS]
    assert set(outcome.latency) == set(outcome.latency_after) == {way.name for way in WAYS if way.is_own}
    shared, greedy = outcome.backlogs
    assert (shared.sent, shared.shared, greedy.shared) == (250, True, False)
    assert greedy.sent >= 250
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=type(outcome)) == outcome


@pytest.mark.parametrize("figure", RunTotals.__struct_fields__)
@pytest.mark.parametrize("by", [1, -1])
def test_a_total_that_is_wrong_ends_the_run(figure: str, by: int) -> None:
    """One too many or too few of anything."""
    check(OWN, RIGHT, ORDERS)
    with pytest.raises(RunFailed, match="wrong totals"):
        check(OWN, msgspec.structs.replace(RIGHT, **{figure: getattr(RIGHT, figure) + by}), ORDERS)
