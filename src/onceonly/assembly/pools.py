"""The connection pools of this process, for metrics."""

import sys
from typing import NamedTuple


class PoolConnections(NamedTuple):
    """The connections of the pools of one system, such as "postgresql": `state` is "used" or "idle"."""

    system: str
    state: str
    number: int


def pool_connections() -> list[PoolConnections]:
    """Count the connections of all pools. Imports nothing: a process without a SQL database has none."""
    opened = sys.modules.get("onceonly.sql.database")
    pools = {} if opened is None else opened.pool_use()
    return [
        PoolConnections(system, state, number)
        for system, use in pools.items()
        for state, number in (("used", use.used), ("idle", use.idle))
    ]
