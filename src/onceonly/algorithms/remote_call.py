"""The remote call: what makes a request to another service be executed once, from its caller's side. Protocols, section 6.

    register   a row that permits the attempt r to be committed
    PUT r      the request waits at the other side, and nothing is executed. No answer: leave; the next attempt is another r
    commit     business state + POST r + the follow-up message, in the write that takes the row away
    POST r     executed, and what came of it is stored there. No answer for sure: leave; it is asked again
    follow up  sent only now; a unit of its own: claim, GET r, commit with DELETE r
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
    ResponseGone,
)
from onceonly.model.identity import Identity
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.model.record import Answer, Record
from onceonly.model.remote import HTTP, RemoteRequest, Response, Verb, peer_of, requested
from onceonly.ports.bundle import Ports
from onceonly.ports.remote import Remote


async def perform(records: Sequence[Record], remote: Remote) -> dict[Identity, Answer]:
    """Make the calls of committed records; answers for each record that has any: TAKEN only when each of its calls was."""
    calls = [call for record in records for call in record.requests]
    answers = iter(await remote.perform(calls)) if calls else iter(())
    taken = {record: [next(answers) is Answer.TAKEN for _ in record.requests] for record in records if record.requests}
    return {record.identity: Answer.TAKEN if all(each) else Answer.AWAY for record, each in taken.items()}


async def response_of(message: Message, remote: Remote) -> Response | None:
    """Return what the message follows up; None for one that follows nothing up.

    Raises ResponseGone; PeerAway when there is no answer; CommitRefused for an answer that is none.
    """
    url = requested(message)
    if not url:
        return None
    try:
        response = await remote.response(url)
    except CommitRefused:
        raise
    except (CommitFailed, OutcomeUnknown) as error:
        away = PeerAway(str(error), awaited_peer(message))
        away.needed_by = frozenset({message.identity})
        raise away from error
    if response is None:
        raise ResponseGone(message)
    return response


def awaited_peer(message: Message) -> str:
    """Return the URL of the peer that must answer before a message can be handled, or nothing."""
    return requested(message).rpartition("/")[0]


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


async def lost_response_error(error: ResponseGone, ports: Ports) -> OnceOnlyError:
    """Look again at a message whose response was not there: whoever handled it has deleted that; otherwise it is lost.

    Gives what to raise: ConflictError, uncounted, or HandlerFailed for the dead letters.
    """
    message = error.message
    again = await ports.store.begin([message])
    is_new = message in again.found.new
    again.abandon()
    if not is_new or not (await ports.admission.admits([message])).messages:
        return ConflictError(f"another worker has handled the response: {error}")
    reason = f"response lost: {requested(message)} has no response any more, and no worker has handled it"
    return HandlerFailed(Failure(kind=FailureKind.REJECTED, reason=reason))
