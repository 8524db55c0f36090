"""The remote call: what makes a request to another service be executed once, from its caller's side. Protocols, section 6.

    register   a row that permits the attempt r to be committed
    PUT r      the request waits at the other side, and nothing is executed. No answer: leave; the next attempt is another r
    commit     business state + POST r + the follow-up message, in the write that takes the row away
    POST r     executed, and what came of it is stored there. No answer for sure: leave; it is asked again
    follow up  sent only now; new to its unit: GET r, then a unit of its own: claim, commit with DELETE r
    DELETE r   of request and response; and of every r whose attempt can never be committed

The other side is `algorithms/remote_execution`. Crash before the commit: the request waits, nobody has it executed, and whoever
cancels its row deletes it. Crash after it: the record is pending, and POST is asked again, as often as it takes. The follow-up
message is sent when the response is there, and only who has handled that message has the response deleted: so who handles it
finds one, or is late, or the other side has lost it.
"""

from collections.abc import Sequence

from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    HandlerFailed,
    OnceOnlyError,
    OutcomeUnknown,
    PeerAway,
)
from onceonly.model.identity import Identity
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.record import Answer, Record
from onceonly.model.remote import HTTP, RemoteRequest, Response, Verb, asks, peer_of, requested
from onceonly.model.third_party import called_peer
from onceonly.ports.effects import Responses
from onceonly.ports.remote import Remote


async def perform(records: Sequence[Record], remote: Remote) -> dict[Identity, Answer]:
    """Make the calls of committed records; answers for each record that has any: TAKEN only when each of its calls was."""
    calls = [call for record in records for call in record.requests]
    answers = iter(await remote.perform(calls)) if calls else iter(())
    taken = {record: [next(answers) is Answer.TAKEN for _ in record.requests] for record in records if record.requests}
    return {record.identity: Answer.TAKEN if all(each) else Answer.AWAY for record, each in taken.items()}


async def responses_of(messages: Sequence[Message], remote: Remote) -> Responses:
    """Ask for the responses that these messages follow up; returns each, or the error that its message fails with.

    They are asked for before the unit in which the messages are handled. Whoever handles a message deletes its response only
    after the commit. So a message that is new in the unit and has no response has lost it.
    """
    found = await remote.responses([requested(message) for message in messages])
    return together({message.identity: _response_of(message, each) for message, each in zip(messages, found, strict=True)})


def _response_of(message: Message, found: Response | OnceOnlyError | None) -> Response | OnceOnlyError:
    if found is None:
        reason = f"response lost: {requested(message)} has no response any more, and no worker has handled it"
        return HandlerFailed(Failure(kind=FailureKind.REJECTED, reason=reason))
    if isinstance(found, CommitFailed | OutcomeUnknown) and not isinstance(found, CommitRefused):
        return PeerAway(str(found), awaited_peer(message))
    return found


def together(responses: Responses) -> Responses:
    """Have the error of a peer that is away name all messages that need it, so that they are put off together."""
    away: dict[str, set[Identity]] = {}
    for identity, found in responses.items():
        if isinstance(found, PeerAway):
            away.setdefault(found.peer, set()).add(identity)
    for found in responses.values():
        if isinstance(found, PeerAway):
            found.needed_by = frozenset(away[found.peer])
    return responses


def response_in(responses: Responses, message: Message) -> Response | None:
    """Return the response that was found for a message; None for one that needs none.

    Raises the error of a message, and ConflictError for one that was not new when others were asked.
    """
    if not responses:
        return None
    found = responses.get(message.identity)
    if isinstance(found, OnceOnlyError):
        raise found
    if found is None and asks(message):
        raise ConflictError(f"message {message.id!r} needs a response that was not asked for")
    return found


def awaited_peer(message: Message) -> str:
    """Return the URL of the peer that must answer before a message can be handled, or nothing."""
    return called_peer(message) or requested(message).rpartition("/")[0]


def called_peers(record: Record) -> str:
    """Return the URLs of the peers that a committed record calls."""
    return ", ".join(dict.fromkeys(call.url.rpartition("/")[0] for call in record.requests))


def callers_of(peer: str, records: Sequence[Record]) -> frozenset[Identity]:
    """Return the messages of these attempts that ask this peer for something."""
    asking = [(record, artifact) for record in records for artifact in record.artifacts if artifact.kind == HTTP]
    return frozenset(record.identity for record, artifact in asking if peer_of(artifact.name) == peer)


def delete_call(message: Message) -> tuple[RemoteRequest, ...]:
    """Return the call that ends the request which a message follows up."""
    url = requested(message)
    return (RemoteRequest(Verb.DELETE, url),) if url else ()
