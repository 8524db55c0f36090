"""Fault runs on MariaDB and on queues in a database: processes are killed, and all messages change the same few rows."""

import pytest
from sqlalchemy import make_url

from tests.adversary.fault_runs import Plan, fault_run
from tests.adversary.harness import opened_place
from tests.servers.available import RABBITMQ, need


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_kills_and_deadlocks_on_hot_rows_of_mariadb(mariadb_url: str) -> None:
    """Each message changes two of five rows, in an order of its own, and a process is killed every three seconds."""
    async with opened_place(mariadb_url, need(RABBITMQ)) as place:
        await fault_run(place, Plan(messages=500, kill_every=3.0, hot=5), name="kills and deadlocks on hot rows, MariaDB")


@pytest.fixture(params=["postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty database on each server."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_kills_on_a_queue_in_a_database(database_url: str) -> None:
    """Leases of messages whose process was killed end with time, and everything is handled once."""
    async with opened_place(database_url) as place:
        name = f"kills on a queue in {make_url(database_url).get_backend_name()}"
        progress = await fault_run(place, Plan(messages=2_000, kill_every=0.5), name=name)
        assert progress.kills > 0
