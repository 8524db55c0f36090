"""A tiny run of the benchmark of brokers: the raw handler and the echo come to the right totals."""

import msgspec
import pytest

from benchmarks.brokers.running import PAIRS, BrokersJob, BrokersOutcome, measure
from tests.servers.available import NATS, POSTGRESQL, REDIS, need

SERVERS = {"nats": NATS, "redis": REDIS}
MESSAGES = 150


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", PAIRS)
async def test_the_raw_handler_and_the_echo_take_every_message(broker: str) -> None:
    """Rates and ratios are there, and can be written as JSON."""
    need(SERVERS[broker])
    job = BrokersJob(database=need(POSTGRESQL), brokers=(broker,), messages=MESSAGES, rounds=2)
    said: list[str] = []
    outcome = await measure(job, said.append)
    (result,) = outcome.results
    assert [len(result.raw), len(result.echo)] == [2, 2]
    assert result.ratio.low <= result.ratio.median <= result.ratio.high
    assert len(said) == 3
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=BrokersOutcome) == outcome
