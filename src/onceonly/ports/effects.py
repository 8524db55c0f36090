"""The protocol of artifacts: what is created outside of the store, once or never (protocols, section 6).

An artifact is created before the commit, with a name that belongs to one attempt. The commit of its reservation is the
permission to keep it. A new kind of artifact needs an `ArtifactStore`. The library does the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from onceonly.model.artifact import Artifact, Reservation
from onceonly.model.errors import OnceOnlyError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Answer, Record
from onceonly.model.remote import Response

__all__ = ["ArtifactStore"]

Responses = Mapping[Identity, Response | OnceOnlyError]
"""What other services answered to messages that needed it: a response, or the error that the message fails with."""


class Effects(Protocol):
    """What the algorithm asks around a unit; where an endpoint makes no artifacts, every call is a formality."""

    async def register(self, messages: Sequence[Message]) -> Mapping[Identity, str]:
        """Open a register row for each, durably, before anything is made for it; returns their attempts' ids.

        Raises ConflictError, CommitFailed, OutcomeUnknown.
        """

    async def create(self, records: Sequence[Record]) -> None:
        """Make the artifacts of these records before the commit. Raises CommitRefused, CommitFailed, OutcomeUnknown."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Unmake what these attempts made; called on a definite ConflictError only."""

    async def clean(self, records: Sequence[Record]) -> None:
        """Unmake what all other attempts at these messages made: one of them was committed."""

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Make the calls of committed records at other services; answers for each record that has any."""

    async def responses(self, messages: Sequence[Message]) -> "Responses":
        """Ask other services for the responses that these messages need; returns the response of each, or why there is none.

        No unit is open. A reason counts only for a message that the next unit finds to be new.
        """


class ArtifactStore(Protocol):
    """The artifacts in one place, such as a folder or a container of blobs."""

    async def create(self, artifact: Artifact) -> None:
        """Create an artifact durably. A second call with the same name and data changes nothing.

        Raises CommitRefused if it can never be created, CommitFailed, OutcomeUnknown.
        """

    async def delete(self, name: str) -> None:
        """Delete an artifact. Harmless if it does not exist. Raises CommitFailed, OutcomeUnknown."""

    async def read(self, name: str) -> bytes | None:
        """Return the data of an artifact, or None if it does not exist. Raises CommitFailed, OutcomeUnknown."""

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List the names that begin with `prefix`, of every `create` that has finished.

        Raises CommitFailed, OutcomeUnknown.
        """


class Register(Protocol):
    """The rows, kept in the endpoint's store: a commit takes its own rows away in the same write.

    A commit whose row is cancelled or gone is a ConflictError.
    """

    async def open(self, rows: Sequence[Reservation]) -> None:
        """Write new rows, durably, before their artifacts are made. Raises ConflictError, CommitFailed, OutcomeUnknown.

        From the moment a row is there `old` finds it, also when the process dies during this call.
        """

    async def cancel(self, row: Reservation) -> bool:
        """Make a row cancelled; False when there is none any more: then its artifacts were published.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def remove(self, row: Reservation) -> None:
        """Remove a cancelled row, after its artifacts were unmade; harmless when it is gone.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def rows(self, identities: Sequence[Identity], unit: str = "") -> tuple[Reservation, ...]:
        """Return the rows of these messages. Raises CommitFailed, OutcomeUnknown."""

    async def old(self, older_than: int, limit: int) -> tuple[Reservation, ...]:
        """List rows opened before `older_than` (milliseconds since 1970), for the sweeper.

        Raises CommitFailed, OutcomeUnknown.
        """
