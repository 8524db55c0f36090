"""Executions for other services next to messages that run alone: what a responder does is never counted for a message."""

import asyncio

from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Decision, Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.remote import OpenRemoteRequest, RemoteRequests, Responders
from onceonly.ports.store import Resources
from onceonly.runtime.processes.counters import CounterRow
from onceonly.runtime.worker.isolated_runs import UnitGate, gate

WAIT_SECONDS = 2.0
"""Seconds that an execution waits while a message runs alone: units that wait are let in after 1 s, behind the present run."""


class GatedRequests:
    """Requests whose executions are members of the gate from before their unit is opened until it has ended.

    While a message runs alone, none begins. Reading, storing and deleting requests is not affected: it runs no responder.
    """

    def __init__(self, requests: RemoteRequests) -> None:
        self._requests = requests
        self.put, self.entry, self.bury, self.remove = requests.put, requests.entry, requests.bury, requests.remove

    async def open(self, opening: TransactionAttempt) -> OpenRemoteRequest | IdempotencyEntry:
        """Enter the gate, then open; see the port.

        Raises CommitFailed when a message runs alone for longer than `WAIT_SECONDS`.
        """
        members = gate()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await members.enter()  # first: an open unit holds locks that the run alone may need
        except TimeoutError as error:
            raise CommitFailed(
                f"this process has handled a single message for more than {WAIT_SECONDS:g} s: repeat the request"
            ) from error
        try:
            opened = await self._requests.open(opening)
        except BaseException:
            members.leave()
            raise
        if isinstance(opened, IdempotencyEntry):
            members.leave()
            return opened
        return GatedRequest(opened, members)


class GatedRequest:
    """An execution that leaves the gate when its unit has ended: a slow broker holds up no message that is to run alone."""

    def __init__(self, call: OpenRemoteRequest, members: UnitGate) -> None:
        self._call = call
        self._members: UnitGate | None = members
        self.resources: Resources = call.resources
        self.request = call.request

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Commit, then leave; `abandon` follows a commit that raised."""
        await self._call.commit(record, answer)
        self._leave()

    def abandon(self) -> None:
        self._leave()
        self._call.abandon()

    def _leave(self) -> None:
        if self._members is not None:
            self._members.leave()
            self._members = None


class MarkedResponders:
    """Marks a running responder in the shared counters, so that no message is blamed when its process dies."""

    def __init__(self, responders: Responders, row: CounterRow, endpoint: str) -> None:
        self._responders = responders
        self._row = row
        self._endpoint = endpoint

    async def respond(self, message: Message, resources: Resources) -> tuple[object, Decision]:
        """Execute a request, marked with a key that no message has: an endpoint's name is never empty."""
        key = claim_key("", Identity(self._endpoint, message.id))
        self._row.enter(key, 0)
        try:
            return await self._responders.respond(message, resources)
        finally:
            self._row.leave(key, 0)
