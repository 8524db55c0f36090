"""For users' own tests: deliver twice, crash here, move the clock, and look at what came of it.

    async with testing.run(shop) as t:
        await t.deliver(PlaceOrder("1", 2), copies=2, crash_at="after-commit")
    assert t.sent.bodies(OrderPlaced) == [OrderPlaced("1")]

Names are imported when they are first used: the pytest plugin lives in this package and must cost nothing at start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.runtime.observe.crash import CRASH_POINTS
    from onceonly.testing.environment import RunClock
    from onceonly.testing.peers import Posted
    from onceonly.testing.runs import EndpointRun, run
    from onceonly.testing.sent import Sent

__all__ = ["CRASH_POINTS", "EndpointRun", "Posted", "RunClock", "Sent", "run"]

_HOME = {
    "CRASH_POINTS": "onceonly.runtime.observe.crash",
    "RunClock": "onceonly.testing.environment",
    "Posted": "onceonly.testing.peers",
    "EndpointRun": "onceonly.testing.runs",
    "Sent": "onceonly.testing.sent",
    "run": "onceonly.testing.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
