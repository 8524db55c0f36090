"""Who else is at work on an endpoint's store: those that execute what other services ask, as their network delivers it."""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.model.remote import Request
from onceonly.model.transaction import BlockDecision, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly.ports.store import Resources
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role
from onceonly_verify.workload import WIRE, Workload, asking, mark_text
from onceonly_verify.workload_ports import remote_requests_of

ASK, PUT, POST, DELETE = "ASK", "PUT", "POST", "DELETE"
"""What comes over the wire. ASK is a PUT whose caller waits for the answer, and goes on; a PUT is a late copy of it."""
SOON = 1
"""A deadline that is never over: the checker's clock stands still before it."""


def executing_roles(workload: Workload, *, workers: int) -> tuple[Role, ...]:
    """Give the first endpoint so many processes that answer other services, if any ask."""
    if not workload.asked:
        return ()
    verbs = {text.partition(" ")[0] for text in workload.asked}
    executed = ("open", "call-request", "commit", "send", "forget", "call-bury", "call-remove") if ASK in verbs else ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=WIRE,
            point="is asked",
            label=f"{workload.labels[0]}request: ",
            workers=workers,
            reaches=("call-put", *executed, "ack"),
            program=executing,
        ),
    )


def executing(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Do what another service asks, and answer."""
    return _execute(batch[0], programs, ports)


async def _execute(asked: Delivery, programs: Programs, ports: Ports) -> None:
    """Do it, and answer; what its caller does then is on its way at once. Without an answer it comes again."""
    handlers: Any = ports.handlers
    requests = remote_requests_of(programs, handlers.driver, endpoint=ports.endpoint)
    verb, _, key = asked.body.decode().partition(" ")
    with suppress(OnceOnlyError):
        following: tuple[str, ...] = ()
        if verb in {ASK, PUT}:
            await programs.execution.keep(key, Request(operation="a", body=key.encode()), requests, deadline=SOON, now=0)
            following = (POST, POST) if verb == ASK else ()  # one of them is the network's
        elif verb == POST:
            await _post(key, programs, ports, requests)
            following = (DELETE,)
        else:
            await programs.execution.bury(key, requests, until=SOON)
        if not following or await _follow(asked, key, following, ports):
            await ports.transport.ack([asked])
            return
    with suppress(OnceOnlyError):
        await ports.transport.release([asked])


async def _follow(asked: Delivery, key: str, verbs: tuple[str, ...], ports: Ports) -> bool:
    """Put on the wire what an answer leads to."""
    receipt = mark_text((asked.receipt, 0))
    sends = [asking(f"{verb} {key}") for verb in verbs]
    sent = [replace(s, message=replace(s.message, id=f"{s.message.id} {receipt}.{i}")) for i, s in enumerate(sends)]
    return set(await ports.transport.send(sent)) == {Answer.TAKEN}


async def _post(key: str, programs: Programs, ports: Ports, requests: Any) -> None:
    handlers: Any = ports.handlers
    mark = mark_text(handlers.driver.token())
    opening = TransactionAttempt(endpoint=ports.endpoint, attempt=mark, max_commit=SOON, key=key)

    async def run(_request: Request, resources: Resources) -> BlockDecision:
        notebook: Any = resources.get(programs.stores.Notebook)
        notebook.write(key, mark)
        return BlockDecision(handlers.effects(Identity(ports.endpoint, mark), key, mark), mark.encode())

    await programs.execution.execute(opening, run, requests, ports)
