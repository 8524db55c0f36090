"""The kit for users' own tests: deliver copies, crash the process, move the clock, and check the results.

    async with testing.run(shop) as t:
        await t.deliver(PlaceOrder("1", 2), copies=2, crash_at="after-commit")
        assert t.sent == [OrderPlaced("1")]

A test fails with what a handler raised, and at a crash point that it does not reach.

Names are imported when they are first used, so that the pytest plug-in in this package does not slow down the start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceonly.algorithms.settlement import BatchReport
    from onceonly.model.dead_letter import DeadLetter
    from onceonly.runtime.observe.crash import CRASH_POINTS
    from onceonly.testing.environment import RunClock
    from onceonly.testing.failures import HandlerFailure
    from onceonly.testing.peers import Posted
    from onceonly.testing.runs import EndpointRun, run
    from onceonly.testing.sent import Sent
    from onceonly.testing.stand_in import Fault, StandInApi, StandInRequest

__all__ = [
    "CRASH_POINTS",
    "BatchReport",
    "DeadLetter",
    "EndpointRun",
    "Fault",
    "HandlerFailure",
    "Posted",
    "RunClock",
    "Sent",
    "StandInApi",
    "StandInRequest",
    "run",
]

_HOME = {
    "BatchReport": "onceonly.algorithms.settlement",
    "DeadLetter": "onceonly.model.dead_letter",
    "CRASH_POINTS": "onceonly.runtime.observe.crash",
    "RunClock": "onceonly.testing.environment",
    "HandlerFailure": "onceonly.testing.failures",
    "Posted": "onceonly.testing.peers",
    "EndpointRun": "onceonly.testing.runs",
    "Fault": "onceonly.testing.stand_in",
    "StandInApi": "onceonly.testing.stand_in",
    "StandInRequest": "onceonly.testing.stand_in",
    "Sent": "onceonly.testing.sent",
    "run": "onceonly.testing.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
