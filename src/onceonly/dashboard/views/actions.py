"""Actions on dead letters: confirmation, progress, and the list of who did what."""

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from msgspec import UNSET, to_builtins
from starlette.responses import RedirectResponse, Response

from onceonly.dashboard.access import BODY, DELETE, RETRY
from onceonly.dashboard.acting import SENT_BEFORE, open_parts
from onceonly.dashboard.asking import Answer, Ask
from onceonly.dashboard.auditing import KINDS
from onceonly.dashboard.bodies import DiffLine, diff
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.probes import ANSWER_SECONDS, OPEN_SECONDS
from onceonly.dashboard.redaction import redacted
from onceonly.dashboard.rendering import Page, Verbatim
from onceonly.dashboard.text import visible
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.operations.actions import (
    ActionParts,
    Operator,
    confirm,
    confirmed_before,
    read_outcomes,
    store_refusal,
    store_view,
)
from onceonly.operations.editing import (
    Edit,
    body_from_form,
    decoding_check,
    edit,
    line_ends,
    restore,
    send_as_new,
    why_not_editable,
)
from onceonly.operations.finding import RetryCheck, check_retry
from onceonly.operations.letters import LetterSelection
from onceonly.ports.actions import ActionLog
from onceonly.ports.dead_letters import DeadLetters, Extent, Filter, LetterIndex

_log = EventLogger(logging.getLogger("onceonly.audit"))

PROBE = 3
PROBE_ABOVE = 10
RATE = 100.0
TYPED_ABOVE = 100
TWICE = "HANDLED TWICE"
MOST_REASON = 500
MOST_TYPE = 200
CHECKED = 1000
"""Letters of a bulk retry that are checked before its confirmation."""
MOST_SHOWN = 100
ONE_BY_ONE = frozenset({ActionKind.RETRY_ANYWAY, ActionKind.SEND_AS_NEW})
EVERY_SECONDS = 10
RUNNING_SECONDS = 2


class Scope:
    """What an action is about, by the fields of a query or a form: one letter by `key`, or all of a `group` and a `type`."""

    def __init__(self, ask: Ask) -> None:
        read = ask.sent if ask.method == "POST" else ask.asked
        self.watched: WatchedEndpoint = ask.watched(read("endpoint"))
        self.key = read("key")[:64]
        self.group = read("group")[:64]
        self.type = read("type")[:200]
        failure = "" if self.group in {"", "all"} else self.group
        self.filter = Filter(endpoint=self.watched.name, type=self.type, failure=failure)
        if not self.key and not self.group:
            raise Refused(HTTPStatus.BAD_REQUEST, "No dead letters are selected.")

    async def letter(self, letters: DeadLetters) -> DeadLetter:
        """Return the letter of the key. Raises Refused if it is gone, or belongs to another endpoint."""
        found = await letters.get(self.key)
        if found is None or found.endpoint != self.watched.name:
            raise Refused(HTTPStatus.NOT_FOUND, "This dead letter does not exist. It may have been retried or deleted.")
        return found

    async def extent(self, letters: DeadLetters) -> Extent:
        """Return how many letters there are now, and the position of the last."""
        if self.key:
            await self.letter(letters)
            return Extent(1, 0)
        if isinstance(letters, LetterIndex):
            return await letters.extent(self.filter)
        return Extent(await letters.count(self.filter), 0)

    async def first(self, letters: DeadLetters, last: int) -> Sequence[DeadLetter]:
        """Return the first 1,000 of them, or the one letter."""
        if self.key:
            return [await self.letter(letters)]
        if isinstance(letters, LetterIndex):
            return [each.letter for each in await letters.placed(self.filter, upto=last, limit=CHECKED)]
        return await letters.page(self.filter, limit=CHECKED)

    @property
    def selection(self) -> LetterSelection:
        """What the action is about, for its confirmation."""
        # with the endpoint in any case: a dashboard continues the actions of its own endpoints only
        return LetterSelection(keys=(self.key,) if self.key else (), filter=self.filter)

    @property
    def fields(self) -> dict[str, str]:
        """The fields that name it."""
        named = {"endpoint": self.watched.name, "key": self.key, "group": self.group, "type": self.type}
        return {name: value for name, value in named.items() if value}


async def ask_first(ask: Ask) -> Page:
    """Show what an action would do, and ask for a confirmation."""
    scope, kind = Scope(ask), KINDS[ask.path.rpartition("/")[2]]
    if kind in ONE_BY_ONE and not scope.key:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{kind.capitalize()} is for one letter at a time. Open the letter.")
    async with scope.watched.open_letters() as letters:
        total, last = await scope.extent(letters)
        nameless = bool(scope.key) and (await scope.letter(letters)).message is None
        first = await scope.first(letters, last) if kind is ActionKind.RETRY else ()
    check, unchecked = await _check(scope.watched, first) if first else (None, "")
    return Page(
        template="confirm.html",
        title=kind.value.capitalize(),
        data={
            "kind": kind.value,
            "fields": scope.fields,
            "total": total,
            "upto": last,
            "check": to_builtins(check),
            "unchecked": unchecked,
        },
        view={
            "action": ask.path,
            "probe": PROBE if kind is ActionKind.RETRY and total > PROBE_ABOVE else 0,
            "rate": RATE if kind is ActionKind.RETRY and not scope.key else 0,
            "typed": _to_type(kind, total),
            "nonce": ask.dashboard.nonces.issue(),
            "off": scope.watched.settings.plan.retention is None,
            "names_type": kind is ActionKind.SEND_AS_NEW and nameless,
        },
    )


