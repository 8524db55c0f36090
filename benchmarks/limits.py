"""What onceonly's own rows may cost at most for a message: a change that makes one of them dearer fails the run.

Counts are exact, but how full batches are depends on the broker's timing; a limit leaves room for that, and for no statement,
round trip or commit for each message.
"""

from collections.abc import Mapping

import msgspec

from benchmarks.counting import Costs
from benchmarks.crew import RunFailed
from benchmarks.rows import BenchmarkRow

MESSAGES = 1000
"""How many messages are counted at least; with few, half-full batches and what is done once weigh too much."""

_BY_BROKER = Costs(statements=0.15, trips=0.2, commits=0.05, publishes=1.0, confirms=0.25, acks=1.0)
_INSERTING = msgspec.structs.replace(_BY_BROKER, statements=1.15, trips=1.2)  # one INSERT each is the handler's own

LIMITS: Mapping[str, Costs] = {
    "onceonly_orm": _BY_BROKER,
    "onceonly_core": _INSERTING,
    "onceonly_raw": _INSERTING,
    "onceonly_entities": msgspec.structs.replace(_BY_BROKER, statements=0.18, trips=0.24),
    "onceonly_off": msgspec.structs.replace(_BY_BROKER, statements=0.07, trips=0.08, commits=0.03),
    "onceonly_sql_queue": Costs(statements=0.42, trips=0.45, commits=0.12, publishes=0, confirms=0, acks=0),
    "onceonly_sqlite": Costs(statements=0.42, trips=0, commits=0.1, publishes=0, confirms=0, acks=0),
}
"""By the names of the rows."""


def check_costs(row: BenchmarkRow, costs: Costs) -> None:
    """Compare what a row of onceonly's cost with its limits; any other row has none. Raises RunFailed."""
    limits = LIMITS.get(row.name)
    if limits is None:
        return
    found, allowed = msgspec.structs.asdict(costs), msgspec.structs.asdict(limits)
    over = [f"{name} {found[name]:.3f}, at most {allowed[name]:.3f}" for name in allowed if found[name] > allowed[name]]
    if over:
        raise RunFailed(f"{row.name} costs too much for a message: {'; '.join(over)}")
