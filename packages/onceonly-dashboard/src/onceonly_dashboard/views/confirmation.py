"""Actions on dead letters: what they are about, their confirmation, and those that were refused."""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from msgspec import to_builtins
from msgspec.structs import replace
from starlette.responses import RedirectResponse, Response

from onceonly.formats.log_events import EventLogger
from onceonly.model.action import ActionKind, ActionScope
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.operations.actions import ActionParts, Operator, confirm, confirmed_before, new_action, store_refusal, store_view
from onceonly.operations.edits import decoding_check, send_as_new
from onceonly.operations.knowledge import check_retry
from onceonly.ports.dead_letters import DeadLetters, Extent, Filter, LetterIndex
from onceonly.ports.operators import ActionLog
from onceonly_dashboard.action_worker import open_parts
from onceonly_dashboard.auditor import KINDS
from onceonly_dashboard.endpoint_probes import EndpointProbes
from onceonly_dashboard.gate import SENT_BEFORE, Refusal
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices

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
ONE_BY_ONE = frozenset({ActionKind.RETRY_ANYWAY, ActionKind.SEND_AS_NEW})


class LetterScope:
    """What an action is about, by the fields of a query or a form: one letter by `key`, or all of a `group` and a `type`."""

    def __init__(self, request: PageRequest, services: PageServices) -> None:
        read = request.form_value if request.method == "POST" else request.query_value
        self.probes: EndpointProbes = services.endpoint(read("endpoint"))
        self.key = read("key")[:64]
        self.group = read("group")[:64]
        self.type = read("type")[:200]
        failure = "" if self.group in {"", "all"} else self.group
        self.filter = Filter(endpoint=self.probes.name, type=self.type, failure=failure)
        if not self.key and not self.group:
            raise Refusal(HTTPStatus.BAD_REQUEST, "No dead letters are selected.")

    async def letter(self, letters: DeadLetters) -> DeadLetter:
        """Return the letter of the key. Raises Refusal if it is gone, or belongs to another endpoint."""
        found = await letters.get(self.key)
        if found is None or found.endpoint != self.probes.name:
            raise Refusal(HTTPStatus.NOT_FOUND, "This dead letter does not exist. It may have been retried or deleted.")
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
    def fields(self) -> dict[str, str]:
        named = {"endpoint": self.probes.name, "key": self.key, "group": self.group, "type": self.type}
        return {name: value for name, value in named.items() if value}


def _requested(request: PageRequest, services: PageServices) -> tuple[LetterScope, ActionKind]:
    """Return what an action is about, and its kind. Raises Refusal."""
    scope, kind = LetterScope(request, services), KINDS[request.path.rpartition("/")[2]]
    if kind in ONE_BY_ONE and not scope.key:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{kind.capitalize()} is for one letter at a time. Open the letter.")
    return scope, kind


async def show_confirmation(request: PageRequest, services: PageServices) -> PageContent:
    """Show what an action would do, and ask for a confirmation."""
    scope, kind = _requested(request, services)
    async with scope.probes.open_letters() as letters:
        total, last = await scope.extent(letters)
        nameless = bool(scope.key) and (await scope.letter(letters)).message is None
        first = await scope.first(letters, last) if kind is ActionKind.RETRY else ()
    check, unchecked = None, ""
    if first:  # the letters may be elsewhere than the store: a retry is safe without this
        check, unchecked = await scope.probes.answer(lambda opened: check_retry(opened, first))
    return PageContent(
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
            "action": request.path,
            "probe": PROBE if kind is ActionKind.RETRY and total > PROBE_ABOVE else 0,
            "rate": RATE if kind is ActionKind.RETRY and not scope.key else 0,
            "typed": _confirmation_text(kind, total),
            "nonce": services.nonces.issue(),
            "off": scope.probes.settings.plan.retention is None,
            "names_type": kind is ActionKind.SEND_AS_NEW and nameless,
        },
    )


def _confirmation_text(kind: ActionKind, total: int) -> str:
    """Return what must be typed to confirm, or ""."""
    if kind is ActionKind.RETRY_ANYWAY:
        return TWICE
    return str(total) if kind is ActionKind.DELETE and total > TYPED_ABOVE else ""