async def _check(watched: WatchedEndpoint, letters: Sequence[DeadLetter]) -> tuple[RetryCheck | None, str]:
    """Return what a retry of these letters would do, or why that is not known."""
    try:
        async with asyncio.timeout(OPEN_SECONDS), watched.open_operations() as opened:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await check_retry(opened, letters), ""
    except OnceOnlyError as error:  # the letters may be elsewhere: a retry is safe without this
        return None, str(error)
    except TimeoutError:
        return None, f"no answer within {ANSWER_SECONDS:g} s"


def _to_type(kind: ActionKind, total: int) -> str:
    """Return what must be typed to confirm, or ""."""
    if kind is ActionKind.RETRY_ANYWAY:
        return TWICE
    return str(total) if kind is ActionKind.DELETE and total > TYPED_ABOVE else ""


async def audit_view(ask: Ask, log: ActionLog, letter: DeadLetter) -> None:
    """Store, with `audit_views`, that a body will be shown. Raises CommitFailed, OutcomeUnknown: then it is not shown."""
    if ask.dashboard.options.audit_views:
        await store_view(log, operator_of(ask), letter)


async def report_refused(ask: Ask, refused: Refused) -> None:
    """Store a refused action of a user who passed the gate, else log it. At most 20 in an hour of one user are stored."""
    is_stored = refused.is_stored or await _store_refused(ask, refused)
    ask.dashboard.auditor.refused(ask.user, ask.path, refused, is_stored=is_stored)


async def _store_refused(ask: Ask, refused: Refused) -> bool:
    kind = KINDS.get(ask.path.rpartition("/")[2])
    watched = ask.dashboard.watched.get(ask.params.get("name", "") or ask.sent("endpoint"))
    if kind is None or watched is None or not ask.dashboard.auditor.may_store(ask.user):
        return False
    key, group = ask.sent("key")[:64], ask.sent("group")[:64]
    failure = "" if group == "all" else group
    scope = ActionScope(keys=(key,)) if key else ActionScope(type=ask.sent("type")[:200], failure=failure)
    try:
        async with watched.open_letters() as letters:
            await store_refusal(
                watched.log_of(letters),
                operator_of(ask),
                kind,
                endpoint=watched.name,
                scope=scope,
                total=1 if key else 0,
                why=refused.reason,
            )
    except OnceOnlyError as error:  # the refusal stands
        _log.warning("refused action not stored", extra={"endpoint": watched.name, "actor": ask.user, "reason": str(error)})
        return False
    return True


async def act(ask: Ask) -> Response:
    """Store a confirmed action and start it in the background. Refuse what has changed since the question was asked."""
    scope, kind = Scope(ask), KINDS[ask.path.rpartition("/")[2]]
    if kind in ONE_BY_ONE and not scope.key:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{kind.capitalize()} is for one letter at a time. Open the letter.")
    rate = _number(ask.sent("rate"), most=10_000.0) if kind is ActionKind.RETRY else 0.0
    probe = int(_number(ask.sent("probe"), most=100.0)) if kind is ActionKind.RETRY and not scope.key else 0
    async with open_parts(scope.watched) as parts:
        total, last = await scope.extent(parts.letters)
        if (ask.sent("total"), ask.sent("upto")) != (str(total), str(last)):
            raise Refused(
                HTTPStatus.CONFLICT, f"The selection has changed: there are {total:,} dead letters now. Open the page again."
            )
        if ask.sent("typed").strip() != _to_type(kind, total):
            raise Refused(HTTPStatus.BAD_REQUEST, f"Type {_to_type(kind, total)} to confirm.")
        await _once(ask, parts.log)
        if kind is ActionKind.SEND_AS_NEW:
            return await _send_as_new(ask, scope, parts)
        stored = await confirm(
            parts, operator_of(ask), kind, scope.selection, reason=ask.sent("reason")[:MOST_REASON], rate=rate, probe=probe
        )
    ask.dashboard.acting.start(scope.watched, stored.position)
    return _to(ask, scope.watched, stored.position)


def _number(text: str, *, most: float) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise Refused(HTTPStatus.BAD_REQUEST, f"Enter a number from 0 to {most:,.0f}.")
    return found


def operator_of(ask: Ask) -> Operator:
    """Return the user of a request, as the author of an action."""
    return Operator(ask.user, ask.dashboard.access.auth.method, ask.sent("nonce")[:64])


async def _once(ask: Ask, log: ActionLog) -> None:
    """Refuse a form that was sent before, to this process or to another. Raises Refused."""
    nonce = ask.sent("nonce")
    ask.dashboard.nonces.use(nonce)
    if await confirmed_before(log, nonce[:64]):
        raise Refused(HTTPStatus.CONFLICT, SENT_BEFORE)


