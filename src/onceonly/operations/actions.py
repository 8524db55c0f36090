"""Actions on dead letters: retry, edit and retry, send as new, delete, restore. Commands and web pages share them.

The row of an action is committed before its first effect. The items of a page are committed before the page is sent, and
settled afterwards. So a crash leaves no letter without an item: the next runner repeats the planned items. Repeating is safe,
because the claim decides whether a message is handled, and not this code.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly.deduplication import TokenIssuer
from onceonly.assembly.parts import BucketClock
from onceonly.formats.records import decode_letter, encode_letter
from onceonly.formats.undecodable import decode_or_report
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.identity import claim_key
from onceonly.model.message import EXPIRES, HOPS, Message, Send
from onceonly.model.record import Answer
from onceonly.model.ring import ANYWAY, Undecidable
from onceonly.model.token import Token
from onceonly.operations.audit import UnstoredActionLog, log_ended, log_refused, log_started
from onceonly.operations.letters import find, moment, pages
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex
from onceonly.ports.operators import ActionLog, ClaimState, Knowledge
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import LIVE, Environment

STORED_MS = 7 * 86_400_000
"""For how long a deleted or edited letter can be restored."""
HEAD_START_SECONDS = 2.0
"""Seconds a retried message waits in its queue: time to remove its letter before it could become one again."""
EVERY_LETTER = ActionScope()
WITHDRAWN = "token withdrawn"
TOO_SLOW = "sent, but too slowly to delete its dead letter safely; retrying it again changes nothing"


class Operator(Struct, frozen=True):
    """Who acts, and how that is known: `basic`, `bearer`, `application`, `loopback` or `cli`; and the number of the form."""

    name: str
    method: str
    form: str = ""


class ActionParts(Struct, frozen=True, kw_only=True):
    """What actions work on. `transport` is needed to send, `tokens` where the endpoint uses tokens.

    `know` reads what `endpoint` knows about messages. Without it, and for other endpoints, the outcome of a retry is unknown.
    `bucket_clock` reads how the store divides time. Messages are delivered `head_start` seconds after they are sent.
    """

    letters: DeadLetters
    log: ActionLog
    endpoint: str = ""
    transport: Transport | None = None
    know: Callable[[Sequence[Message]], Awaitable[Sequence[Knowledge]]] | None = None
    tokens: TokenIssuer | None = None
    bucket_clock: Callable[[], Awaitable[BucketClock | None]] | None = None
    environment: Environment = LIVE
    head_start: float = HEAD_START_SECONDS
    receives_from: str = ""
    """The queue from which the host of the endpoint receives, if it has one."""


def action_log_of(letters: DeadLetters, environment: Environment = LIVE) -> ActionLog:
    """Return the stored actions of dead letters, or a log in memory where these are not in a SQL database."""
    return letters.actions if isinstance(letters, LetterIndex) else UnstoredActionLog(environment.clock)


def new_action(
    by: Operator, kind: ActionKind, endpoint: str = "", scope: ActionScope = EVERY_LETTER, *, reason: str = ""
) -> Action:
    """Return an action that is not stored yet. Keys in its scope may be shortened until it is confirmed."""
    return Action(
        actor=by.name,
        method=by.method,
        action=kind,
        endpoint=endpoint,
        scope=replace(scope, form=by.form),
        reason=reason,
    )


def filter_of(action: Action) -> Filter:
    """Return the filter of an action whose scope has no keys."""
    scope = action.scope
    return Filter(endpoint=action.endpoint, type=scope.type, reason=scope.reason, failure=scope.failure)


async def by_endpoint(letters: DeadLetters, action: Action) -> list[Action]:
    """Divide a new action by the endpoints of its letters. An action on one endpoint can be continued by its dashboard.

    Letters in a document store are not divided unless they are chosen by key: their actions are not stored. Raises SetupError
    for a key that names no letter, or more than one.
    """
    if action.scope.keys:
        keys: dict[str, list[str]] = {}
        for key in action.scope.keys:
            letter = await find(letters, key)
            keys.setdefault(letter.endpoint, []).append(letter.key)
        return [
            replace(action, endpoint=name, scope=replace(action.scope, keys=tuple(own))) for name, own in sorted(keys.items())
        ]
    if action.endpoint or not isinstance(letters, LetterIndex):
        return [action]
    own_actions = [replace(action, endpoint=name) for name in await letters.endpoints()]
    return [each for each in own_actions if await letters.count(filter_of(each))] or [action]


async def confirm(parts: ActionParts, action: Action) -> Action:
    """Store a new action on the letters that are selected now. Letters that come later are not part of it. Nothing is sent yet.

    Raises SetupError for a key that names no letter, or more than one; CommitFailed, OutcomeUnknown.
    """
    letters, scope = parts.letters, action.scope
    if not scope.keys and isinstance(letters, LetterIndex):
        total, last_position = await letters.extent(filter_of(action))
        return await begin(parts.log, replace(action, upto=last_position, total=total))
    if scope.keys:
        found = [(await find(letters, key)).key for key in scope.keys]
    else:
        found = [letter.key async for page in pages(letters, filter_of(action)) for letter in page]
    keys = tuple(dict.fromkeys(found))
    scope = ActionScope(keys=keys, rate=scope.rate, probe=scope.probe, form=scope.form)
    return await begin(parts.log, replace(action, scope=scope, total=len(keys)))


async def begin(log: ActionLog, action: Action) -> Action:
    """Store a new action durably, and log it. Raises CommitFailed, OutcomeUnknown."""
    stored = await log.begin(action)
    log_started(stored)
    return stored


async def end(log: ActionLog, action: Action, items: Sequence[ActionItem] = ()) -> Action:
    """Store what became of the last items, and that the action is done. Raises CommitFailed, OutcomeUnknown."""
    ended = replace(action, state=ActionState.DONE, lease=0)
    await log.settle(ended, items)
    log_ended(ended)
    return ended


async def store_view(log: ActionLog, by: Operator, letter: DeadLetter) -> None:
    """Store that a body is shown to an operator. Raises CommitFailed, OutcomeUnknown."""
    scope = ActionScope(keys=(letter.key,))
    opened = new_action(replace(by, form=""), ActionKind.OPEN, letter.endpoint, scope)  # a view confirms nothing
    log_ended(await log.begin(replace(opened, state=ActionState.DONE, total=1, done=1)))


async def confirmed_before(log: ActionLog, form: str) -> bool:
    """Return whether one of the last 100 actions was confirmed by this form. Raises CommitFailed, OutcomeUnknown."""
    return any(each.scope.form == form for each in await log.recent(limit=100))


async def store_refusal(log: ActionLog, refused: Action, *, total: int, why: str) -> None:
    """Store that an action on `total` letters was refused, and why. Raises CommitFailed, OutcomeUnknown."""
    log_refused(await log.begin(replace(refused, reason=why, state=ActionState.REFUSED, total=total, kept=total)))


async def refusal(
    parts: ActionParts, by: Operator, kind: ActionKind, *, letter: DeadLetter, why: str, detail: str = ""
) -> SetupError:
    """Store that an action was refused, and return the error to raise. Raises CommitFailed, OutcomeUnknown.

    `detail` may repeat parts of a body: it is in the error only.
    """
    refused = new_action(replace(by, form=""), kind, letter.endpoint, ActionScope(keys=(letter.key,)))
    await store_refusal(parts.log, refused, total=1, why=why)
    return SetupError(f"{why}: {detail}" if detail else why)


class SentLetters(NamedTuple):
    """What became of some letters whose messages were to be sent: the outcomes, with details, by the keys of the letters.

    `early` has the keys of messages that may be refused again, and why. `due` is when the last message is delivered, by the
    monotonic clock; 0 if none was sent.
    """

    outcomes: dict[str, tuple[ItemOutcome, str]]
    early: tuple[tuple[str, str], ...] = ()
    due: float = 0.0


async def send_back(
    parts: ActionParts,
    letters: Sequence[DeadLetter],
    *,
    anyway: bool = False,
    rate: float = 0,
    edited: Mapping[str, Message] = {},
) -> SentLetters:
    """Send the messages of letters, or those in `edited`, and delete the letters of those that the transport took.

    With a `rate`, this number of messages is delivered per second. With `anyway` also messages of which the store cannot
    decide whether they were handled: an operator has decided that they were not.

    A message that fails again at once becomes the same letter: removing that one would lose it. So it is sent with a head
    start, and its letter is removed only while that lasts. One that stays is harmless: its message is known.
    Raises SetupError without a transport, CommitFailed, OutcomeUnknown.
    """
    if parts.transport is None:
        raise SetupError("a retry needs the transport of the endpoint")
    is_early = not anyway and any(letter.reason == Undecidable.TOO_NEW.value for letter in letters)
    buckets = await parts.bucket_clock() if is_early and parts.bucket_clock is not None else None
    outcomes: dict[str, tuple[ItemOutcome, str]] = {}
    able: list[tuple[DeadLetter, Message]] = []
    for letter in letters:
        message = edited.get(letter.key, letter.message)
        why = _why_kept(letter, buckets, anyway=anyway)
        if message is None or why:
            outcomes[letter.key] = (ItemOutcome.KEPT, why or "it has no identity. Let its sender send it again with an id")
        else:
            able.append((letter, message))
    early = [] if anyway else [(letter.key, words) for letter, _ in able if (words := _why_refused_again(letter, buckets))]
    began, first = monotonic(), parts.environment.clock.now() + int(parts.head_start * 1000)
    apart = 1000 / rate if rate else 0.0
    sends = [
        _copy(letter, message, due=first + int(number * apart), anyway=anyway) for number, (letter, message) in enumerate(able)
    ]
    try:
        answers: Sequence[Answer] = await parts.transport.send(sends) if sends else ()
    except RetryableError:
        answers = [Answer.UNKNOWN] * len(sends)
    taken = [letter.key for (letter, _), answer in zip(able, answers, strict=True) if answer is Answer.TAKEN]
    in_time = monotonic() - began < parts.head_start / 2
    if taken and in_time:
        await parts.letters.remove(taken)
    for (letter, _), answer in zip(able, answers, strict=True):
        is_taken = answer is Answer.TAKEN
        detail = ("" if in_time else TOO_SLOW) if is_taken else _why_not_taken(answer, letter, parts)
        outcomes[letter.key] = (ItemOutcome.WAITING if is_taken else ItemOutcome.KEPT, detail)
    lasts = parts.head_start + (len(able) / rate if rate else 0)
    return SentLetters(outcomes, tuple(early), began + lasts if taken else 0.0)


def _copy(letter: DeadLetter, message: Message, *, due: int, anyway: bool) -> Send:
    """Return the copy that is sent: marked as ours, so that its attributes name it, and alone in its unit.

    It begins a new chain of messages, so that a chain that was too long goes on, and it does not expire. What was undecidable
    for its instant is marked, and claimed without it: it is handled, unless a retry has handled it before.
    """
    kept = tuple(each for each in message.extensions if each[0] not in (HOPS, EXPIRES))
    if anyway and any(letter.reason == each.value for each in (Undecidable.TOO_OLD, Undecidable.TOO_NEW)):
        kept = (*(each for each in kept if each[0] != ANYWAY), (ANYWAY, "1"))
    return Send(message=replace(message, extensions=kept), to=letter.endpoint, due=due, history=letter.history, alone=True)


def _why_kept(letter: DeadLetter, buckets: BucketClock | None, *, anyway: bool) -> str:
    if isinstance(letter, UnreadableLetter):
        return "this version cannot read it. Export it, or retry it with the version that stored it"
    if letter.reason == Undecidable.TOO_OLD.value and not anyway:
        return "it is behind the horizon and would be rejected again. If you are sure that it was never handled, use --anyway"
    instant = _instant_ahead(letter)
    opens = buckets.bucketing.opens(instant) if buckets is not None and instant and not anyway else 0
    if buckets is not None and opens > buckets.now:
        return (
            f"its time, {moment(instant)}, is in the future; retry it after {moment(opens)} by the clock of its store, correct "
            "that clock, or use --anyway"
        )
    return ""


def _why_refused_again(letter: DeadLetter, buckets: BucketClock | None) -> str:
    """Return why a message from the future may be refused again, where the end of that is unknown."""
    instant = _instant_ahead(letter)
    return (
        f"it becomes a dead letter again if its time, {moment(instant)}, is still in the future for its store"
        if instant and not buckets
        else ""
    )


def _instant_ahead(letter: DeadLetter) -> int:
    """Return the instant of a message that was refused as one from the future; 0 for others."""
    return letter.message.instant if letter.message and letter.reason == Undecidable.TOO_NEW.value else 0


def _why_not_taken(answer: Answer, letter: DeadLetter, parts: ActionParts) -> str:
    if answer is Answer.REFUSED and parts.receives_from and letter.endpoint == parts.endpoint:
        return (
            f"{parts.receives_from}, from which the host of {letter.endpoint!r} receives, does not exist: create it, then retry"
        )
    if answer is Answer.REFUSED and parts.transport is not None and not parts.transport.traits.has_queues:
        return "its transport has no queues: export it, and send it to where the host receives from"
    if answer is Answer.REFUSED:
        return f"endpoint {letter.endpoint!r} has no queue: run `onceonly topology create module:endpoint`, then retry"
    return "the broker did not confirm it. Retry it again, which is safe because the id stays the same"


def item_of(action: int, number: int, letter: DeadLetter, *, now: int, whole: bool) -> ActionItem:
    """Return the planned item of a letter. Unless it is stored whole, its bodies and headers are left out."""
    message = letter.message
    slim = replace(
        letter, headers=(), body=b"", history=(), message=replace(message, body=b"", headers=()) if message else None
    )
    fingerprint = message.fingerprint if message else b""
    return ActionItem(
        action=action,
        number=number,
        letter=letter.key,
        identity=claim_key(letter.endpoint, message.identity) if message else b"",
        before=fingerprint,
        after=fingerprint,
        stored=encode_letter(letter if whole else slim),
        stored_until=now + STORED_MS,
        at=now,
    )


async def withdraw(parts: ActionParts, letters: Sequence[DeadLetter]) -> frozenset[str]:
    """Remove the live tokens of letters that are given up for good. Return the keys of these letters.

    A token that is not live was used by an earlier body, and must not come back with a restored letter. Finish-only letters
    need their tokens.
    """
    if parts.tokens is None or parts.know is None:
        return frozenset()
    able = [
        (letter, letter.message) for letter in letters if letter.message and letter.message.token and not letter.finish_only
    ]
    known = await parts.know([message for _, message in able]) if able else ()
    live = [(letter, message) for (letter, message), each in zip(able, known, strict=True) if each.claim is ClaimState.NO_CLAIM]
    if live:
        await parts.tokens.remove([Token(message.token, letter.endpoint) for letter, message in live])
    return frozenset(letter.key for letter, _ in live)


async def read_outcomes(parts: ActionParts, action: Action, *, after: int = 0, limit: int = 100) -> tuple[ActionItem, ...]:
    """Read what became of the messages that an action sent, from claims, tokens or marks, and store it.

    Raises CommitFailed, OutcomeUnknown.
    """
    items = await parts.log.items(action.position, after=after, limit=limit)
    asked = [item for item in items if item.outcome is ItemOutcome.WAITING and item.stored]
    waiting = [(item, letter) for item in asked if (letter := stored_letter(item, "its outcome is unknown")) is not None]
    unreadable = {item.number for item in asked} - {item.number for item, _ in waiting}
    messages = [letter.message for _, letter in waiting if letter.message and letter.endpoint == parts.endpoint]
    known = await parts.know(messages) if parts.know is not None and messages else ()
    by_identity = {message.identity: each for message, each in zip(messages, known, strict=False)}
    changed = [replace(item, outcome=ItemOutcome.UNKNOWN) for item in asked if item.number in unreadable]
    for item, letter in waiting:
        knowledge = by_identity.get(letter.message.identity) if letter.message and letter.endpoint == parts.endpoint else None
        outcome = await _outcome(parts, item, letter, knowledge)
        if outcome is not ItemOutcome.WAITING:
            changed.append(replace(item, outcome=outcome))
    await parts.log.update(changed)
    new = {item.number: item for item in changed}
    return tuple(new.get(item.number, item) for item in items)


def stored_letter(item: ActionItem, outcome: str) -> DeadLetter | None:
    """Return the letter that an item has. None for one that cannot be read, which is logged with what becomes of it."""
    return decode_or_report(lambda: decode_letter(item.stored), "letter of an action", f"{item.action}/{item.number}", outcome)


async def _outcome(parts: ActionParts, item: ActionItem, letter: DeadLetter, known: Knowledge | None) -> ItemOutcome:
    if known is not None and known.claim is ClaimState.HANDLED:
        is_other = bool(known.fingerprint and item.after and known.fingerprint != item.after)
        return ItemOutcome.FAILED_AGAIN if is_other else ItemOutcome.HANDLED
    again = await _letter_again(parts, item, letter)
    if again:
        return ItemOutcome.FAILED_AGAIN
    return ItemOutcome.WAITING if known is not None and known.claim is ClaimState.NO_CLAIM else ItemOutcome.UNKNOWN


async def _letter_again(parts: ActionParts, item: ActionItem, letter: DeadLetter) -> bool:
    if isinstance(parts.letters, LetterIndex) and letter.message:
        found = await parts.letters.of_message(letter.endpoint, letter.message.identity)
        return any(each.at > letter.at and each.message and each.message.fingerprint == item.after for each in found)
    again = await parts.letters.get(item.letter)
    return again is not None and again.at > letter.at
