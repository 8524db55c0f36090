"""Requests that are executed once: the requests to other services, and the store of the requests that a service receives.

The wire between the two is HTTP (docs/explanation/http.md). Outcomes as in `ports.store`.
"""

from collections.abc import Sequence
from typing import Protocol

from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.model.record import Answer, Decision, Record
from onceonly.model.remote import RemoteRequest, Request, Response
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.effects import ArtifactStore
from onceonly.ports.store import Resources


class Remote(Protocol):
    """Other services, to a caller whose requests wait there as artifacts."""

    async def perform(self, calls: Sequence[RemoteRequest]) -> tuple[Answer, ...]:
        """Make each call; TAKEN only when the other side said so for sure, whatever it answered. Raises nothing of theirs."""

    async def responses(self, urls: Sequence[str]) -> tuple[Response | OnceOnlyError | None, ...]:
        """Return the stored response of each request; None where the other side says for sure that there is none.

        In place of a response is CommitRefused where it can never be read, and CommitFailed or OutcomeUnknown where there was
        no answer. Raises nothing of theirs.
        """


class Peers(ArtifactStore, Remote, Protocol):
    """Other services, with the requests that wait there."""


class Responders(Protocol):
    """The user's code that executes requests, as the Handlers port is that which handles messages."""

    async def respond(self, message: Message, resources: Resources) -> tuple[object, Decision]:
        """Execute a request, put as a message of the operation's type; returns what is to be answered. Raises HandlerFailed."""


class OpenRemoteRequest(Protocol):
    """One request that is being executed, which ends by `commit` or `abandon`; its answer is the response."""

    resources: Resources

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Make business state, the record if there is one, and the response final in one atomic step.

        In time, as for a transaction. Raises ConflictError, CommitRefused, CommitFailed, OutcomeUnknown.
        """

    def abandon(self) -> None:
        """Return it up; nothing of it ever becomes visible. Awaits nothing."""

    async def request(self) -> Request | None:
        """Return the request, as it is now; None when it is not there, or not any more. Raises CommitFailed, OutcomeUnknown."""


class RemoteRequests(Protocol):
    """What a service was asked, and its responses, in its store. `key` names a request, and whose it is."""

    async def put(self, key: str, request: Request, until: int) -> bool:
        """Keep a request until it is buried; False when it was buried, or another one is kept under this key.

        The same request again is fine. Raises CommitFailed, OutcomeUnknown.
        """

    async def open(self, opening: TransactionAttempt) -> OpenRemoteRequest | IdempotencyEntry:
        """Load the response, and give it if it is there; else open the unit in which the request is executed.

        Whoever executes the same request in another open unit is waited for, or shows as ConflictError here or at commit.
        Raises ConflictError, CommitFailed, OutcomeUnknown.
        """

    async def entry(self, key: str) -> IdempotencyEntry | None:
        """Return the response that is committed; a read that is linearizable with commits.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def bury(self, key: str, until: int) -> None:
        """Remove a request, in one write with a tombstone that stands at least until then (milliseconds since 1970).

        The response may go in the same write. Whether there is such a request or not: it cannot come any more. Raises
        CommitFailed, OutcomeUnknown.
        """

    async def remove(self, key: str) -> None:
        """Remove the response, if it is still there. Raises CommitFailed, OutcomeUnknown."""
