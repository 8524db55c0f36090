"""Runs confirmed actions, page by page. An action that another process has left is continued."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

from msgspec.structs import replace

from onceonly.model.action import Action, ActionItem, ActionKind, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.operations.actions import WITHDRAWN, ActionParts, filter_of, item_of, read_outcomes, send_back, withdraw
from onceonly.operations.audit import log_ended
from onceonly.operations.letters import PAGE
from onceonly.ports.dead_letters import LetterIndex
from onceonly.runtime.environment import pause

LEASE_MS = 30_000
"""For how long a runner leads an action after its last page. Then another process may continue it."""
POLL_SECONDS = 0.5
PROBE_SECONDS = 120.0
"""How long a probe waits for its letters to be handled or to fail again."""
RESUMABLE = frozenset({ActionKind.RETRY, ActionKind.RETRY_ANYWAY, ActionKind.DELETE})
INTERRUPTED = "the process ended during the action"
GONE = "letter is gone"
FINISH_ONLY = "finish only"


class ActionRunner:
    """Runs actions in one process. Several processes may run; the lease of an action elects one of them."""

    def __init__(self, parts: ActionParts, *, name: str = "", tick: Callable[[int], object] = int) -> None:
        """`tick` is called with the number of letters of each page that is done.

        Its results: how many messages were `sent`, when the last one is `due` (monotonic), how many letters that were deleted
        were `finish_only`, and the keys with reasons of letters that were `kept`, or may be refused again (`early`).
        """
        self.parts = parts
        self._name = name or uuid4().hex
        self._tick = tick
        self.kept: list[tuple[str, str]] = []
        self.finish_only = 0
        self.early: list[tuple[str, str]] = []
        self.sent = 0
        self.due = 0.0

    async def run(self, position: int, stop: asyncio.Event | None = None) -> Action:
        """Run an action to its end, or until it is stopped. `stop` ends this runner after a page; another may continue.

        If another process leads the action, or it has ended, return it as it is. Raises SetupError if the action does not
        exist, CommitFailed, OutcomeUnknown.
        """
        action = await self.parts.log.lead(position, self._name, now=self._now(), until=self._now() + LEASE_MS)
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
            items, letters = await self._next_page(action)
            if not items:
                action = await self._end(action, ActionState.DONE)
                break
            action = await self._perform(action, items, letters)
            sent += len(items)
            self._tick(len(items))
            if action.scope.rate:  # no page is sent before the one before it is delivered
                wait = began + 1000 * sent / action.scope.rate - self._now()
                await pause(wait / 1000, self.parts.environment.timer, stop or asyncio.Event())
        return action

    async def _give_up(self, action: Action) -> Action:
        """End an action on one letter whose process ended. Whether the message was sent, its claim tells."""
        planned = await self.parts.log.items(action.position, outcome=ItemOutcome.PLANNED)
        waiting = [replace(item, outcome=ItemOutcome.WAITING, detail=INTERRUPTED) for item in planned]
        ended = replace(action, state=ActionState.STOPPED, lease=0)
        await self.parts.log.settle(ended, waiting)
        log_ended(ended)
        return ended

    async def _next_page(self, action: Action) -> tuple[list[ActionItem], dict[str, DeadLetter]]:
        """Return the items of the next letters, and the letters that still exist, by key."""
        scope, letters, limit = action.scope, self.parts.letters, _page_size(action)
        if scope.keys:
            keys = scope.keys[action.reached : action.reached + limit]
            found = [(number, key, await letters.get(key)) for number, key in enumerate(keys, action.reached + 1)]
        elif isinstance(letters, LetterIndex):
            placed = await letters.placed(filter_of(action), after=action.reached, upto=action.upto, limit=limit)
            found = [(each.position, each.letter.key, each.letter) for each in placed]
        else:
            found = []
        is_whole = action.action is ActionKind.DELETE
        items = [
            item_of(action.position, number, letter, now=self._now(), whole=is_whole)
            if letter is not None
            else ActionItem(action=action.position, number=number, letter=key, at=self._now())
            for number, key, letter in found
        ]
        return items, {key: letter for _, key, letter in found if letter is not None}

    async def _perform(self, action: Action, items: Sequence[ActionItem], letters: dict[str, DeadLetter]) -> Action:
        action = replace(action, reached=items[-1].number, lease=self._now() + LEASE_MS)
        if not await self.parts.log.plan(action, items):
            return await self._get(action.position)
        # Crash here: 1 items planned, nothing sent, 2 another process leads, 3 it repeats the planned items.
        return await self._effect(action, items, letters)

    async def _effect(self, action: Action, items: Sequence[ActionItem], letters: dict[str, DeadLetter]) -> Action:
        # Crash inside: 1 sent, or letters deleted, 2 items stay planned, 3 repeating sends the same ids, or finds no letter.
        existing = [letters[item.letter] for item in items if item.letter in letters]
        found = await (self._delete(existing) if action.action is ActionKind.DELETE else self._send(action, existing))
        outcomes = [found.get(item.letter, (ItemOutcome.KEPT, GONE)) for item in items]
        settled = [
            replace(item, outcome=outcome, detail=detail, at=self._now())
            for item, (outcome, detail) in zip(items, outcomes, strict=True)
        ]
        self.kept.extend((item.letter, item.detail) for item in settled if item.outcome is ItemOutcome.KEPT)
        return await self._settle(action, settled)

    async def _settle(self, action: Action, items: Sequence[ActionItem]) -> Action:
        """Store what became of items. If another process leads the action by now, return it as it is."""
        kept = sum(item.outcome is ItemOutcome.KEPT for item in items)
        action = replace(action, done=action.done + len(items) - kept, kept=action.kept + kept, lease=self._now() + LEASE_MS)
        return action if await self.parts.log.settle(action, items) else await self._get(action.position)

    async def _send(self, action: Action, letters: Sequence[DeadLetter]) -> dict[str, tuple[ItemOutcome, str]]:
        is_anyway = action.action is ActionKind.RETRY_ANYWAY
        sent = await send_back(self.parts, letters, anyway=is_anyway, rate=action.scope.rate)
        self.early.extend(sent.early)
        self.sent += sum(outcome is ItemOutcome.WAITING for outcome, _ in sent.outcomes.values())
        self.due = sent.due or self.due
        return sent.outcomes

    async def _delete(self, letters: Sequence[DeadLetter]) -> dict[str, tuple[ItemOutcome, str]]:
        withdrawn = await withdraw(self.parts, letters)
        await self.parts.letters.remove([letter.key for letter in letters])
        self.finish_only += sum(letter.finish_only for letter in letters)
        return {
            letter.key: (
                ItemOutcome.DELETED,
                WITHDRAWN if letter.key in withdrawn else FINISH_ONLY if letter.finish_only else "",
            )
            for letter in letters
        }

    async def _recover(self, action: Action) -> Action:
        """Repeat what a runner planned that did not settle it."""
        while self._leads(action):
            planned = await self.parts.log.items(action.position, outcome=ItemOutcome.PLANNED)
            if not planned:
                return action
            found = {item.letter: await self.parts.letters.get(item.letter) for item in planned}
            letters = {key: letter for key, letter in found.items() if letter is not None}
            again = [item for item in planned if item.letter in letters]
            done = ItemOutcome.DELETED if action.action is ActionKind.DELETE else ItemOutcome.WAITING
            settled = [
                replace(item, outcome=done, detail="after a crash", at=self._now())
                if item.stored  # the runner before this one deleted the letter
                else replace(item, outcome=ItemOutcome.KEPT, detail=GONE, at=self._now())
                for item in planned
                if item.letter not in letters
            ]
            action = await self._settle(action, settled)
            if again and self._leads(action):
                action = await self._effect(action, again, letters)
        return action

    def _leads(self, action: Action) -> bool:
        return action.state is ActionState.RUNNING and action.runner == self._name

    def _probes(self, action: Action) -> bool:
        return 0 < action.scope.probe == action.done + action.kept < action.total

    async def _probe_is_handled(self, action: Action) -> bool:
        """Wait until each letter of the probe is handled or failed again."""
        timer, left = self.parts.environment.timer, PROBE_SECONDS
        while left > 0:
            items = await read_outcomes(self.parts, action)
            if any(item.outcome in (ItemOutcome.FAILED_AGAIN, ItemOutcome.UNKNOWN) for item in items):
                return False
            if all(item.outcome in (ItemOutcome.HANDLED, ItemOutcome.KEPT) for item in items):
                return any(item.outcome is ItemOutcome.HANDLED for item in items)
            leading = await self.parts.log.lead(action.position, self._name, now=self._now(), until=self._now() + LEASE_MS)
            if leading is None:  # an operator stopped it
                return False
            await timer.sleep(POLL_SECONDS)
            left -= POLL_SECONDS
        return False

    async def _end(self, action: Action, state: ActionState, why: str = "") -> Action:
        gone = max(0, action.total - action.done - action.kept) if state is ActionState.DONE else 0
        ended = replace(action, state=state, kept=action.kept + gone, lease=0, reason=action.reason or why)
        stored = ended if await self.parts.log.settle(ended, ()) else await self._get(action.position)
        log_ended(stored)
        return stored

    async def _get(self, position: int) -> Action:
        found = await self.parts.log.get(position)
        if found is None:
            raise SetupError(f"action {position} does not exist")
        return found

    def _now(self) -> int:
        return self.parts.environment.clock.now()


def _page_size(action: Action) -> int:
    """Return how many letters come next: those of the probe, and not more than are sent in 10 seconds."""
    scope, probe = action.scope, action.scope.probe - action.done - action.kept
    most = min(PAGE, max(1, int(scope.rate * 10))) if scope.rate else PAGE
    return min(most, probe) if probe > 0 else most
