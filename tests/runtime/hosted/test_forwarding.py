"""A transport in front of another one has all its parts, on every version of Python."""

from inspect import getattr_static
from typing import Any

import pytest

from onceonly import Queue
from onceonly.ports.measurements import MeasuresQueue
from onceonly.ports.transport import BrokerReport, ChecksBroker, ListsSubscriptions, Traits
from onceonly.queues.carriers import CarryingTransport
from onceonly.queues.host_queue import HostQueueTransport
from onceonly_conformance.clock import ManualClock


class CheckingTransport:
    """A transport that has one optional part, and a number that changes."""

    def __init__(self) -> None:
        self.traits = Traits(lease=None, max_body=1000)
        self.left = 0

    async def check(self) -> BrokerReport:
        """Find nothing wrong."""
        return BrokerReport(again_after=5.0)


def behind_carriers(transport: Any) -> Any:
    """Put it behind the carriers."""
    return CarryingTransport(transport, "shop")


def behind_host(transport: Any) -> Any:
    """Put it behind the queue of a host."""
    return HostQueueTransport(transport, "shop", Queue("orders"), clock=ManualClock())


@pytest.mark.parametrize("wrap", [behind_carriers, behind_host, lambda it: behind_carriers(behind_host(it))])
async def test_optional_parts_are_found_by_isinstance(wrap: Any) -> None:
    """Up to Python 3.11 `isinstance` asks `hasattr`, since 3.12 `inspect.getattr_static`."""
    inner = CheckingTransport()
    outer = wrap(inner)
    assert isinstance(outer, ChecksBroker)
    assert getattr_static(outer, "check", None) is not None
    assert (await outer.check()).again_after == 5.0
    assert not isinstance(outer, ListsSubscriptions | MeasuresQueue)
    inner.left = 3
    assert (outer.left, outer.traits) == (3, inner.traits)
