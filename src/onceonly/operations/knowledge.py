"""Finding a message: what an endpoint knows about an identity, and what it cannot know."""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly.operations import OpenedOperations
from onceonly.model.artifact import Reservation
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.operations.letters import newest_letters
from onceonly.ports.dead_letters import LetterIndex
from onceonly.ports.operators import ClaimState, Knowledge


class Found(Enum):
    """What an endpoint knows about a message. An answer never states that a message was not handled if that is unknown."""

    HANDLED = "handled"
    PENDING = "handled, messages pending"
    DEAD_LETTER = "dead letter"
    RESERVED = "reserved"
    NO_CLAIM = "no claim within the retention"
    TOO_OLD = "older than the retention: unknown"
    UNDETERMINED = "not determined: an entity may have handled it"
    UNKNOWN = "unknown: this endpoint does not store which messages were handled"


class FoundMessage(Struct, frozen=True, kw_only=True):
    """The answer of one endpoint. A handled message may have dead letters as well: of other bodies, or finish only.

    If not `letters_searched`, the dead letters cannot be searched by identity, and only the newest 1,000 were read.
    """

    endpoint: str
    identity: Identity
    found: Found
    knowledge: Knowledge
    letters: tuple[DeadLetter, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    letters_searched: bool = True


async def find_message(opened: OpenedOperations, identity: Identity) -> FoundMessage:
    """Find a message at one endpoint. Raises CommitFailed, OutcomeUnknown."""
    letters, searched = await letters_of(opened, identity)
    asked = next((letter.message for letter in letters if letter.message), None)
    (knowledge,) = await know(opened, [asked or Message(source=identity.source, id=identity.id, type="", body=b"")])
    reservations = await opened.lookup.reservations(identity) if opened.lookup is not None else ()
    return FoundMessage(
        endpoint=opened.endpoint,
        identity=identity,
        found=_answer(knowledge, letters, reservations),
        knowledge=knowledge,
        letters=letters,
        reservations=reservations,
        letters_searched=searched,
    )


async def letters_of(opened: OpenedOperations, identity: Identity) -> tuple[tuple[DeadLetter, ...], bool]:
    """Return the dead letters of a message, and whether all dead letters of the endpoint were searched."""
    if isinstance(opened.letters, LetterIndex):
        return await opened.letters.of_message(opened.endpoint, identity), True
    newest, are_all = await newest_letters(opened.letters, opened.endpoint)
    return tuple(letter for letter in newest if letter.message and letter.message.identity == identity), are_all


class RetryCheck(Struct, frozen=True, kw_only=True):
    """What a retry of some dead letters would do: their numbers by what the store knows about their messages.

    `finished` were handled: only their pending messages are sent. `mismatched` were handled with another body, and become dead
    letters again. `kept` are not sent: without an identity, or older than the retention. Of the others, handlers run, or it is
    `unknown` whether they were handled.
    """

    checked: int = 0
    finished: int = 0
    mismatched: int = 0
    kept: int = 0
    unknown: int = 0


async def check_retry(opened: OpenedOperations, letters: Sequence[DeadLetter]) -> RetryCheck:
    """Return what a retry of these dead letters of one endpoint would do. Raises CommitFailed, OutcomeUnknown."""
    messages = [letter.message for letter in letters if letter.message]
    known = await know(opened, messages) if messages else ()
    handled = [
        (letter, each)
        for letter, each in zip([letter for letter in letters if letter.message], known, strict=True)
        if each.claim is ClaimState.HANDLED
    ]
    mismatched = sum(
        not letter.finish_only and bool(each.fingerprint) and each.fingerprint != letter.message.fingerprint
        for letter, each in handled
        if letter.message
    )
    old = sum(each.claim is ClaimState.TOO_OLD for each in known)
    return RetryCheck(
        checked=len(letters),
        finished=len(handled) - mismatched,
        mismatched=mismatched,
        kept=len(letters) - len(messages) + old,
        unknown=sum(each.claim in (ClaimState.UNKNOWN, ClaimState.UNDETERMINED) for each in known),
    )


async def know(opened: OpenedOperations, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
    """Return what an endpoint knows about whole messages. A dedup store and tokens elsewhere are asked as well.

    Raises CommitFailed, OutcomeUnknown.
    """
    if opened.lookup is None:
        found: Sequence[Knowledge] = [Knowledge(claim=ClaimState.UNKNOWN) for _ in messages]
    else:
        found = await opened.lookup.know(messages)
    if opened.admission is None:
        return tuple(found)
    unknown = [
        message
        for message, each in zip(messages, found, strict=True)
        if each.claim is ClaimState.UNKNOWN and (message.token or not opened.by_token)
    ]
    admitted = (await opened.admission.admits(unknown)).messages if unknown else frozenset()
    states = {
        message.identity: ClaimState.NO_CLAIM if message.identity in admitted else ClaimState.HANDLED for message in unknown
    }
    return tuple(
        replace(each, claim=states.get(message.identity, each.claim)) for message, each in zip(messages, found, strict=True)
    )


def _answer(knowledge: Knowledge, letters: Sequence[DeadLetter], reservations: Sequence[Reservation]) -> Found:
    """Return the strongest fact: a claim proves more than a dead letter, and a dead letter more than a missing claim."""
    if knowledge.record is not None and knowledge.record.is_pending:
        return Found.PENDING
    if knowledge.claim is ClaimState.HANDLED:
        return Found.HANDLED
    if letters:
        return Found.DEAD_LETTER
    if reservations:
        return Found.RESERVED
    return Found[knowledge.claim.name]
