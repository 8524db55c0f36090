"""Clients: each attempts one transaction, is told the answer, and dispatches what was committed, unless its process dies."""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, OnceOnlyError
from onceonly.model.transaction import BlockDecision, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.relays import asked
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role
from onceonly_verify.workload import CLIENTS, WITH_ENTITIES, Client, Workload, decode_rows, encode_rows, mark_text
from onceonly_verify.workload_ports import ANSWERS, AnswersWorld

PLACE = WorldPart(ANSWERS, AnswersWorld())
ON_DOCUMENTS, IN_STORE = ("load", "save", "send"), ("open", "commit", "send", "forget")


def client_roles(workload: Workload) -> tuple[Role, ...]:
    """Give the first endpoint one process for each attempt of a client's."""
    if not workload.clients:
        return ()
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=CLIENTS,
            point="asks for",
            label=f"{workload.labels[0]}client: ",
            workers=len(workload.clients),
            reaches=(ON_DOCUMENTS if workload.deduplication in WITH_ENTITIES else IN_STORE)[: 2 if workload.quiet else None],
            begins=asked,
            program=attempting,
        ),
    )


def attempting(programs: Programs, _batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Run the shipping transaction, and what comes after it; a client that is told of an error does not ask again."""
    return _attempt(programs, ports)


async def _attempt(programs: Programs, ports: Ports) -> None:
    handlers: Any = ports.handlers
    attempt = mark_text(handlers.driver.token())
    client: Client = handlers.workload.attempts[attempt]
    request = client.request.encode() if client.key else b""
    opening = TransactionAttempt(endpoint=ports.endpoint, attempt=attempt, max_commit=1, key=client.key, fingerprint=request)

    async def block(opened: Any) -> BlockDecision:
        if not ports.controls:
            opened.resources.get(programs.stores.Notebook).write(client.name, attempt)
        elif client.entity:
            await opened.load(client.entity)
            entities = opened.resources.get(Entities)
            rows = decode_rows(entities.read(client.entity))
            entities.write(client.entity, encode_rows((*rows, (client.name, attempt))))
        return BlockDecision(handlers.effects(opening.identity, client.name, attempt), attempt.encode())

    with suppress(OnceOnlyError):  # the client is told
        ways = programs.transaction.TransactionPorts(ports.transactions, ports.admission, ports.controls, ports.transport)
        try:
            done = await programs.transaction.transact(opening, block, ways)
        except CommitFailed:
            handlers.driver.at_once(PortOperation("told", PLACE, _fail, (attempt,)))
            return
        answer = "" if done.answer is None else done.answer.decode()
        handlers.driver.at_once(PortOperation("told", PLACE, _tell, (attempt, answer)))
        if done.records:
            await programs.relay.relay(done.records, ports)


def _tell(world: AnswersWorld, attempt: str, answer: str) -> tuple[AnswersWorld, None]:
    return replace(world, told=world.told | {(attempt, answer)}), None


def _fail(world: AnswersWorld, attempt: str) -> tuple[AnswersWorld, None]:
    return replace(world, failed=world.failed | {attempt}), None