def _to(ask: Ask, watched: WatchedEndpoint, position: int) -> Response:
    return RedirectResponse(f"{ask.base}/actions/{watched.name}/{position}", status_code=HTTPStatus.SEE_OTHER)


async def _send_as_new(ask: Ask, scope: Scope, parts: ActionParts) -> Response:
    check = decoding_check(scope.watched.endpoint)
    reason, type_ = ask.sent("reason").strip()[:MOST_REASON], ask.sent("kind").strip()[:MOST_TYPE]
    try:
        stored = await send_as_new(parts, operator_of(ask), scope.key, reason=reason, type_=type_, check=check)
    except SetupError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
    ask.dashboard.auditor.ended(stored)
    return _to(ask, scope.watched, stored.position)


async def edit_form(ask: Ask) -> Page:
    """Show the body of a letter in a form, or why it cannot be edited."""
    scope = Scope(ask)
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        why = await _why_not(ask, parts, letter)
        if not why:
            await audit_view(ask, parts.log, letter)
    text = "" if why else letter.body.decode()
    return _edit_page(ask, scope, letter, text=text, why=why)


async def save_edit(ask: Ask) -> Answer:
    """Show the difference first; then send the edited message."""
    scope = Scope(ask)
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(ask, parts, letter):
            if ask.sent("step") == "send":
                raise Refused(HTTPStatus.CONFLICT, f"It cannot be edited: {why}.")
            return _edit_page(ask, scope, letter, why=why)
        text, reason = ask.sent("body"), ask.sent("reason").strip()[:MOST_REASON]
        body = body_from_form(letter.body, text)
        problem = "" if reason else "State a reason: it is stored with the edit."
        if not problem and (decoding := decoding_check(scope.watched.endpoint)(Edit(body=body).of(_message(letter)))):
            problem = f"The handler could not read it: {decoding}"
        if problem and ask.sent("step") == "send":
            words = problem if not reason else "The handler could not read the edited body."
            await report_refused(ask, Refused(HTTPStatus.BAD_REQUEST, words))
        if problem or ask.sent("step") != "send":
            lines = diff(letter.body.decode(), body.decode()) if not problem else []
            return _edit_page(ask, scope, letter, text=text, reason=reason, problem=problem, lines=lines)
        await _once(ask, parts.log)
        change = Edit(body=body, datacontenttype=UNSET)
        try:
            stored = await edit(
                parts, operator_of(ask), letter.key, change, reason=reason, check=decoding_check(scope.watched.endpoint)
            )
        except SetupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
        ask.dashboard.auditor.ended(stored)
    return _to(ask, scope.watched, stored.position)


def _edit_page(  # noqa: PLR0913 - what the form shows, by name
    ask: Ask,
    scope: Scope,
    letter: DeadLetter,
    *,
    text: str = "",
    why: str = "",
    reason: str = "",
    problem: str = "",
    lines: list[DiffLine] | None = None,
) -> Page:
    same = lines is not None and not any(line.sign for line in lines)
    return Page(
        template="edit.html",
        title="Edit and retry",
        data={"endpoint": scope.watched.name, "key": letter.key, "why_not": why, "problem": problem, "unchanged": same},
        view={
            "text": Verbatim(text),
            "reason": reason,
            "lines": lines or [],
            "reviewed": lines is not None and not problem,
            "nonce": ask.dashboard.nonces.issue(),
            "off": scope.watched.settings.plan.retention is None,
        },
        status=HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK,
    )


def _message(letter: DeadLetter) -> Any:
    if letter.message is None:
        raise Refused(HTTPStatus.CONFLICT, "It has no identity, so it cannot be edited.")
    return letter.message


async def _why_not(ask: Ask, parts: ActionParts, letter: DeadLetter) -> str:
    if not ask.has(BODY):
        return "the form shows the body, and that needs the role body"
    if redacted(letter, ask.dashboard.redact).body != letter.body:
        return "redact= hides a part of its body, and the form shows all of it: export it and import it instead"
    if why := await why_not_editable(parts, letter):
        return why
    text = letter.body.decode()
    if len(line_ends(letter.body)) > 1 or visible(text) != text.replace("\r\n", "\n"):
        return "its body has characters that a form cannot keep: export it and import it instead"
    return ""


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
    return _to(ask, watched, position)


async def restore_letters(ask: Ask) -> Response:
    """Store the letters again that an action deleted or replaced."""
    watched, position = ask.watched(), _position(ask)
    async with open_parts(watched) as parts:
        await _once(ask, parts.log)
        found = await parts.log.get(position)
        if found is None or found.endpoint not in {"", watched.name}:
            raise Refused(HTTPStatus.NOT_FOUND, "This action does not exist.")
        try:
            stored = await restore(parts, operator_of(ask), position, reason=ask.sent("reason")[:MOST_REASON])
        except SetupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error)) from error
        ask.dashboard.auditor.ended(stored)
    return _to(ask, watched, stored.position)
