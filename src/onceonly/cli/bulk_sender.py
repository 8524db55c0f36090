"""Sending many messages, batch by batch, without losing sight of one. No terminal here."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly.deduplication import TokenIssuer, with_token
from onceonly.cli.events import BadItem, RefusedItem
from onceonly.model.errors import CommitFailed, RetryableError
from onceonly.model.limits import too_long, type_problem
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.model.token import Token
from onceonly.ports.transport import Traits

BATCH = 500
TRIES = 5
SHOWN_TYPES = 10
"""Handled types that an error names."""
FIRST_PAUSE_SECONDS = 0.1
"""Seconds before a send with an unknown outcome is repeated, then four times as long. The ids stay, so repeating is safe."""


class RefusedMessage(Struct, frozen=True):
    """A message that the transport will not take, that no receiver could read, or whose headers are wrong, and why.

    `place` is where it is in the input, for one whose id was not read.
    """

    id: str
    source: str
    reason: str
    place: str = ""


class SendTally(Struct):
    """What came of sending: how many were taken, which were refused, and how many have an unknown outcome."""

    sent: int = 0
    refused: list[RefusedMessage] = []
    unknown: int = 0


class SendPort(Protocol):
    """What sends: a transport, as far as it is needed here."""

    traits: Traits

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send, each for itself; see the Transport port."""


class TokenIssuing:
    """A sender whose messages get tokens first: without one their endpoint would not handle them."""

    def __init__(self, sender: SendPort, issuer: TokenIssuer) -> None:
        self.traits = sender.traits
        self._sender = sender
        self._issuer = issuer

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Make the tokens live that were not issued before, then send: also again, for an earlier run may have been cut off.

        Raises CommitFailed, OutcomeUnknown.
        """
        stamped = [replace(send, message=with_token(send.message)) for send in sends]
        await self._issuer.add_once([Token(send.message.token, send.to) for send in stamped])
        return await self._sender.send(stamped)


async def send_all(
    messages: Iterable[Message | RefusedItem],
    transport: SendPort,
    *,
    to: str,
    tally: SendTally,
    tick: Callable[[int], object],
    handled: Sequence[str] | None = None,
) -> None:
    """Send messages to an endpoint, or publish them when `to` is empty; `tally` is kept up to date, also when it raises.

    Messages of other types than those `handled` are refused. None: every type is sent.

    Raises BadItem at the first item of the input that is not a message, after all items before it are sent. Raises
    CommitFailed when the server is away: at once if it never answered, and after some tries otherwise.
    """
    source = iter(messages)
    problem = None
    while problem is None:
        batch, problem = _next_batch(source, BATCH)
        if not batch and problem is None:
            return
        if batch:
            tally.refused += [
                RefusedMessage("", "", each.reason, each.place) for each in batch if isinstance(each, RefusedItem)
            ]
            readable = [each for each in batch if isinstance(each, Message)]
            await _send_batch(readable, transport, to=to, tally=tally, handled=handled)
            tick(len(batch))
    raise problem


def _next_batch(messages: Iterator[Message | RefusedItem], limit: int) -> tuple[list[Message | RefusedItem], BadItem | None]:
    """Return the next messages, and what is wrong with the one behind them: those before it are sent all the same."""
    taken: list[Message | RefusedItem] = []
    try:
        taken.extend(islice(messages, limit))
    except BadItem as error:
        return taken, error
    return taken, None


async def _send_batch(
    batch: Sequence[Message], transport: SendPort, *, to: str, tally: SendTally, handled: Sequence[str] | None
) -> None:
    checked = [(message, _sending_problem(message) or unhandled(message.type, to, handled)) for message in batch]
    tally.refused += [RefusedMessage(message.id, message.source, problem) for message, problem in checked if problem]
    left = [Send(message=message, to=to) for message, problem in checked if not problem]
    if not left:
        return
    for number in range(TRIES):
        if number:
            await asyncio.sleep(FIRST_PAUSE_SECONDS * 4 ** (number - 1))
        try:
            answers = await transport.send(left)
        except CommitFailed:
            if number == TRIES - 1 or not (tally.sent or tally.refused or tally.unknown):
                raise
            continue
        except RetryableError:
            continue
        tally.sent += answers.count(Answer.TAKEN)
        refused = [send for send, answer in zip(left, answers, strict=True) if answer is Answer.REFUSED]
        tally.refused += [_refused_by_transport(send, transport) for send in refused]
        left = [send for send, answer in zip(left, answers, strict=True) if answer is Answer.UNKNOWN]
        if not left:
            return
    tally.unknown += len(left)


def _sending_problem(message: Message) -> str | None:
    """Return why no endpoint would take a message, or None."""
    named = (("id", message.id), ("source", message.source), ("subject", message.subject), ("time", message.time))
    return type_problem(message.type) or too_long((*named, *message.extensions))


def unhandled(kind: str, endpoint: str, handled: Sequence[str] | None) -> str | None:
    """Return why an endpoint does not handle a type; None if it does, or if its types are unknown."""
    if handled is None or kind in handled:
        return None
    shown = [*handled[:SHOWN_TYPES], *(["..."] if len(handled) > SHOWN_TYPES else [])]
    others = f"it handles {', '.join(shown)}" if shown else "it has none"
    return f"endpoint {endpoint!r} has no handler for {kind!r}: {others}. Correct the type, or set --any-type to send it anyway"


def _refused_by_transport(send: Send, transport: SendPort) -> RefusedMessage:
    message, limit = send.message, transport.traits.max_body
    if len(message.body) > limit:
        reason = f"its body is {len(message.body)} bytes long; the limit of this transport is {limit}"
    elif send.to:
        reason = f"endpoint {send.to!r} has no queue: start the endpoint once, or name it as module:endpoint"
    else:
        reason = "the transport rejected it"
    return RefusedMessage(message.id, message.source, reason)
