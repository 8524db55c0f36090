"""Dead letters: groups with the same failure, the letters of a group, and one letter with links to other tools."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from string import Formatter
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace
from starlette.responses import Response

from onceonly.model.action import Action, ActionItem
from onceonly.model.conversation import conversation_key
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.model.message import Failure
from onceonly.model.wording import counted
from onceonly.operations.edits import is_earlier_body
from onceonly.operations.knowledge import know
from onceonly.operations.letters import NEWEST, read_groups
from onceonly.operations.previews import preview, shown_headers, shown_traceback
from onceonly.ports.dead_letters import DeadLetters, Extent, Filter, GroupCount, LetterIndex
from onceonly.ports.operators import ClaimState, Knowledge
from onceonly_dashboard.access import BODY
from onceonly_dashboard.endpoint_probes import MOST, EndpointProbes
from onceonly_dashboard.gate import DOWNLOAD_POLICY, Refusal
from onceonly_dashboard.page_request import PageContent, PageRequest, PageServices
from onceonly_dashboard.redaction import Redact, redacted, redacted_group
from onceonly_dashboard.views.confirmation import audit_view

PAGE = 100
SEARCHED = 10_000
"""Letters that one page with a filter by type reads."""
LONGEST_AFTER = 64
EVERY_SECONDS = 15
ALL = "all"
"""Stands for a group in addresses: letters of every group."""
MOST_TYPE = 200
MOST_ACTIONS = 20
_MISMATCH = "A message with this identity was handled with another body. A retry is a payload mismatch."
_RETRIES = {
    ClaimState.HANDLED: "The message was handled. A retry does not run the handler again.",
    ClaimState.NO_CLAIM: "No run of its handler was committed. A retry is safe, also twice.",
    ClaimState.TOO_OLD: "It is older than the retention, so it is not known whether it was handled. A retry is refused.",
    ClaimState.UNDETERMINED: "It is not determined whether it was handled. A retry under the same id is safe all the same.",
    ClaimState.UNKNOWN: "This store cannot be asked whether it was handled. Deduplication decides at a retry.",
}
_KEY = re.compile(r"[0-9a-f]{32}")
_DIGITS = re.compile(r"\d{1,18}")
FIELDS = ("endpoint", "source", "id", "type", "key", "trace")
_URL = re.compile(r"https?://[^\s/{}@]+(/|$)")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class LetterPage(NamedTuple):
    """Letters on a page, how many there are in all, if that is counted, and where the next page begins, or ""."""

    letters: tuple[DeadLetter, ...]
    extent: Extent | None
    after: str


async def groups(request: PageRequest, services: PageServices) -> PageContent:
    """List the groups of all endpoints, or of those named by `endpoint`."""
    chosen, redact = services.chosen(request), services.options.redact
    reads = (
        services.shared(request, ("groups", each.name), partial(_groups_of, each, redact), EVERY_SECONDS) for each in chosen
    )
    found = list(await asyncio.gather(*reads))
    return PageContent(template="groups.html", title="Dead letters", data={"endpoints": found}, every=EVERY_SECONDS)


async def _groups_of(probes: EndpointProbes, redact: Redact | None) -> dict[str, Any]:
    try:
        async with probes.open_letters() as letters:
            counts = await read_groups(letters, probes.name)
            shown = [each if redact is None else await _shown_group(letters, each, redact) for each in counts.groups]
    except OnceOnlyError as error:
        return {"name": probes.name, "groups": [], "total": None, "problem": str(error), "complete": True}
    retry = probes.settings.retry
    return {
        "name": probes.name,
        "groups": [_group(each) for each in shown],
        "total": sum(each.count for each in counts.groups),
        "problem": "",
        "complete": counts.complete,
        "limit": NEWEST,
        "retry": f"{retry.immediate} immediate and {retry.delayed} delayed retries",
    }


async def _shown_group(letters: DeadLetters, count: GroupCount, redact: Redact) -> GroupCount:
    """Return a group named as its latest letter may be shown. A group without a traceback is named by a text."""
    latest = await letters.get(count.latest)
    return replace(count, group=redacted_group(latest, redact) if latest is not None and count.group is not None else None)


def _group(count: GroupCount) -> dict[str, Any]:
    group = count.group
    return {
        "key": count.key or ALL,
        "exception": group.exception if group else "",
        "place": group.place if group else "unreadable",
        "type": group.type if group else "",
        "kind": group.kind if group else "",
        "count": count.count,
        "first": count.first,
        "last": count.last,
    }


async def group(request: PageRequest, services: PageServices) -> PageContent:
    """List the letters of one group, 100 on a page, the newest first where the store has an index."""
    probes = services.endpoint(request.query_value("endpoint"))
    key = request.path_params["key"]
    if key != ALL and not _KEY.fullmatch(key):
        raise Refusal(HTTPStatus.NOT_FOUND, "This group does not exist.")
    chosen = Filter(endpoint=probes.name, type=request.query_value("type")[:MOST_TYPE], failure="" if key == ALL else key)
    after = request.query_value("after")[:LONGEST_AFTER]

    async def read() -> LetterPage:
        async with probes.open_letters() as letters:
            return await _read_page(letters, chosen, after)

    found = await services.shared(request, ("group", chosen, after), read, EVERY_SECONDS)
    return PageContent(
        template="group.html",
        title=f"Dead letters of {probes.name}",
        data={
            "endpoint": probes.name,
            "group": key,
            "type": chosen.type,
            "total": None if found.extent is None else min(MOST, found.extent.total),
            "more": found.extent is not None and found.extent.total > MOST,
            "upto": 0 if found.extent is None else found.extent.last,
            "letters": [_line(probes, each, redacted(each, services.options.redact), request.now) for each in found.letters],
            "after": found.after,
        },
        view={"first": not after, "read": SEARCHED},
    )


async def _read_page(letters: DeadLetters, chosen: Filter, after: str) -> LetterPage:
    if not isinstance(letters, LetterIndex):
        page = await letters.page(chosen, after=after if _KEY.fullmatch(after) else "", limit=PAGE + 1)
        following = page[PAGE - 1].key if len(page) > PAGE else ""
        return LetterPage(page[:PAGE], Extent(await letters.count(chosen), 0), following)
    before = int(after) if _DIGITS.fullmatch(after) else None
    if chosen.type:  # no index has the type
        searched = await letters.search(chosen, before=before, limit=PAGE, read=SEARCHED)
        following = str(searched.reached) if searched.reached else ""
        return LetterPage(tuple(each.letter for each in searched.found), None, following)
    placed = await letters.placed(chosen, upto=None if before is None else before - 1, limit=PAGE + 1, newest=True)
    following = str(placed[PAGE - 1].position) if len(placed) > PAGE else ""
    extent = await letters.extent(chosen, limit=MOST + 1)
    return LetterPage(tuple(each.letter for each in placed[:PAGE]), extent, following)


def _line(probes: EndpointProbes, letter: DeadLetter, view: DeadLetter, now: int) -> dict[str, Any]:
    """Return what a list has of a letter. `view` is what may be shown of it."""
    message = view.message
    return {
        "key": letter.key,
        "type": message.type if message else "",
        "source": message.source if message else "",
        "id": message.id if message else "",
        "reason": view.reason[:500],
        "attempts": letter.attempts,
        "at": letter.at,
        "finish_only": letter.finish_only,
        "retry_until": _retry_until(probes, letter),
        "now": now,
    }


def _retry_until(probes: EndpointProbes, letter: DeadLetter) -> int:
    """Return until when a retry is certainly recognized, in milliseconds since 1970; 0 if that does not end, or is unknown."""
    history = probes.settings.plan.history
    if history is None or letter.message is None or not letter.message.instant:
        return 0
    return letter.message.instant + int(history.total_seconds() * 1000)


async def letter(request: PageRequest, services: PageServices) -> PageContent:
    """Show one dead letter: its fields, what the store knows about its message, its attempts, and its content."""
    probes, found = await _find(request, services)
    known = await _look_up(probes, found)
    view = redacted(found, services.options.redact)
    trail = await _read_trail(request, services, probes, found)
    actions = [_entry(action, item) for action, item in trail]
    headers, total_headers = shown_headers(view.headers)
    has_no_identity = found.message is None and not isinstance(found, UnreadableLetter)
    has_story = probes.settings.journal is not None
    data: dict[str, Any] = {
        **_line(probes, found, view, request.now),
        "endpoint": probes.name,
        "claim": _claim(probes, found, known),
        "conversation": conversation_key(found.message).hex() if has_story and found.message is not None else "",
        "edited": next((_entry(action, item) for action, item in trail if is_earlier_body(item, found)), None),
        "actions": actions,
        "links": links_of(view, services.options.links, found.key),
        "attempts_kept": [_attempt(each, with_traceback=BODY in request.roles) for each in view.history],
    }
    if BODY in request.roles:
        data |= {
            "body": preview(view.body),
            "headers": headers,
            "headers_total": total_headers,
            "datacontenttype": view.message.datacontenttype if view.message else "",
        }
    return PageContent(
        template="letter.html",
        title=f"Dead letter {found.key[:12]}",
        data=data,
        view={
            "may_read": BODY in request.roles,
            "reason": view.reason[:4000],
            "target": services.targets.get(probes.name, "module:endpoint"),
            "as_new": services.options.send_as_new and (has_no_identity or _is_mismatch(found, known)),
        },
    )


async def _read_trail(
    request: PageRequest, services: PageServices, probes: EndpointProbes, found: DeadLetter
) -> tuple[tuple[Action, ActionItem], ...]:
    """Return what operators did with the message of a letter. Before that, audit that this one sees its body."""
    async with probes.open_letters() as letters:
        log = probes.log_of(letters)
        if BODY in request.roles:
            await audit_view(request, services, log, found)
        return await log.of_message(probes.name, found.message.identity, MOST_ACTIONS) if found.message else ()


def _entry(action: Action, item: ActionItem) -> dict[str, Any]:
    return {
        "position": action.position,
        "action": action.action,
        "actor": action.actor,
        "at": action.at,
        "outcome": item.outcome,
    }


async def body(request: PageRequest, services: PageServices) -> Response:
    """Return the body as a download that no browser opens as a page."""
    probes, found = await _find(request, services)
    async with probes.open_letters() as letters:
        await audit_view(request, services, probes.log_of(letters), found)
    response = Response(redacted(found, services.options.redact).body, media_type="application/octet-stream")
    response.headers["content-disposition"] = f'attachment; filename="{found.key}.bin"'
    response.headers["content-security-policy"] = DOWNLOAD_POLICY
    return response


async def _find(request: PageRequest, services: PageServices) -> tuple[EndpointProbes, DeadLetter]:
    """Return the letter of a key, if it belongs to an endpoint of this dashboard. Raises Refusal."""
    key = request.path_params["key"]
    problem: OnceOnlyError | None = None
    for probes in services.endpoints.values() if _KEY.fullmatch(key) else ():
        try:
            async with probes.open_letters() as letters:
                found = await letters.get(key)
            if found is not None and found.endpoint == probes.name:
                return probes, found
        except OnceOnlyError as error:  # another endpoint may have it
            problem = error
    if problem is not None:
        raise problem
    raise Refusal(HTTPStatus.NOT_FOUND, "This dead letter does not exist. It may have been retried or deleted.")


async def _look_up(probes: EndpointProbes, found: DeadLetter) -> Knowledge | None:
    if found.message is None:
        return None
    try:
        async with probes.open_operations() as opened:
            return (await know(opened, [found.message]))[0]
    except OnceOnlyError:  # the letters may be elsewhere: the page stands without this
        return None


def _claim(probes: EndpointProbes, found: DeadLetter, known: Knowledge | None) -> str:
    """Describe what a retry does, by what is known of the message."""
    if isinstance(found, UnreadableLetter):
        return "This version cannot read it, so it cannot be retried. Export it, or retry it with the version that stored it."
    if found.message is None:
        return "It has no identity, so it cannot be retried. Let its sender send it again with an id."
    if found.finish_only:
        return "Its handler's changes are committed. A retry sends the remaining messages and does not run the handler."
    if known is None:
        return "The store does not answer, so it is not known whether the message was handled."
    if not probes.settings.plan.claims.decides:
        return "This endpoint does not skip messages that were handled, so a retry may handle it again."
    return _MISMATCH if _is_mismatch(found, known) else _RETRIES[known.claim]


def _is_mismatch(found: DeadLetter, known: Knowledge | None) -> bool:
    """Return whether the message was handled with another body."""
    if known is None or found.message is None or known.claim is not ClaimState.HANDLED:
        return False
    return bool(known.fingerprint) and known.fingerprint != found.message.fingerprint


def _attempt(failure: Failure, *, with_traceback: bool) -> dict[str, Any]:
    text, cut = shown_traceback(failure.traceback) if with_traceback else ("", False)
    return {
        "at": failure.at,
        "kind": failure.kind.value,
        "handler": failure.handler,
        "reason": failure.reason[:4000],
        "traceback": text,
        "traceback_cut": cut,
        "lines": counted(failure.traceback.count("\n") + 1, "line") if failure.traceback else "",
    }


def check_links(links: Any) -> dict[str, str]:
    """Check `links=`: names with templates of URLs. Raises SetupError."""
    if not isinstance(links, Mapping):
        raise SetupError(f'links must map names to URLs, such as {{"Trace": "https://traces/{{trace}}"}}, not {links!r:.80}')
    checked: dict[str, str] = {}
    for name, template in links.items():
        fields = {field for _, field, _, _ in Formatter().parse(str(template)) if field is not None}
        if not _URL.match(str(template)) or not fields <= set(FIELDS):
            raise SetupError(
                f"links[{name!r}] = {template!r}: write an http or https URL whose fields are among {', '.join(FIELDS)}, "
                "none of them in the host"
            )
        checked[str(name)] = str(template)
    return checked


def links_of(letter: DeadLetter, links: Mapping[str, str], key: str) -> list[tuple[str, str]]:
    """Return names and URLs for what may be shown of a dead letter. A link that needs what it does not have is left out."""
    message = letter.message
    values = {"endpoint": letter.endpoint, "key": key}
    if message is not None:
        values |= {"source": message.source, "id": message.id, "type": message.type}
    if trace := _TRACE.fullmatch(_traceparent(letter)):
        values["trace"] = trace[1]
    encoded = {name: quote(value, safe="", errors="surrogatepass") for name, value in values.items()}
    return [
        (name, template.format_map(encoded))
        for name, template in links.items()
        if all(field in encoded for _, field, _, _ in Formatter().parse(template) if field is not None)
    ]


def _traceparent(letter: DeadLetter) -> str:
    message = letter.message
    own = message.extension("traceparent") if message is not None else ""
    return own or next((value for name, value in letter.headers if name.lower() == "traceparent"), "")
