"""Who else is at work on an endpoint's store: those that execute what other services ask, as their network delivers it."""

from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.record import Answer
from onceonly.model.remote import Request
from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly.model.transaction import BlockDecision, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly.ports.store import Resources
from onceonly_verify.actors.clients import PLACE
from onceonly_verify.actors.relays import asked
from onceonly_verify.checked_handlers import clock_of
from onceonly_verify.invariants.executed import ExecutionLog
from onceonly_verify.names import mark_text
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role
from onceonly_verify.time_steps import START, STEP
from onceonly_verify.workload import ENTITY, FENCERS, WIRE, MessageArrival, Workload, request_send
from onceonly_verify.workload_ports import AnswersWorld, remote_requests_of

ASK, CALL, PUT, LATE, POST, DELETE = "ASK", "CALL", "PUT", "LATE", "POST", "DELETE"
"""What comes over the wire. ASK is a PUT whose caller waits for the answer, and goes on; a PUT is a late copy of it.

CALL is an ASK whose POST the network does not duplicate. LATE is a PUT that arrives at its deadline.
"""
SOON = 1
"""A deadline that is never over: the checker's clock stands still before it."""


def executing_roles(workload: Workload, *, workers: int) -> tuple[Role, ...]:
    """Return the processes of the first endpoint that answer other services, if any ask."""
    if not workload.asked:
        return ()
    verbs = {text.partition(" ")[0] for text in workload.asked}
    dispatched = () if workload.quiet else ("send", "forget")
    executed = ("open", "call-request", "commit", *dispatched, "call-bury", "call-remove") if {ASK, CALL} & verbs else ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=WIRE,
            point="is asked",
            label=f"{workload.labels[0]}request: ",
            workers=workers,
            reaches=("call-put", *executed, "ack"),
            program=execute,
        ),
    )


async def execute(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Do what another service asks, and answer; what its caller does then is on its way at once.

    Without an answer it comes again.
    """
    asked = batch[0]
    handlers: Any = ports.handlers
    requests = remote_requests_of(handlers.workload, programs, handlers.driver, endpoint=ports.endpoint)
    verb, _, key = asked.body.decode().partition(" ")
    now, deadline = _times(handlers)
    with suppress(OnceOnlyError):
        following: tuple[str, ...] = ()
        if verb in {ASK, CALL, PUT, LATE}:
            until = now if verb == LATE else deadline
            await programs.execution.keep(key, Request(operation="a", body=key.encode()), requests, deadline=until, now=now)
            following = {ASK: (POST, POST), CALL: (POST,)}.get(verb, ())  # the second one is the network's
        elif verb == POST:
            if await _post(key, programs, ports, requests):
                following = (DELETE,)  # without a response, whoever deleted the request also deletes the response
        else:
            until = max(deadline, now) + CLOCK_MARGIN_MS if handlers.workload.timing else SOON
            await programs.execution.bury(key, requests, until=until)
        if not following or await _follow(asked, key, following, ports):
            await ports.transport.ack([asked])
            return
    with suppress(OnceOnlyError):
        await ports.transport.release([asked])


def _times(handlers: Any) -> tuple[int, int]:
    """Return what this process's clock shows, and the deadline that the caller set when it first asked."""
    timing = handlers.workload.timing
    if timing is None:
        return 0, SOON
    return clock_of(handlers.workload, handlers.driver).now(), START + timing.max_commit * STEP


async def _follow(asked: Delivery, key: str, verbs: tuple[str, ...], ports: Ports) -> bool:
    """Put on the wire what an answer leads to."""
    receipt = mark_text((asked.receipt, 0))
    sends = [request_send(f"{verb} {key}") for verb in verbs]
    sent = [replace(s, message=replace(s.message, id=f"{s.message.id} {receipt}.{i}")) for i, s in enumerate(sends)]
    return set(await ports.transport.send(sent)) == {Answer.TAKEN}


async def _post(key: str, programs: Programs, ports: Ports, requests: Any) -> bool:
    """Return whether there is a response, which is noted."""
    handlers: Any = ports.handlers
    mark = mark_text(handlers.driver.token())
    opening = TransactionAttempt(endpoint=ports.endpoint, attempt=mark, max_commit=SOON, key=key)

    async def run(_request: Request, resources: Resources) -> BlockDecision:
        notebook: Any = resources.get(programs.stores.Notebook)
        notebook.write(key, mark)
        return BlockDecision(handlers.effects(Identity(ports.endpoint, mark), key, mark), mark.encode())

    log = ExecutionLog(key, requests, ports)
    if programs.has_log:
        response = await log.run(programs.execution.execute(opening, run, log, log.ports), handlers.driver)
    else:
        response = await programs.execution.execute(opening, run, requests, ports)
    if response is not None:
        handlers.driver.at_once(PortOperation("told", PLACE, _note, (key, response.decode())))
    return response is not None


def _note(world: AnswersWorld, asked: str, response: str) -> tuple[AnswersWorld, None]:
    return replace(world, responses=world.responses | {(asked, response)}), None


def fencing_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the workers of the first endpoint, one for each message that is given up."""
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
            program=fence,
        ),
    )


async def fence(_programs: Programs, batch: Batch, ports: Ports) -> None:
    """Fence the entity's document for one message, as giving up does."""
    name = batch[0].body.decode()
    message = replace(MessageArrival(name, name).message(), unit=ENTITY)
    with suppress(OnceOnlyError):  # another worker was faster, and fences as well
        await ports.fence.fence(ports.store.unit_key(message), message.identity)
