"""What onceonly's own rows may cost at most for a message: a change that makes one of them dearer fails the run.

Counts are exact, but how full batches are depends on the broker's timing; a limit leaves room for that, and for no statement,
round trip or commit for each message. Commits include the forty or so that a process needs to start. A tiny run leaves more
room, because it is a test, which may share its machine with other work.
"""

from collections.abc import Mapping

import msgspec

from benchmarks.counting import Costs
from benchmarks.crew import RunFailed
from benchmarks.rows import BenchmarkRow

MESSAGES = 1000
"""How many messages are counted at least; with few, half-full batches and what is done once weigh too much."""

_BY_BROKER = Costs(statements=0.15, trips=0.2, commits=0.08, publishes=1.0, confirms=0.25, acks=1.0)
_INSERTING = msgspec.structs.replace(_BY_BROKER, statements=1.15, trips=1.2)  # one INSERT each is the handler's own

LIMITS: Mapping[str, Costs] = {
    "onceonly_orm": _BY_BROKER,
    "onceonly_orm_psycopg": _BY_BROKER,
    "onceonly_orm_mariadb": _BY_BROKER,
    "onceonly_core": _INSERTING,
    "onceonly_raw": _INSERTING,
    "onceonly_batch": _BY_BROKER,
    "onceonly_core_batch": msgspec.structs.replace(_BY_BROKER, statements=1.15),  # one INSERT each, in few round trips
    "onceonly_entities": msgspec.structs.replace(_BY_BROKER, statements=0.18, trips=0.24),
    "onceonly_off": msgspec.structs.replace(_BY_BROKER, statements=0.07, trips=0.08, commits=0.06),
    "onceonly_sql_queue": Costs(statements=0.42, trips=0.45, commits=0.12, publishes=0, confirms=0, acks=0),
    "onceonly_sqlite": Costs(statements=0.42, trips=0, commits=0.1, publishes=0, confirms=0, acks=0),
}
"""By the names of the rows."""


_LESS_THAN_ONE = 0.9


def check_costs(row: BenchmarkRow, costs: Costs, *, room: float = 1.0) -> None:
    """Compare what a row of onceonly's cost with its limits; any other row has none. Raises RunFailed.

    With `room` batches may be that many times smaller than usual. One statement, round trip or commit more for each message is
    over the limit whatever the room.
    """
    limits = LIMITS.get(row.name)
    if limits is None:
        return
    found = msgspec.structs.asdict(costs)
    allowed = {name: _with_room(limit, room) for name, limit in msgspec.structs.asdict(limits).items()}
    over = [f"{name} {found[name]:.3f}, at most {allowed[name]:.3f}" for name in allowed if found[name] > allowed[name]]
    if over:
        raise RunFailed(f"{row.name} costs too much for a message: {'; '.join(over)}")


def _with_room(limit: float, room: float) -> float:
    """Multiply what depends on batches: the part of a limit that is less than one for each message."""
    for_each, for_batches = divmod(limit, 1.0)
    return for_each + max(for_batches, min(for_batches * room, _LESS_THAN_ONE))
