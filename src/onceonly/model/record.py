"""What a handler decided, what is committed of it, and what came of dispatching it."""

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from onceonly.model.artifact import Artifact
from onceonly.model.identity import Identity
from onceonly.model.message import Send
from onceonly.model.remote import RemoteRequest
from onceonly.model.token import Token

Effect = Send
"""What is sent after the commit: messages. Artifacts, such as blobs, are made before it."""


class Decision(Struct, frozen=True):
    """The effects one handler captured, in order, and the artifacts it wants made. Its state changes sit in the unit.

    `requests` are those to make at other services before the effects are sent.
    """

    effects: tuple[Effect, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    requests: tuple[RemoteRequest, ...] = ()


class Record(Struct, frozen=True):
    """A decision as committed: the message it answers, the calls to make at other services, and the effects to dispatch then.

    `unit` is the key of the unit it was committed in (an entity's, empty elsewhere). `token` is the one its message came with,
    `issued` are those that its own messages carry. `fingerprint` is that of its message's body, and b"" where that is not
    known, such as for a transaction. `attempt` and `artifacts` belong to the attempt that commits it, and are not
    stored: the artifacts to make, and the register row that permits them.
    """

    identity: Identity
    effects: tuple[Effect, ...] = ()
    unit: str = ""
    token: str = ""
    issued: tuple[Token, ...] = ()
    attempt: str = ""
    artifacts: tuple[Artifact, ...] = ()
    requests: tuple[RemoteRequest, ...] = ()
    fingerprint: bytes = b""

    @property
    def is_pending(self) -> bool:
        """Whether anything is left to do after the commit."""
        return bool(self.effects or self.requests)

    @property
    def rejection(self) -> str:
        """What may have been rejected when its effects were, for people."""
        sends = sorted({f"{effect.message.type} to {effect.to or 'its subscribers'}" for effect in self.effects})
        writes = sorted({call.url.rpartition("/")[0] for call in self.requests if call.write is not None})
        rejected = "a projection or the broker rejected its effects" if writes else "the broker rejected its messages"
        return f"{rejected}: {', '.join([*writes, *sends][:3])}"


class Answer(Enum):
    """What became of a message that was sent.

    * TAKEN: the broker has stored it durably.
    * REFUSED: the broker rejects it, for example because a command cannot be routed.
    * UNKNOWN: everything else, for example a lost connection. The message is sent again.
    * AWAY: a service that is asked over HTTP did not answer. It is asked again, and nothing was sent.
    """

    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    AWAY = "away"


def together(answers: Iterable[Answer]) -> Answer:
    """Return the answer for all of a record's effects: the worst one."""
    given = frozenset(answers)
    return next((worst for worst in (Answer.REFUSED, Answer.UNKNOWN) if worst in given), Answer.TAKEN)
