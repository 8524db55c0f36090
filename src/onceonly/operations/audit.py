"""The audit trail outside of a database: lines of the log `onceonly.audit`, and the actions of this process in memory.

Dead letters that are not in a SQL database have no table of actions: there, actions are not resumed after a crash.
"""

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action, ActionItem, ActionState, ItemOutcome
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.environment import Clock

_log = EventLogger(logging.getLogger("onceonly.audit"))


def log_started(action: Action) -> None:
    """Log that an action was stored and begins."""
    _log.info("operator action started", extra=_fields(action))


def log_ended(action: Action) -> None:
    _log.info("operator action ended", extra=_fields(action))


def log_refused(action: Action) -> None:
    _log.info("operator action refused", extra=_fields(action) | {"reason": action.reason})


def _fields(action: Action) -> dict[str, object]:
    return {
        "endpoint": action.endpoint,
        "action": action.position,
        "kind": action.action.value,
        "actor": action.actor,
        "method": action.method,
        "state": action.state.value,
        "total": action.total,
        "done": action.done,
        "kept": action.kept,
    }


class UnstoredActionLog:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._actions: dict[int, Action] = {}
        self._items: dict[tuple[int, int], ActionItem] = {}

    async def begin(self, action: Action) -> Action:
        """Store a new action; see the port."""
        position = len(self._actions) + 1
        self._actions[position] = replace(action, position=position, at=action.at or self._clock.now())
        return self._actions[position]

    async def get(self, position: int) -> Action | None:
        return self._actions.get(position)

    async def recent(self, *, before: int = 0, limit: int = 100) -> tuple[Action, ...]:
        newest = [each for each in reversed(self._actions.values()) if not before or each.position < before]
        return tuple(newest[:limit])

    async def abandoned(self, now: int, limit: int = 100) -> tuple[Action, ...]:
        """List none: an action ends with its process."""
        return ()

    async def lead(self, position: int, runner: str, *, now: int, until: int) -> Action | None:
        found = self._actions.get(position)
        if found is None or found.state is not ActionState.RUNNING or (found.lease >= now and found.runner not in ("", runner)):
            return None
        self._actions[position] = replace(found, runner=runner, lease=until)
        return self._actions[position]

    async def plan(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Store items and progress; see the port."""
        return await self.settle(action, items)

    async def settle(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Store items and progress; see the port."""
        stored = self._actions[action.position]
        if stored.state is not ActionState.RUNNING or stored.runner != action.runner:
            return False
        self._actions[action.position] = action
        await self.update(items)
        return True

    async def update(self, items: Sequence[ActionItem]) -> None:
        self._items |= {(item.action, item.number): item for item in items}

    async def stop(self, position: int) -> bool:
        found = self._actions.get(position)
        if found is None or found.state is not ActionState.RUNNING:
            return False
        self._actions[position] = replace(found, state=ActionState.STOPPED, lease=0)
        return True

    async def items(
        self, action: int, *, after: int = 0, outcome: ItemOutcome | None = None, limit: int = 100
    ) -> tuple[ActionItem, ...]:
        own = [item for (of, number), item in sorted(self._items.items()) if of == action and number > after]
        return tuple(item for item in own if outcome is None or item.outcome is outcome)[:limit]

    async def of_message(self, endpoint: str, identity: Identity, limit: int = 100) -> tuple[tuple[Action, ActionItem], ...]:
        """List what was done with one message; see the port."""
        key = claim_key(endpoint, identity)
        own = [item for _, item in sorted(self._items.items(), reverse=True) if item.identity == key]
        return tuple((self._actions[item.action], item) for item in own[:limit])

    async def expire(self, now: int, *, actions_before: int, limit: int = 1000) -> int:
        """Delete nothing: all of it ends with the process."""
        return 0
