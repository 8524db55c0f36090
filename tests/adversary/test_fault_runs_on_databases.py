"""Fault runs on MariaDB: kills all the time, and rows that everyone wants."""

import pytest

from adversary.fault_runs import Plan, fault_run
from adversary.harness import opened_place
from servers import RABBITMQ, need


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_kills_and_deadlocks_on_hot_rows_of_mariadb(mariadb_url: str) -> None:
    """Each message changes two of five rows, in an order of its own, and a process is killed every three seconds."""
    async with opened_place(mariadb_url, need(RABBITMQ)) as place:
        await fault_run(place, Plan(messages=500, kill_every=3.0, hot=5), name="kills and deadlocks on hot rows, MariaDB")
