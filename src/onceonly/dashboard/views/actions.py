"""Actions that were confirmed: who did what, their progress, and how they are stopped and undone."""

import logging
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from onceonly.dashboard.access import DELETE, RETRY
from onceonly.dashboard.acting import open_parts
from onceonly.dashboard.asking import Ask
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.views.confirming import MOST_REASON, operator_of, to_action, use_form
from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action, ActionItem, ActionKind, ActionState
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.operations.actions import read_outcomes
from onceonly.operations.editing import restore

_log = EventLogger(logging.getLogger("onceonly.audit"))

MOST_SHOWN = 100
EVERY_SECONDS = 10
RUNNING_SECONDS = 2


async def actions(ask: Ask) -> Page:
    """List the newest actions of each place with dead letters."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    seen: set[str] = set()
    for watched in ask.dashboard.watched.values():
        place = str(watched.settings.places.dead_letters)
        if place in seen:
            continue
        seen.add(place)
        try:
            async with watched.open_letters() as letters:
                found = await watched.log_of(letters).recent(limit=MOST_SHOWN)
        except OnceOnlyError as error:
            problems.append(f"{watched.name}: {error}")
            continue
        own = [each for each in found if not each.endpoint or each.endpoint in ask.dashboard.watched]
        rows += [_row(each, each.endpoint or watched.name) for each in own]
    rows.sort(key=lambda row: -int(row["at"]))
    return Page(
        template="actions.html",
        title="Actions",
        data={"actions": rows[:MOST_SHOWN], "problems": problems},
        every=RUNNING_SECONDS if any(row["state"] == ActionState.RUNNING for row in rows) else EVERY_SECONDS,
    )


def _row(action: Action, endpoint: str) -> dict[str, Any]:
    scope = action.scope
    return {
        "position": action.position,
        "at": action.at,
        "actor": action.actor,
        "method": action.method,
        "action": action.action,
        "endpoint": endpoint,
        "scope": f"{len(scope.keys)} by key" if scope.keys else f"group {scope.failure[:12]}" if scope.failure else "all",
        "type": scope.type,
        "reason": action.reason,
        "state": action.state,
        "total": action.total,
        "done": action.done,
        "kept": action.kept,
        "left": max(0, action.total - action.done - action.kept),
    }


async def action(ask: Ask) -> Page:
    """Show one action: its progress, and what became of its letters."""
    watched, position = ask.watched(), _position(ask)
    async with open_parts(watched, sends=False) as parts:
        found = await parts.log.get(position)
        if found is None or found.endpoint not in {"", watched.name}:
            raise Refused(HTTPStatus.NOT_FOUND, "This action does not exist.")
        items = await read_outcomes(parts, found, limit=MOST_SHOWN)
    restorable = found.action in {ActionKind.DELETE, ActionKind.EDIT} and any(item.stored for item in items)
    running = found.state is ActionState.RUNNING
    waiting = any(item.outcome.value == "waiting" for item in items)
    return Page(
        template="action.html",
        title=f"Action {position}",
        data={"action": _row(found, watched.name), "items": [_item(each) for each in items]},
        view={
            "restorable": restorable and ask.has(DELETE) and not ask.dashboard.access.read_only,
            "stoppable": running and ask.has(RETRY) and not ask.dashboard.access.read_only,
            "percent": round(100 * (found.done + found.kept) / found.total) if found.total else 100,
            "nonce": ask.dashboard.nonces.issue(),
        },
        every=RUNNING_SECONDS if running or waiting else 0,
    )


def _item(item: ActionItem) -> dict[str, Any]:
    return {"number": item.number, "letter": item.letter, "outcome": item.outcome, "detail": item.detail, "at": item.at}


def _position(ask: Ask) -> int:
    text = ask.params["position"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 - 64 bits
        raise Refused(HTTPStatus.NOT_FOUND, "This action does not exist.")
    return int(text)


async def stop(ask: Ask) -> Response:
    """Stop an action after its page."""
    watched, position = ask.watched(), _position(ask)
    async with watched.open_letters() as letters:
        await watched.log_of(letters).stop(position)
    _log.info("operator action stopped", extra={"endpoint": watched.name, "action": position, "actor": ask.user})
    return to_action(ask, watched, position)


async def restore_letters(ask: Ask) -> Response:
    """Store the letters again that an action deleted or replaced."""
    watched, position = ask.watched(), _position(ask)
    async with open_parts(watched) as parts:
        await use_form(ask, parts.log)
        found = await parts.log.get(position)
        if found is None or found.endpoint not in {"", watched.name}:
            raise Refused(HTTPStatus.NOT_FOUND, "This action does not exist.")
        try:
            stored = await restore(parts, operator_of(ask), position, reason=ask.sent("reason")[:MOST_REASON])
        except SetupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error)) from error
        ask.dashboard.auditor.ended(stored)
    return to_action(ask, watched, stored.position)
