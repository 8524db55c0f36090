"""Hosts that fork, have threads, or are a worker of Celery, for an hour: they stay within limits, and lose and repeat nothing.

`ONCEONLY_SOAK_MINUTES` sets another number of minutes. Growth is judged from 10 minutes on.
"""

import os

import pytest

from benchmarks.soak.plan import HostName, plan_of
from benchmarks.soak.running import Outcome, Servers, run
from tests.servers.available import MEASURED, POSTGRESQL, RABBITMQ, need

MINUTES = float(os.environ.get("ONCEONLY_SOAK_MINUTES", "60"))
HOSTS: tuple[HostName, ...] = ("forked", "threaded", "celery")


def note(outcome: Outcome) -> None:
    """Print the numbers of a run at the end of the session."""
    highest = ", ".join(f"{finding.limit.name} {finding.highest:g} (+{finding.growth:g})" for finding in outcome.findings)
    MEASURED.append(f"soak, {outcome.host}: {outcome.minutes:g} minutes, {outcome.orders} orders; highest (growth): {highest}")


@pytest.mark.slow
@pytest.mark.repeated  # it takes a third of the connections that PostgreSQL allows
@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", HOSTS)
async def test_a_short_soak_of_a_host_stays_within_its_limits(host: HostName) -> None:
    """Its growth is not judged."""
    outcome = await run(plan_of(host, 0.3), Servers(need(POSTGRESQL), need(RABBITMQ)), lambda _: None)
    note(outcome)
    assert not outcome.problems
    assert outcome.orders


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 900)
@pytest.mark.parametrize("host", HOSTS)
async def test_a_soak_of_a_host_stays_within_its_limits(host: HostName) -> None:
    """Connections, descriptors, memory and rows neither exceed their limits nor grow."""
    outcome = await run(plan_of(host, MINUTES), Servers(need(POSTGRESQL), need(RABBITMQ)), print)
    note(outcome)
    assert not outcome.problems
