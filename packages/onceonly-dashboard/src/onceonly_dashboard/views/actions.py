"""Actions that were confirmed: who did what, their progress, and how they are stopped and undone."""

import logging
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action, ActionItem, ActionKind, ActionState
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.operations.actions import read_outcomes
from onceonly.operations.edits import restore
from onceonly_dashboard.access import DELETE, RETRY
from onceonly_dashboard.action_worker import open_parts
from onceonly_dashboard.gate import Refusal
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices
from onceonly_dashboard.views.confirmation import MOST_REASON, operator_of, to_action, use_form

_log = EventLogger(logging.getLogger("onceonly.audit"))

MOST_SHOWN = 100
EVERY_SECONDS = 10
RUNNING_SECONDS = 2


async def actions(_request: PageRequest, services: PageServices) -> PageContent:
    """List the newest actions of each place with dead letters."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    seen: set[str] = set()
    for probes in services.endpoints.values():
        place = str(probes.settings.places.dead_letters)
        if place in seen:
            continue
        seen.add(place)
        try:
            async with probes.open_letters() as letters:
                found = await probes.log_of(letters).recent(limit=MOST_SHOWN)
        except OnceOnlyError as error:
            problems.append(f"{probes.name}: {error}")
            continue
        own = [each for each in found if not each.endpoint or each.endpoint in services.endpoints]
        rows += [_row(each, each.endpoint or probes.name) for each in own]
    rows.sort(key=lambda row: -int(row["at"]))
    return PageContent(
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


async def action(request: PageRequest, services: PageServices) -> PageContent:
    """Show one action: its progress, and what became of its letters."""
    probes, position = services.endpoint(request.path_params["name"]), _position(request)
    async with open_parts(probes, sends=False) as parts:
        found = await parts.log.get(position)
        if found is None or found.endpoint not in {"", probes.name}:
            raise Refusal(HTTPStatus.NOT_FOUND, "This action does not exist.")
        items = await read_outcomes(parts, found, limit=MOST_SHOWN)
    restorable = found.action in {ActionKind.DELETE, ActionKind.EDIT} and any(item.stored for item in items)
    running = found.state is ActionState.RUNNING
    waiting = any(item.outcome.value == "waiting" for item in items)
    return PageContent(
        template="action.html",
        title=f"Action {position}",
        data={"action": _row(found, probes.name), "items": [_item(each) for each in items]},
        view={
            "restorable": restorable and DELETE in request.roles,
            "stoppable": running and RETRY in request.roles,
            "percent": round(100 * (found.done + found.kept) / found.total) if found.total else 100,
            "nonce": services.nonces.issue(),
        },
        every=RUNNING_SECONDS if running or waiting else 0,
    )


def _item(item: ActionItem) -> dict[str, Any]:
    return {"number": item.number, "letter": item.letter, "outcome": item.outcome, "detail": item.detail, "at": item.at}


def _position(request: PageRequest) -> int:
    text = request.path_params["position"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # noqa: PLR2004 - 64 bits
        raise Refusal(HTTPStatus.NOT_FOUND, "This action does not exist.")
    return int(text)


async def stop(request: PageRequest, services: PageServices) -> Response:
    probes, position = services.endpoint(request.path_params["name"]), _position(request)
    async with probes.open_letters() as letters:
        await probes.log_of(letters).stop(position)
    _log.info("operator action stopped", extra={"endpoint": probes.name, "action": position, "actor": request.user_name})
    return to_action(request, probes, position)


async def restore_letters(request: PageRequest, services: PageServices) -> Response:
    """Store the letters again that an action deleted or replaced."""
    probes, position = services.endpoint(request.path_params["name"]), _position(request)
    async with open_parts(probes) as parts:
        await use_form(request, services, parts.log)
        found = await parts.log.get(position)
        if found is None or found.endpoint not in {"", probes.name}:
            raise Refusal(HTTPStatus.NOT_FOUND, "This action does not exist.")
        try:
            stored = await restore(
                parts, operator_of(request, services), position, reason=request.form_value("reason")[:MOST_REASON]
            )
        except SetupError as error:
            raise Refusal(HTTPStatus.CONFLICT, str(error)) from error
        services.auditor.ended(stored)
    return to_action(request, probes, stored.position)
