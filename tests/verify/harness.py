"""A relay that is written for the tests, as a role of the checker."""

from collections.abc import Coroutine, Iterator
from typing import Any

from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.ports.bundle import Ports
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role
from onceonly_verify.workload import SHOP

RELAY = "relay of the shop"
ALARM = Delivery(receipt=MemoryReceipt(number=0, times=0), queue=RELAY, headers=(), body=b"an alarm")


def whenever(broker: Any, _role: Role, _transports: Any) -> Iterator[Begun]:
    """Set a worker going at any moment."""
    yield broker, (ALARM,)


def sending_what_is_pending(_programs: Programs, _batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Send the effects of old records, and forget those that were taken."""
    return _relay(ports, forgetting_first=False)


def forgetting_what_is_pending(_programs: Programs, _batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Forget old records before their effects are sent."""
    return _relay(ports, forgetting_first=True)


async def _relay(ports: Ports, *, forgetting_first: bool) -> None:
    assert ports.pending is not None
    for record in await ports.pending.undispatched(older_than=1, limit=1):
        if forgetting_first:
            await ports.store.forget([record])
        answers = await ports.transport.send(record.effects)
        if not forgetting_first and all(answer is Answer.TAKEN for answer in answers):
            await ports.store.forget([record])


RELAYING = Role(
    endpoint=SHOP, queue=RELAY, point="wake up for", label="relay: ", begins=whenever, program=sending_what_is_pending
)
