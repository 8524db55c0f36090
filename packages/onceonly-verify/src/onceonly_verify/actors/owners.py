"""Clients with a transaction of their own: a key is taken in it, and they commit it or roll it back.

A client repeats its request until the transaction is committed and its messages are sent. That needs no relay.
"""

from contextlib import suppress
from typing import Any

from onceonly.adapters.memory.world import PortOperation
from onceonly.model.errors import KeyReused, OnceOnlyError, OutcomeUnknown
from onceonly.model.transaction import TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly_verify.actors.clients import PLACE, note
from onceonly_verify.invariants.reports import with_each_record
from onceonly_verify.names import mark_text
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Role, receive_batches
from onceonly_verify.workload import CLIENTS, Behaviour, Client, End, Workload


def owner_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the processes of the first endpoint, one for each client."""
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=CLIENTS,
            point="asks for",
            label=f"{workload.labels[0]}client: ",
            workers=len(workload.clients),
            reaches=("open", "commit", "entry", "send", "forget", "ack"),
            begins=receive_batches,
            program=work,
        ),
    )


async def work(programs: Programs, batch: Batch, ports: Ports) -> None:
    """Do the work in a transaction, dispatch what is committed under the key, and only then take the request for done."""
    owner = TransactionOwner(programs, ports)
    is_over = False
    try:
        await owner.transact()
        # Crash here: 1 committed, 2 nothing sent, 3 the request comes again, 4 the key is known, and its messages are sent.
        is_over = await owner.dispatch()
    except KeyReused:
        is_over = True
    except OnceOnlyError:
        pass  # it is asked again
    with suppress(OnceOnlyError):
        await (ports.transport.ack if is_over else ports.transport.release)(batch)


class TransactionOwner:
    """One attempt of a client."""

    def __init__(self, programs: Programs, ports: Ports) -> None:
        handlers: Any = ports.handlers
        self._programs, self._ports, self._handlers = programs, ports, handlers
        self._attempt = mark_text(handlers.driver.token())
        self._client: Client = handlers.workload.attempts[self._attempt]
        self._opening = TransactionAttempt(
            endpoint=ports.endpoint,
            attempt=self._attempt,
            max_commit=1,
            key=self._client.key,
            fingerprint=self._client.request.encode(),
        )
        self._session = programs.session.MemorySession(ports.transactions, self._opening)

    async def transact(self) -> None:
        """Have the work committed, by this attempt or an earlier one. Raises what the store raises, after a rollback."""
        try:
            await self._work()
        except OutcomeUnknown:
            self._session.roll_back()
            raise
        except OnceOnlyError as error:
            self._session.roll_back()
            for field in ("reused", "failed") if isinstance(error, KeyReused) else ("failed",):
                self._tell(field, self._attempt)
            raise
        except BaseException:
            self._session.roll_back()
            raise

    async def dispatch(self) -> bool:
        """Send what is committed under the key. Returns whether that is all."""
        transactions: Any = self._ports.transactions
        entry = await transactions.entry(self._client.key)
        if entry is None:
            return False
        records = self._programs.transaction.known(entry).records
        if not records:
            return True
        relayed = await with_each_record(self._programs.relay.relay(records, self._ports), records)
        return len(relayed.finished) == len(records)

    async def _work(self) -> None:
        session = self._session
        is_choosing = self._handlers.workload.behaviour(self._client.name) is not Behaviour.WORKS
        end = await self._handlers.driver.choose(self._client.name) if is_choosing else End.WORKS
        if end is End.KEY_IN_SAVEPOINT:
            session.savepoint()
            if not await session.enlist():
                self._do("in a savepoint with its key")
            session.roll_back_savepoint()
        if await session.enlist():
            session.roll_back()
            self._tell("told", (self._attempt, session.entry.answer.decode()))
            return
        if end is End.SAVEPOINT:
            session.savepoint()
            self._do("in a savepoint")
            session.roll_back_savepoint()
        self._do()
        if end is End.FAILS:
            session.roll_back()
            self._tell("failed", self._attempt)
            return
        await session.commit(self._attempt.encode())
        self._tell("told", (self._attempt, self._attempt))

    def _do(self, where: str = "") -> None:
        """Write a row and send messages."""
        mark = f"{self._attempt} {where}".strip()
        self._session.write(self._client.name, mark)
        self._session.send(self._handlers.effects(self._opening.identity, self._client.name, mark))

    def _tell(self, field: str, told: Any) -> None:
        self._handlers.driver.at_once(PortOperation("told", PLACE, note, (field, told)))
