"""Clients: each attempts one transaction, is told the answer, and dispatches what was committed, unless its process dies.

Where clients retry, a request stays in their queue until it has an answer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.model.entities import Entities
from onceonly.model.errors import BudgetExceeded, ConflictError, HandlerFailed, KeyReused, OnceOnlyError, OutcomeUnknown
from onceonly.model.message import Failure, FailureKind
from onceonly.model.transaction import BlockDecision, IdempotencyEntry, TransactionAttempt, attempt_unit
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.relays import asked
from onceonly_verify.checked_handlers import decode_rows, encode_rows
from onceonly_verify.invariants.looks import Announcement
from onceonly_verify.invariants.reports import WrongReportError, with_each_record
from onceonly_verify.names import mark_text
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role, receive_batches
from onceonly_verify.time_steps import STEP
from onceonly_verify.workload import CLIENTS, WITH_ENTITIES, Behaviour, Client, End, Workload
from onceonly_verify.workload_ports import ANSWERS, AnswersWorld

PLACE = WorldPart(ANSWERS, AnswersWorld())
ON_DOCUMENTS, IN_STORE = ("load", "save", "send"), ("open", "commit", "send", "forget")


def client_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the processes of the first endpoint, one for each attempt of a client's."""
    if not workload.clients or workload.clients_own:
        return ()
    return (
        Role(
            endpoint=workload.caller,
            queue=CLIENTS,
            point="asks for",
            label=f"{workload.labels[0]}client: ",
            workers=len(workload.clients),
            reaches=(ON_DOCUMENTS if workload.deduplication in WITH_ENTITIES else IN_STORE)[: 2 if workload.quiet else None],
            begins=receive_batches if workload.clients_retry else asked,
            program=attempt,
        ),
    )


