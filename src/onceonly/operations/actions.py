"""Actions on dead letters: retry, edit and retry, send as new, delete, restore. Commands and web pages share them.

The row of an action is committed before its first effect. The items of a page are committed before the page is sent, and
settled afterwards. So a crash leaves no letter without an item: the next runner repeats the planned items. Repeating is safe,
because the claim decides whether a message is handled, and not this code.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly.opened import BucketClock
from onceonly.assembly.token_issuer import TokenIssuer
from onceonly.formats.records import decode_letter, encode_letter
from onceonly.formats.undecodable import UNDECODABLE, report_undecodable
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SchemaTooNew, SetupError
from onceonly.model.identity import claim_key
from onceonly.model.message import Message
from onceonly.model.token import Token
from onceonly.operations.audit import UnstoredActionLog, log_ended, log_refused, log_started
from onceonly.operations.letters import (
    HEAD_START_SECONDS,
    PAGE,
    TOO_SLOW,
    LetterSelection,
    WayBack,
    nobody_knows,
    pages,
    send_page,
)
from onceonly.ports.actions import ActionLog
from onceonly.ports.dead_letters import DeadLetters, Extent, Filter, LetterIndex
from onceonly.ports.lookup import ClaimState, Knowledge
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import LIVE, Environment, pause

LEASE_MS = 30_000
"""For how long a runner leads an action after its last page. Then another process may continue it."""
STORED_MS = 7 * 86_400_000
"""For how long a deleted or edited letter can be restored."""
PROBE = 3
"""Letters that a probe sends first."""
POLL_SECONDS = 0.5
PROBE_SECONDS = 120.0
"""How long a probe waits for its letters to be handled or to fail again."""
RESUMABLE = frozenset({ActionKind.RETRY, ActionKind.RETRY_ANYWAY, ActionKind.DELETE})
INTERRUPTED = "the process ended during the action"
GONE = "letter is gone"
WITHDRAWN = "token withdrawn"
FINISH_ONLY = "finish only"


class Operator(Struct, frozen=True):
    """Who acts, and how that is known: `basic`, `bearer`, `application`, `loopback` or `cli`; and the number of the form."""

    name: str
    method: str
    form: str = ""


class ActionParts(Struct, frozen=True, kw_only=True):
    """What actions work on. `transport` is needed to send, `tokens` where the endpoint uses tokens.

    `know` reads what `endpoint` knows about messages. Without it, and for other endpoints, the outcome of a retry is unknown.
    """

    letters: DeadLetters
    log: ActionLog
    endpoint: str = ""
    transport: Transport | None = None
    know: Callable[[Sequence[Message]], Awaitable[Sequence[Knowledge]]] | None = None
    tokens: TokenIssuer | None = None
    cut: Callable[[], Awaitable[BucketClock | None]] = nobody_knows
    environment: Environment = LIVE
    head_start: float = HEAD_START_SECONDS


def action_log_of(letters: DeadLetters, environment: Environment = LIVE) -> ActionLog:
    """Return the stored actions of dead letters, or a log in memory where these are not in a SQL database."""
    return letters.actions if isinstance(letters, LetterIndex) else UnstoredActionLog(environment.clock)


async def confirm(  # noqa: PLR0913 - one argument for each part of the confirmation, by name
    parts: ActionParts,
    by: Operator,
    kind: ActionKind,
    chosen: LetterSelection,
    *,
    reason: str = "",
    rate: float = 0,
    probe: int = 0,
) -> Action:
    """Store an action on the letters that are selected now. Letters that come later are not part of it. Nothing is sent yet.

    Raises SetupError if nothing is selected, CommitFailed, OutcomeUnknown.
    """
    keys, total, upto = await _extent(parts, chosen)
    own = chosen.filter
    scope = ActionScope(keys=keys, rate=rate, probe=probe, form=by.form)
    if not keys:
        scope = replace(scope, type=own.type, reason=own.reason, failure=own.failure)
    action = Action(
        actor=by.name, method=by.method, action=kind, endpoint=own.endpoint, scope=scope, upto=upto, reason=reason, total=total
    )
    stored = await parts.log.begin(action)
    log_started(stored)
    return stored


async def _extent(parts: ActionParts, chosen: LetterSelection) -> tuple[tuple[str, ...], int, int]:
    """Fix the scope: keys, or the number of letters and the position of the last one."""
    if not chosen.keys and isinstance(parts.letters, LetterIndex):
        total, last = await parts.letters.extent(chosen.filter)
        return (), total, last
    found = [letter.key async for page in pages(parts.letters, chosen) for letter in page]
    keys = tuple(dict.fromkeys(found))
    return keys, len(keys), 0


async def store_view(log: ActionLog, by: Operator, letter: DeadLetter) -> None:
    """Store that a body is shown to an operator. Raises CommitFailed, OutcomeUnknown."""
    opened = Action(
        actor=by.name,
        method=by.method,
        action=ActionKind.OPEN,
        endpoint=letter.endpoint,
        scope=ActionScope(keys=(letter.key,)),
        state=ActionState.DONE,
        total=1,
        done=1,
    )
    log_ended(await log.begin(opened))


async def store_export(log: ActionLog, by: Operator, chosen: LetterSelection, extent: Extent, *, reason: str) -> Action:
    """Store that letters are written to a file for an operator. Raises CommitFailed, OutcomeUnknown."""
    own = chosen.filter
    scope = ActionScope(keys=chosen.keys, form=by.form)
    if not chosen.keys:
        scope = replace(scope, type=own.type, reason=own.reason, failure=own.failure)
    stored = await log.begin(
        Action(
            actor=by.name,
            method=by.method,
            action=ActionKind.EXPORT,
            endpoint=own.endpoint,
            scope=scope,
            upto=extent.last,
            reason=reason,
            state=ActionState.DONE,
            total=extent.total,
            done=extent.total,
        )
    )
    log_ended(stored)
    return stored


async def confirmed_before(log: ActionLog, form: str) -> bool:
    """Return whether one of the last 100 actions was confirmed by this form. Raises CommitFailed, OutcomeUnknown."""
    return any(each.scope.form == form for each in await log.recent(limit=100))


async def store_refusal(  # noqa: PLR0913 - one argument for each part of the row, by name
    log: ActionLog, by: Operator, kind: ActionKind, *, endpoint: str, scope: ActionScope, total: int, why: str
) -> None:
    """Store that an action on `total` letters was refused, and why. Raises CommitFailed, OutcomeUnknown."""
    refused = Action(
        actor=by.name,
        method=by.method,
        action=kind,
        endpoint=endpoint,
        scope=scope,
        reason=why,
        state=ActionState.REFUSED,
        total=total,
        kept=total,
    )
    log_refused(await log.begin(refused))


async def refuse(
    parts: ActionParts, by: Operator, kind: ActionKind, *, letter: DeadLetter, why: str, detail: str = ""
) -> SetupError:
    """Store that an action was refused, and return the error to raise. Raises CommitFailed, OutcomeUnknown.

    `detail` may repeat parts of a body: it is in the error only.
    """
    scope = ActionScope(keys=(letter.key,))
    await store_refusal(parts.log, by, kind, endpoint=letter.endpoint, scope=scope, total=1, why=why)
    return SetupError(f"{why}: {detail}" if detail else why)


class ActionRunner:
    """Runs actions in one process. Several processes may run; the lease of an action elects one of them."""

    def __init__(self, parts: ActionParts, *, name: str = "", tick: Callable[[int], object] = int) -> None:
        """`tick` is called with the number of letters of each page that is done."""
        self._parts = parts
        self._name = name or uuid4().hex
        self._tick = tick
        self.kept: list[tuple[str, str]] = []
        self.finish_only = 0
        self.early: list[tuple[str, str]] = []
        self.taken: list[str] = []
        self.due = 0.0

    async def run(self, position: int, stop: asyncio.Event | None = None) -> Action:
        """Run an action to its end, or until it is stopped. `stop` ends this runner after a page; another may continue.

        If another process leads the action, or it has ended, return it as it is. Raises SetupError if the action does not
        exist, CommitFailed, OutcomeUnknown.
        """
        action = await self._parts.log.lead(position, self._name, now=self._now(), until=self._now() + LEASE_MS)
        if action is None:
            return await self._get(position)
        if action.action not in RESUMABLE:
            return await self._give_up(action)
        action = await self._recover(action)
        began, sent = self._now(), 0
        while self._leads(action) and not (stop is not None and stop.is_set()):
            if self._probes(action) and not await self._probe_is_handled(action):
                action = await self._end(action, ActionState.STOPPED, "the probe was not handled")
                break
            page = await self._page(action, _page_size(action))
            if not page:
                action = await self._end(action, ActionState.DONE)
                break
            action = await self._perform(action, page)
            sent += len(page)
            self._tick(len(page))
            if action.scope.rate:  # no page is sent before the one before it is delivered
                wait = began + 1000 * sent / action.scope.rate - self._now()
                await pause(wait / 1000, self._parts.environment.timer, stop or asyncio.Event())
        return action

    async def _give_up(self, action: Action) -> Action:
        """End an action on one letter whose process ended. Whether the message was sent, its claim tells."""
        planned = await self._parts.log.items(action.position, outcome=ItemOutcome.PLANNED)
        waiting = [replace(item, outcome=ItemOutcome.WAITING, detail=INTERRUPTED) for item in planned]
        ended = replace(action, state=ActionState.STOPPED, lease=0)
        await self._parts.log.settle(ended, waiting)
        log_ended(ended)
        return ended

    async def _page(self, action: Action, limit: int) -> list[tuple[int, str, DeadLetter | None]]:
        """Return the next letters with their numbers and keys. None stands for a letter that is gone."""
        scope, letters = action.scope, self._parts.letters
        if scope.keys:
            keys = scope.keys[action.reached : action.reached + limit]
            numbers = range(action.reached + 1, action.reached + len(keys) + 1)
            return [(number, key, await letters.get(key)) for number, key in zip(numbers, keys, strict=True)]
        if not isinstance(letters, LetterIndex):
            return []
        chosen = Filter(endpoint=action.endpoint, type=scope.type, reason=scope.reason, failure=scope.failure)
        placed = await letters.placed(chosen, after=action.reached, upto=action.upto, limit=limit)
        return [(each.position, each.letter.key, each.letter) for each in placed]

    async def _perform(self, action: Action, page: Sequence[tuple[int, str, DeadLetter | None]]) -> Action:
        items = [self._item(action, number, key, letter) for number, key, letter in page]
        action = replace(action, reached=page[-1][0], lease=self._now() + LEASE_MS)
        if not await self._parts.log.plan(action, items):
            return await self._get(action.position)
        # Crash here: 1 items planned, nothing sent, 2 another process leads, 3 it repeats the planned items.
        return await self._effect(action, items, {key: letter for _, key, letter in page if letter is not None})

    async def _effect(self, action: Action, items: Sequence[ActionItem], letters: dict[str, DeadLetter]) -> Action:
        # Crash inside: 1 sent, or letters deleted, 2 items stay planned, 3 repeating sends the same ids, or finds no letter.
        outcomes = await self._outcomes(action, items, letters)
        settled = [
            replace(item, outcome=outcome, detail=detail, at=self._now())
            for item, (outcome, detail) in zip(items, outcomes, strict=True)
        ]
        kept = sum(item.outcome is ItemOutcome.KEPT for item in settled)
        action = replace(
            action,
            done=action.done + len(settled) - kept,
            kept=action.kept + kept,
            lease=self._now() + LEASE_MS,
        )
        self.kept.extend((item.letter, item.detail) for item in settled if item.outcome is ItemOutcome.KEPT)
        return action if await self._parts.log.settle(action, settled) else await self._get(action.position)

    async def _outcomes(
        self, action: Action, items: Sequence[ActionItem], letters: dict[str, DeadLetter]
    ) -> list[tuple[ItemOutcome, str]]:
        there = [letters[item.letter] for item in items if item.letter in letters]
        if action.action is ActionKind.DELETE:
            found = await self._delete(there)
        else:
            found = await self._send(action, there)
        return [found.get(item.letter, (ItemOutcome.KEPT, GONE)) for item in items]

    async def _send(self, action: Action, there: Sequence[DeadLetter]) -> dict[str, tuple[ItemOutcome, str]]:
        parts = self._parts
        if parts.transport is None:
            raise SetupError("a retry needs the transport of the endpoint")
        way = WayBack(
            transport=parts.transport,
            clock=parts.environment.clock,
            head_start=parts.head_start,
            anyway=action.action is ActionKind.RETRY_ANYWAY,
            rate=action.scope.rate,
            cut=parts.cut,
        )
        sent = await send_page(there, parts.letters, way)
        self.early.extend(sent.early)
        self.taken.extend(letter.key for letter in sent.taken)
        self.due = sent.due or self.due
        detail = "" if sent.deleted else TOO_SLOW
        found = {letter.key: (ItemOutcome.WAITING, detail) for letter in sent.taken}
        return found | {key: (ItemOutcome.KEPT, why) for key, why in sent.kept}

    async def _delete(self, there: Sequence[DeadLetter]) -> dict[str, tuple[ItemOutcome, str]]:
        withdrawn = await withdraw(self._parts, there)
        await self._parts.letters.remove([letter.key for letter in there])
        self.finish_only += sum(letter.finish_only for letter in there)
        return {
            letter.key: (
                ItemOutcome.DELETED,
                WITHDRAWN if letter.key in withdrawn else "finish only" if letter.finish_only else "",
            )
            for letter in there
        }

    async def _recover(self, action: Action) -> Action:
        """Repeat what a runner planned that did not settle it."""
        while self._leads(action):
            planned = await self._parts.log.items(action.position, outcome=ItemOutcome.PLANNED)
            if not planned:
                return action
            found = {item.letter: await self._parts.letters.get(item.letter) for item in planned}
            letters = {key: letter for key, letter in found.items() if letter is not None}
            sent = [item for item in planned if item.letter not in letters]
            again = [item for item in planned if item.letter in letters]
            done = ItemOutcome.DELETED if action.action is ActionKind.DELETE else ItemOutcome.WAITING
            was_there = [item for item in sent if item.stored]  # the runner before this one deleted the letter
            settled = [replace(item, outcome=done, detail="after a crash", at=self._now()) for item in was_there]
            settled += [
                replace(item, outcome=ItemOutcome.KEPT, detail=GONE, at=self._now()) for item in sent if not item.stored
            ]
            action = replace(
                action,
                done=action.done + len(was_there),
                kept=action.kept + len(sent) - len(was_there),
                lease=self._now() + LEASE_MS,
            )
            if not await self._parts.log.settle(action, settled):
                return await self._get(action.position)
            if again:
                action = await self._effect(action, again, letters)
        return action

    def _leads(self, action: Action) -> bool:
        return action.state is ActionState.RUNNING and action.runner == self._name

    def _probes(self, action: Action) -> bool:
        return 0 < action.scope.probe == action.done + action.kept < action.total

    async def _probe_is_handled(self, action: Action) -> bool:
        """Wait until each letter of the probe is handled or failed again."""
        timer, left = self._parts.environment.timer, PROBE_SECONDS
        while left > 0:
            items = await read_outcomes(self._parts, action)
            if any(item.outcome in (ItemOutcome.FAILED_AGAIN, ItemOutcome.UNKNOWN) for item in items):
                return False
            if all(item.outcome in (ItemOutcome.HANDLED, ItemOutcome.KEPT) for item in items):
                return any(item.outcome is ItemOutcome.HANDLED for item in items)
            leading = await self._parts.log.lead(action.position, self._name, now=self._now(), until=self._now() + LEASE_MS)
            if leading is None:  # an operator stopped it
                return False
            await timer.sleep(POLL_SECONDS)
            left -= POLL_SECONDS
        return False

    async def _end(self, action: Action, state: ActionState, why: str = "") -> Action:
        gone = max(0, action.total - action.done - action.kept) if state is ActionState.DONE else 0
        ended = replace(action, state=state, kept=action.kept + gone, lease=0, reason=action.reason or why)
        stored = ended if await self._parts.log.settle(ended, ()) else await self._get(action.position)
        log_ended(stored)
        return stored

    def _item(self, action: Action, number: int, key: str, letter: DeadLetter | None) -> ActionItem:
        if letter is None:
            return ActionItem(action=action.position, number=number, letter=key, at=self._now())
        is_whole = action.action is ActionKind.DELETE
        return item_of(action.position, number, letter, now=self._now(), whole=is_whole)

    async def _get(self, position: int) -> Action:
        found = await self._parts.log.get(position)
        if found is None:
            raise SetupError(f"action {position} does not exist")
        return found

    def _now(self) -> int:
        return self._parts.environment.clock.now()


def _page_size(action: Action) -> int:
    """Return how many letters come next: those of the probe, and not more than are sent in 10 seconds."""
    scope, probe = action.scope, action.scope.probe - action.done - action.kept
    most = min(PAGE, max(1, int(scope.rate * 10))) if scope.rate else PAGE
    return min(most, probe) if probe > 0 else most


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
    try:
        return decode_letter(item.stored)
    except (SchemaTooNew, *UNDECODABLE) as error:
        report_undecodable("letter of an action", f"{item.action}/{item.number}", error, outcome)
        return None


async def _outcome(parts: ActionParts, item: ActionItem, letter: DeadLetter, known: Knowledge | None) -> ItemOutcome:
    if known is not None and known.claim is ClaimState.HANDLED:
        is_other = bool(known.fingerprint and item.after and known.fingerprint != item.after)
        return ItemOutcome.FAILED_AGAIN if is_other else ItemOutcome.HANDLED
    again = await _letter_again(parts, item, letter)
    if again:
        return ItemOutcome.FAILED_AGAIN
    return ItemOutcome.WAITING if known is not None and known.claim is ClaimState.NO_CLAIM else ItemOutcome.UNKNOWN


async def _letter_again(parts: ActionParts, item: ActionItem, letter: DeadLetter) -> bool:
    """Return whether the message became a dead letter after it was sent."""
    if isinstance(parts.letters, LetterIndex) and letter.message:
        found = await parts.letters.of_message(letter.endpoint, letter.message.identity)
        return any(each.at > letter.at and each.message and each.message.fingerprint == item.after for each in found)
    again = await parts.letters.get(item.letter)
    return again is not None and again.at > letter.at
