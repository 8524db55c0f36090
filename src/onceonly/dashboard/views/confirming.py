"""Actions on dead letters: what they are about, their confirmation, and those that were refused."""

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus

from msgspec import to_builtins
from starlette.responses import RedirectResponse, Response

from onceonly.dashboard.acting import SENT_BEFORE, open_parts
from onceonly.dashboard.asking import Ask
from onceonly.dashboard.auditing import KINDS
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.probes import ANSWER_SECONDS, OPEN_SECONDS, answering
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.action import ActionKind, ActionScope
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.operations.actions import ActionParts, Operator, confirm, confirmed_before, store_refusal, store_view
from onceonly.operations.editing import decoding_check, send_as_new
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
MOST_EXPORTED = 10_000
"""Letters of one file."""
TOO_MANY = f"A page exports at most {MOST_EXPORTED:,} dead letters. Choose a group or a type, or use `onceonly dead export`."
ONE_BY_ONE = frozenset({ActionKind.RETRY_ANYWAY, ActionKind.SEND_AS_NEW})


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
        if kind is ActionKind.EXPORT and total > MOST_EXPORTED:
            raise Refused(HTTPStatus.BAD_REQUEST, TOO_MANY)
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
        async with asyncio.timeout(OPEN_SECONDS), watched.open_operations() as opened, answering():
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


async def act(ask: Ask) -> Response:
    """Store a confirmed action and start it in the background. Refuse what has changed since the question was asked."""
    scope, kind = Scope(ask), KINDS[ask.path.rpartition("/")[2]]
    if kind in ONE_BY_ONE and not scope.key:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{kind.capitalize()} is for one letter at a time. Open the letter.")
    rate = _number(ask.sent("rate"), most=10_000.0) if kind is ActionKind.RETRY else 0.0
    probe = int(_number(ask.sent("probe"), most=100.0)) if kind is ActionKind.RETRY and not scope.key else 0
    async with open_parts(scope.watched) as parts:
        await check_confirmed(ask, scope, kind, parts.letters)
        if kind is ActionKind.SEND_AS_NEW:
            return await _send_as_new(ask, scope, parts)
        stored = await confirm(
            parts, operator_of(ask), kind, scope.selection, reason=ask.sent("reason")[:MOST_REASON], rate=rate, probe=probe
        )
    ask.dashboard.acting.start(scope.watched, stored.position)
    return to_action(ask, scope.watched, stored.position)


async def check_confirmed(ask: Ask, scope: Scope, kind: ActionKind, letters: DeadLetters) -> Extent:
    """Return how many letters an action is about. Raises Refused if that has changed, or if the form was sent before."""
    extent = await scope.extent(letters)
    if (ask.sent("total"), ask.sent("upto")) != (str(extent.total), str(extent.last)):
        raise Refused(
            HTTPStatus.CONFLICT, f"The selection has changed: there are {extent.total:,} dead letters now. Open the page again."
        )
    if ask.sent("typed").strip() != _to_type(kind, extent.total):
        raise Refused(HTTPStatus.BAD_REQUEST, f"Type {_to_type(kind, extent.total)} to confirm.")
    await use_form(ask, scope.watched.log_of(letters))
    return extent


def _number(text: str, *, most: float) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise Refused(HTTPStatus.BAD_REQUEST, f"Enter a number from 0 to {most:,.0f}.")
    return found


async def _send_as_new(ask: Ask, scope: Scope, parts: ActionParts) -> Response:
    check = decoding_check(scope.watched.endpoint)
    reason, type_ = ask.sent("reason").strip()[:MOST_REASON], ask.sent("kind").strip()[:MOST_TYPE]
    try:
        stored = await send_as_new(parts, operator_of(ask), scope.key, reason=reason, type_=type_, check=check)
    except SetupError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
    ask.dashboard.auditor.ended(stored)
    return to_action(ask, scope.watched, stored.position)


async def use_form(ask: Ask, log: ActionLog) -> None:
    """Refuse a form that was sent before, to this process or to another. Raises Refused."""
    nonce = ask.sent("nonce")
    ask.dashboard.nonces.use(nonce)
    if await confirmed_before(log, nonce[:64]):
        raise Refused(HTTPStatus.CONFLICT, SENT_BEFORE)


def to_action(ask: Ask, watched: WatchedEndpoint, position: int) -> Response:
    """Redirect to the page of an action."""
    return RedirectResponse(f"{ask.base}/actions/{watched.name}/{position}", status_code=HTTPStatus.SEE_OTHER)


def operator_of(ask: Ask) -> Operator:
    """Return the user of a request, as the author of an action."""
    return Operator(ask.user, ask.dashboard.access.auth.method, ask.sent("nonce")[:64])


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