async def attempt(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Run the shipping transaction, and what comes after it.

    A client that retries takes an answer, or the answer that its key was used before, for the end. One that waits takes an
    answer only when its messages were sent.
    """
    handlers: Any = ports.handlers
    request = batch[0]
    retries, waits = handlers.workload.clients_retry, handlers.workload.clients_wait
    is_sent = False
    with suppress(OnceOnlyError):  # the client is told
        try:
            records = await _transact(programs, ports)
        except KeyReused:
            records = ()
        except OnceOnlyError:
            if retries:
                await ports.transport.release([request])
            return
        relayed = await with_each_record(programs.relay.relay(records, ports), records) if records else None
        is_sent = relayed is None or len(relayed.finished) == len(records)
    if retries:
        with suppress(OnceOnlyError):
            await (ports.transport.release if waits and not is_sent else ports.transport.ack)([request])


async def _transact(programs: Programs, ports: Ports) -> Any:
    """Run the transaction, and note what the client is told. Returns the records to dispatch. Raises as `transact`."""
    handlers: Any = ports.handlers
    attempt = mark_text(handlers.driver.token())
    client: Client = handlers.workload.attempts[attempt]
    request = client.request.encode() if client.key else b""
    timing = handlers.workload.timing
    longest = timing.max_commit * STEP if timing else 1
    opening = TransactionAttempt(
        endpoint=ports.endpoint, attempt=attempt, max_commit=longest, key=client.key, fingerprint=request
    )

    async def block(opened: Any) -> BlockDecision:
        opened.resources.check(attempt)
        if timing and not handlers.workload.quiet:
            handlers.driver.at_once(PortOperation("opened", PLACE, note, ("opened", attempt)))
        if handlers.workload.deduplication not in WITH_ENTITIES:
            opened.resources.get(programs.stores.Notebook).write(client.name, attempt)
        elif client.entity:
            await opened.load(client.entity)
            entities = opened.resources.get(Entities)
            rows = decode_rows(entities.read(client.entity))
            entities.write(client.entity, encode_rows((*rows, (client.name, attempt))))
        if handlers.workload.behaviour(client.name) is not Behaviour.WORKS:
            _end(await handlers.driver.choose(client.name))
        effects = handlers.effects(opening.identity, client.name, attempt) if client.effects else ()
        return BlockDecision(effects, attempt.encode())

    watched = WatchedTransactions(ports.transactions)
    transport: Any = ports.transport
    if programs.has_log and ports.controls:
        transport = Announcement(transport, opening, ports.controls, lambda: watched.unit() or attempt_unit(longest))
    own_ports = programs.transaction.TransactionPorts(watched, ports.admission, ports.controls, transport)
    try:
        done = await programs.transaction.transact(opening, block, own_ports)
    except OnceOnlyError as error:
        for field in watched.told_by(error, attempt, has_key=bool(client.key)):
            handlers.driver.at_once(PortOperation("told", PLACE, note, (field, attempt)))
        raise
    if done.is_known == watched.committed:
        raise WrongReportError(
            f"wrong answer: attempt {attempt} was{'' if watched.committed else ' not'} committed: is_known={done.is_known}"
        )
    answer = "" if done.answer is None else done.answer.decode()
    handlers.driver.at_once(PortOperation("told", PLACE, note, ("told", (attempt, answer))))
    return done.records


def _end(end: End) -> None:
    """End the block as the checker chose."""
    if end is End.FAILS:
        raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="the block failed"))
    if end is End.NOT_NOW:
        raise BudgetExceeded
    if end is End.LOCKED:
        raise ConflictError("another transaction has the lock")


class WatchedTransactions:
    """The transactions of a store, of which one attempt uses one.

    `committing` is whether it was sent its commit, and `committed` whether that was answered. `is_unread` is whether its key
    was not read since. `is_open` is whether its unit has neither been committed nor abandoned.
    """

    def __init__(self, transactions: Any) -> None:
        self.committing = self.committed = self.is_open = False
        self.is_unread = True
        self._transactions = transactions
        self._opened: Any = None

    def unit(self) -> str:
        """Return where the record of the attempt will be."""
        found: str = self._opened.unit
        return found

    def told_by(self, error: OnceOnlyError, attempt: str, *, has_key: bool) -> tuple[str, ...]:
        """Return the fields of `AnswersWorld` for an attempt that ended with this error. Raises WrongReportError."""
        if self.is_open:
            raise WrongReportError(f"leak: the unit of attempt {attempt} is neither committed nor abandoned") from error
        if isinstance(error, HandlerFailed):
            raise WrongReportError(
                f"wrong answer: attempt {attempt} let {error!r} escape, which is for handlers of messages only"
            ) from error
        if isinstance(error, ConflictError) and has_key and self.is_unread:
            raise WrongReportError(
                f"wrong answer: attempt {attempt} was told to try again, but its key was not read after that"
            ) from error
        if isinstance(error, OutcomeUnknown):
            return () if self.committing else ("unsent",)
        return ("reused", "failed") if isinstance(error, KeyReused) else ("failed",)

    async def open(self, opening: TransactionAttempt) -> Any:
        self._opened = opened = await self._transactions.open(opening)
        self.is_open = not isinstance(opened, IdempotencyEntry)
        return _WatchedTransaction(opened, self) if self.is_open else opened

    async def entry(self, key: str) -> IdempotencyEntry | None:
        self.is_unread = False
        found: IdempotencyEntry | None = await self._transactions.entry(key)
        return found


class _WatchedTransaction:
    def __init__(self, opened: Any, watched: WatchedTransactions) -> None:
        self.resources = _WatchedResources(opened.resources)
        self._opened = opened
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    async def commit(self, record: Any, answer: bytes | None) -> None:
        self._watched.committing = True
        await self._opened.commit(record, answer)
        self._watched.committed, self._watched.is_open = True, False

    def abandon(self) -> None:
        self._watched.is_open = False
        self._opened.abandon()


class _WatchedResources:
    """The resources of one transaction. `is_enclosed` is whether its block runs inside `attempt`, as resources require."""

    def __init__(self, resources: Any) -> None:
        self.is_enclosed = False
        self._resources = resources

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resources, name)

    def check(self, attempt: str) -> None:
        """Raise WrongReportError unless the block runs inside."""
        if not self.is_enclosed:
            raise WrongReportError(f"wrong answer: the block of attempt {attempt} ran outside of `resources.attempt()`")

    @asynccontextmanager
    async def attempt(self, _handler: str = "") -> AsyncIterator[None]:
        async with self._resources.attempt():
            self.is_enclosed = True
            yield


def note(world: AnswersWorld, field: str, told: Any) -> tuple[AnswersWorld, None]:
    """Note what a client was told."""
    return replace(world, **{field: getattr(world, field) | {told}}), None
