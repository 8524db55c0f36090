"""What must hold of a copy and of a dead letter: body, headers and history of their message, a death for each suspicion."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation
from onceonly.formats.cloudevents import ALONE, ATTEMPTS, HELD, HISTORY, attribute_of, encode
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Delivery, Failure, FailureKind, Headers, Message, Send
from onceonly.model.record import Answer
from onceonly_verify.board import BOARD, START, BoardWorld
from onceonly_verify.names import blamed_in, name_of
from onceonly_verify.time_steps import unskewed
from onceonly_verify.workload import Workload

_MARKS = frozenset({ATTEMPTS, HISTORY, ALONE, HELD})


def refused_for(call: Hashable, outcome: Hashable) -> tuple[str, ...]:
    """Name the messages that may be counted as failed because of these answers: those sent back, and those that sent."""
    if not isinstance(call, PortOperation) or call.point != "send":
        return ()
    if not isinstance(outcome, tuple) or Answer.REFUSED not in outcome:
        return ()
    sends = [one for one, answer in zip(call.arguments[0], outcome, strict=True) if answer is Answer.REFUSED]
    names = {name_of(one.message.body.decode()) for one in sends}
    return tuple(sorted(names | {name.rpartition(".")[0] for name in names} - {""}))


def wrong_copy(call: Hashable, batch: Sequence[Delivery]) -> str:
    """Return what is wrong with what a worker sends back or gives up, by the deliveries it has; empty if nothing is."""
    if not isinstance(call, PortOperation):
        return ""
    batch = unskewed(tuple(batch))
    if call.point == "send":
        found = next((found for one in call.arguments[0] if (found := _wrong_send(one, batch))), "")
    else:
        found = _wrong_letter(call.arguments[0], batch) if call.point == "dead-letter" else ""
    return f"miscopied: {found}" if found else ""


def _wrong_send(one: Send, batch: Sequence[Delivery]) -> str:
    mine = [delivery for delivery in batch if _is_of(one.message, delivery)]
    if not mine:  # an effect
        return ""
    name = name_of(one.message.body.decode())
    own, _ = encode(replace(one, attempts=0, history=(), alone=False, held=0))
    same = [each for each in mine if each.body == one.message.body and _unmarked(each.headers) == sorted(own)]
    if not same:
        return f"the copy of {name!r} has another body or other headers than {name!r}"
    if any(each.alone for each in mine) and not one.alone:
        return f"the copy of {name!r} is no longer marked as one that must run alone"
    held = max(each.held for each in same)
    if not held <= one.held <= held + 1:
        return f"the copy of {name!r} was held {one.held} times, {name!r} itself {held} times"
    return _wrong_history(one, same, max(each.attempts for each in same))


def _wrong_letter(letter: DeadLetter, batch: Sequence[Delivery]) -> str:
    mine = [each for each in batch if letter.message is None or _is_of(letter.message, each)]
    same = [each for each in mine if (each.body, each.headers) == (letter.body, letter.headers)]
    if not same:
        return f"the dead letter of {letter.body.decode()!r} has the body or the headers of another message"
    if letter.message and letter.message.body != letter.body:
        return f"the dead letter of {letter.body.decode()!r} is about {letter.message.body.decode()!r}"
    return _wrong_history(letter, [each for each in mine if each.body == letter.body], max(each.attempts for each in same))


def _wrong_history(made: Send | DeadLetter, same: Sequence[Delivery], least: int) -> str:
    """Compare a history with those of the deliveries: it continues that of the delivery which failed most often."""
    text = made.body.decode() if isinstance(made, DeadLetter) else made.message.body.decode()
    name, counted = name_of(text), _counted(made.history)
    if others := sorted({blamed_in(failure.reason) for failure in made.history} - {"", name}):
        return f"the history of {name!r} has a failure of {others[0]!r}"
    if made.attempts < least:
        return f"{name!r} failed {least} times, and its copy or dead letter counts {made.attempts}"
    before = [_counted(each.history) for each in same if least <= each.attempts <= made.attempts]
    if not any(counted[: len(each)] == each for each in before):
        return f"the history of {name!r} does not continue the one that it came with"
    if len(counted) > made.attempts:
        return f"the history of {name!r} has {len(counted)} failures, and {made.attempts} are counted"
    return ""


def _is_of(message: Message, delivery: Delivery) -> bool:
    known: dict[Any, str] = {attribute_of(name): value for name, value in delivery.headers}
    return (known.get("source"), known.get("id")) == (message.source, message.id)


def _unmarked(headers: Headers) -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in headers if attribute_of(name) not in _MARKS)


def _counted(history: Sequence[Failure]) -> tuple[Failure, ...]:
    return tuple(failure for failure in history if failure.kind is not FailureKind.LATER)


def wrongly_suspected(workload: Workload, board: Any, entry: Any, identity: Identity) -> Iterator[str]:
    """Look at a copy that must run alone, or that was only held: the deaths so far have to be a reason for it."""
    if not isinstance(board, BoardWorld):
        return
    headers, name = dict(entry.headers), name_of(entry.body.decode())
    if board.now == START:
        if "ce-onceonlyheld" in headers:
            yield f"apart: {name!r} counts as held by a dead process, and no death was seen"
        return
    own = dict(board.deaths).get(claim_key(entry.queue, identity), 0)
    was_alone = any(each.alone for each in workload.arrivals if each.name == name)
    if "ce-onceonlyalone" in headers and not (own or board.unclear or was_alone):
        yield f"apart: {name!r} has to run alone, although every death so far is explained, and none was its own"


def left_marked(worlds: Mapping[str, Any]) -> Iterator[str]:
    """Look, at rest, for what marks a handler that does not run any more."""
    board = worlds.get(BOARD.name)
    if board and (board.rows or board.alone):
        yield "leak: a handler is marked as running, or a process is taken, and no handler runs"