async def start_action(request: PageRequest, services: PageServices) -> Response:
    """Store a confirmed action and start it in the background. Refuse what has changed since its confirmation was shown."""
    scope, kind = _requested(request, services)
    rate = _number(request.form_value("rate"), most=10_000.0) if kind is ActionKind.RETRY else 0.0
    probe = int(_number(request.form_value("probe"), most=100.0)) if kind is ActionKind.RETRY and not scope.key else 0
    async with open_parts(scope.probes) as parts:
        await _check_confirmed(request, scope, kind, parts.letters)
        await use_form(request, services, parts.log)
        if kind is ActionKind.SEND_AS_NEW:
            return await _send_as_new(request, services, scope, parts)
        chosen = scope.filter
        letters = ActionScope(keys=(scope.key,)) if scope.key else ActionScope(type=chosen.type, failure=chosen.failure)
        # with the endpoint in any case: a dashboard continues the actions of its own endpoints only
        action = new_action(
            operator_of(request, services),
            kind,
            scope.probes.name,
            replace(letters, rate=rate, probe=probe),
            reason=request.form_value("reason")[:MOST_REASON],
        )
        stored = await confirm(parts, action)
    services.action_worker.start(scope.probes, stored.position)
    return to_action(request, scope.probes, stored.position)


async def _check_confirmed(request: PageRequest, scope: LetterScope, kind: ActionKind, letters: DeadLetters) -> None:
    """Refuse an action whose letters have changed since its confirmation was shown. Raises Refusal."""
    extent = await scope.extent(letters)
    if (request.form_value("total"), request.form_value("upto")) != (str(extent.total), str(extent.last)):
        raise Refusal(
            HTTPStatus.CONFLICT, f"The selection has changed: there are {extent.total:,} dead letters now. Open the page again."
        )
    if request.form_value("typed").strip() != _confirmation_text(kind, extent.total):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Type {_confirmation_text(kind, extent.total)} to confirm.")


def _number(text: str, *, most: float) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"Enter a number from 0 to {most:,.0f}.")
    return found


async def _send_as_new(request: PageRequest, services: PageServices, scope: LetterScope, parts: ActionParts) -> Response:
    check = decoding_check(scope.probes.endpoint)
    reason, type_ = request.form_value("reason").strip()[:MOST_REASON], request.form_value("kind").strip()[:MOST_TYPE]
    try:
        stored = await send_as_new(parts, operator_of(request, services), scope.key, reason=reason, type_=type_, check=check)
    except SetupError as error:
        raise Refusal(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
    services.auditor.ended(stored)
    return to_action(request, scope.probes, stored.position)


async def use_form(request: PageRequest, services: PageServices, log: ActionLog) -> None:
    """Refuse a form that was sent before, to this process or to another. Raises Refusal."""
    nonce = request.form_value("nonce")
    services.nonces.use(nonce)
    if await confirmed_before(log, nonce[:64]):
        raise Refusal(HTTPStatus.CONFLICT, SENT_BEFORE)


def to_action(request: PageRequest, probes: EndpointProbes, position: int) -> Response:
    return RedirectResponse(f"{request.base}/actions/{probes.name}/{position}", status_code=HTTPStatus.SEE_OTHER)


def operator_of(request: PageRequest, services: PageServices) -> Operator:
    """Return the user of a request, as the author of an action."""
    return Operator(request.user_name, services.auditor.method, request.form_value("nonce")[:64])


async def audit_view(request: PageRequest, services: PageServices, log: ActionLog, letter: DeadLetter) -> None:
    """Store, with `audit_views`, that a body will be shown. Raises CommitFailed, OutcomeUnknown: then it is not shown."""
    if services.options.audit_views:
        await store_view(log, operator_of(request, services), letter)


async def report_refused(request: PageRequest, services: PageServices, refused: Refusal) -> None:
    """Store a refused action of a user who passed the gate, else log it. At most 20 in an hour of one user are stored."""
    is_stored = refused.is_stored or await _store_refused(request, services, refused)
    services.auditor.refused(request.user_name, request.path, refused, is_stored=is_stored)


async def _store_refused(request: PageRequest, services: PageServices, refused: Refusal) -> bool:
    kind = KINDS.get(request.path.rpartition("/")[2])
    probes = services.endpoints.get(request.path_params.get("name", "") or request.form_value("endpoint"))
    if kind is None or probes is None or not services.auditor.may_store(request.user_name):
        return False
    key, group = request.form_value("key")[:64], request.form_value("group")[:64]
    failure = "" if group == "all" else group
    scope = ActionScope(keys=(key,)) if key else ActionScope(type=request.form_value("type")[:200], failure=failure)
    try:
        async with probes.open_letters() as letters:
            by = replace(operator_of(request, services), form="")  # a refused form may be sent again
            action = new_action(by, kind, probes.name, scope)
            await store_refusal(probes.log_of(letters), action, total=1 if key else 0, why=refused.detail)
    except OnceOnlyError as error:  # the refusal stands
        _log.warning(
            "refused action not stored", extra={"endpoint": probes.name, "actor": request.user_name, "reason": str(error)}
        )
        return False
    return True
