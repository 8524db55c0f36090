"""Workers that give up other messages about the same entity: a fence changes its document at any moment."""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from onceonly.model.errors import OnceOnlyError
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.relays import asked
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role
from onceonly_verify.workload import ENTITY, FENCERS, Arrival, Workload


def fencing_roles(workload: Workload) -> tuple[Role, ...]:
    """Give the first endpoint one worker for each message that is given up."""
    if not workload.fences:
        return ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=FENCERS,
            point="starts on",
            label=f"{workload.labels[0]}fencer: ",
            workers=workload.fences,
            reaches=("load", "save"),
            begins=asked,
            program=fencing,
        ),
    )


def fencing(_programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Fence the entity's document for one message, as giving up does."""
    return _fence(batch[0].body.decode(), ports)


async def _fence(name: str, ports: Ports) -> None:
    message = replace(Arrival(name, name).message(), unit=ENTITY)
    with suppress(OnceOnlyError):  # another worker was faster, and fences as well
        await ports.fence.fence(ports.store.unit_key(message), message.identity)
