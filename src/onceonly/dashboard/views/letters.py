"""Dead letters: groups with the same failure, the letters of a group, and one letter."""

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

from msgspec.structs import replace
from starlette.responses import Response

from onceonly.assembly.operations import OpenedOperations
from onceonly.config.deduplication import Off
from onceonly.dashboard.access import BODY
from onceonly.dashboard.asking import Ask
from onceonly.dashboard.bodies import preview, shown_headers, shown_traceback
from onceonly.dashboard.gate import DOWNLOAD_POLICY, Refused, protect
from onceonly.dashboard.links import links_of
from onceonly.dashboard.redaction import Redact, redacted, redacted_group
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.views.confirming import audit_view
from onceonly.dashboard.watching import MOST, WatchedEndpoint
from onceonly.model.action import Action, ActionItem
from onceonly.model.conversation import conversation_key
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Failure
from onceonly.model.wording import counted
from onceonly.operations.editing import is_earlier_body
from onceonly.operations.finding import know
from onceonly.operations.groups import NEWEST, read_groups
from onceonly.ports.dead_letters import DeadLetters, Extent, Filter, GroupCount, LetterIndex
from onceonly.ports.lookup import ClaimState, Knowledge

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


class LetterPage(NamedTuple):
    """Letters on a page, how many there are in all, if that is counted, and where the next page begins, or ""."""

    letters: tuple[DeadLetter, ...]
    extent: Extent | None
    after: str


async def groups(ask: Ask) -> Page:
    """List the groups of all endpoints, or of those named by `endpoint`."""
    names = ask.query.get("endpoint") or list(ask.dashboard.watched)
    chosen, redact = [ask.watched(name) for name in names], ask.dashboard.redact
    reads = (ask.shared(("groups", each.name), partial(_groups_of, each, redact), EVERY_SECONDS) for each in chosen)
    found = list(await asyncio.gather(*reads))
    return Page(template="groups.html", title="Dead letters", data={"endpoints": found}, every=EVERY_SECONDS)


async def _groups_of(watched: WatchedEndpoint, redact: Redact | None) -> dict[str, Any]:
    try:
        async with watched.open_letters() as letters:
            counts = await read_groups(letters, watched.name)
            shown = [each if redact is None else await _shown_group(letters, each, redact) for each in counts.groups]
    except OnceOnlyError as error:
        return {"name": watched.name, "groups": [], "total": None, "problem": str(error), "complete": True}
    return {
        "name": watched.name,
        "groups": [_group(each) for each in shown],
        "total": sum(each.count for each in counts.groups),
        "problem": "",
        "complete": counts.complete,
        "limit": NEWEST,
        "retry": _retry_policy(watched),
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
        "place": group.place if group else "not grouped yet",
        "type": group.type if group else "",
        "kind": group.kind if group else "",
        "count": count.count,
        "first": count.first,
        "last": count.last,
    }


def _retry_policy(watched: WatchedEndpoint) -> str:
    retry = watched.settings.retry
    return f"{retry.immediate} immediate and {retry.delayed} delayed retries"


async def group(ask: Ask) -> Page:
    """List the letters of one group, 100 on a page, the newest first where the store has an index."""
    watched = ask.watched(ask.asked("endpoint"))
    key = ask.params["key"]
    if key != ALL and not _KEY.fullmatch(key):
        raise Refused(HTTPStatus.NOT_FOUND, "This group does not exist.")
    chosen = Filter(endpoint=watched.name, type=ask.asked("type")[:MOST_TYPE], failure="" if key == ALL else key)
    after = ask.asked("after")[:LONGEST_AFTER]

    async def read() -> LetterPage:
        async with watched.open_letters() as letters:
            return await _read_page(letters, chosen, after)

    found = await ask.shared(("group", chosen, after), read, EVERY_SECONDS)
    return Page(
        template="group.html",
        title=f"Dead letters of {watched.name}",
        data={
            "endpoint": watched.name,
            "group": key,
            "type": chosen.type,
            "total": None if found.extent is None else min(MOST, found.extent.total),
            "more": found.extent is not None and found.extent.total > MOST,
            "upto": 0 if found.extent is None else found.extent.last,
            "letters": [_line(watched, each, redacted(each, ask.dashboard.redact), ask.now) for each in found.letters],
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


def _line(watched: WatchedEndpoint, letter: DeadLetter, view: DeadLetter, now: int) -> dict[str, Any]:
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
        "retry_until": _retry_until(watched, letter),
        "now": now,
    }


def _retry_until(watched: WatchedEndpoint, letter: DeadLetter) -> int:
    """Return until when a retry is certainly recognized, in milliseconds since 1970; 0 if that does not end, or is unknown."""
    history = watched.settings.plan.history
    if history is None or letter.message is None or not letter.message.instant:
        return 0
    return letter.message.instant + int(history.total_seconds() * 1000)


async def letter(ask: Ask) -> Page:
    """Show one dead letter: its fields, what the store knows about its message, its attempts, and its content."""
    watched, found, known = await _find(ask)
    view = redacted(found, ask.dashboard.redact)
    trail = await _trail(ask, watched, found)
    headers, total_headers = shown_headers(view.headers)
    data: dict[str, Any] = {
        **_line(watched, found, view, ask.now),
        "endpoint": watched.name,
        "claim": _claim(watched, found, known),
        "conversation": _conversation(watched, found),
        "edited": next((_acted(action, item) for action, item in trail if is_earlier_body(item, found)), None),
        "actions": [_acted(action, item) for action, item in trail],
        "links": links_of(view, ask.dashboard.links, found.key),
        "attempts_kept": [_attempt(each, with_traceback=ask.has(BODY)) for each in view.history],
    }
    if ask.has(BODY):
        data |= {
            "body": preview(view.body),
            "headers": headers,
            "headers_total": total_headers,
            "datacontenttype": view.message.datacontenttype if view.message else "",
        }
    return Page(
        template="letter.html",
        title=f"Dead letter {found.key[:12]}",
        data=data,
        view={
            "may_read": ask.has(BODY),
            "reason": view.reason[:4000],
            "target": ask.dashboard.targets.get(watched.name, "module:endpoint"),
            "as_new": ask.dashboard.options.send_as_new and (_has_no_identity(found) or _is_mismatch(found, known)),
        },
    )


async def _trail(ask: Ask, watched: WatchedEndpoint, found: DeadLetter) -> tuple[tuple[Action, ActionItem], ...]:
    """Return what operators did with the message of a letter. Before that, audit that this one sees its body."""
    async with watched.open_letters() as letters:
        log = watched.log_of(letters)
        if ask.has(BODY):
            await audit_view(ask, log, found)
        return await log.of_message(watched.name, found.message.identity, MOST_ACTIONS) if found.message else ()


def _acted(action: Action, item: ActionItem) -> dict[str, Any]:
    return {
        "position": action.position,
        "action": action.action,
        "actor": action.actor,
        "at": action.at,
        "outcome": item.outcome,
    }


async def body(ask: Ask) -> Response:
    """Return the body as a download that no browser opens as a page.

    With `of=message` it is what a retry sends. They differ if the message came as one CloudEvents document.
    """
    watched, found, _ = await _find(ask)
    async with watched.open_letters() as letters:
        await audit_view(ask, watched.log_of(letters), found)
    view = redacted(found, ask.dashboard.redact)
    content = view.message.body if view.message is not None and ask.asked("of") == "message" else view.body
    response = Response(content, media_type="application/octet-stream")
    response.headers["content-disposition"] = f'attachment; filename="{found.key}.bin"'
    return protect(response, policy=DOWNLOAD_POLICY)


async def _find(ask: Ask) -> tuple[WatchedEndpoint, DeadLetter, Knowledge | None]:
    """Return the letter of a key, if it belongs to an endpoint of this dashboard. Raises Refused."""
    key = ask.params["key"]
    problem: OnceOnlyError | None = None
    for watched in ask.dashboard.watched.values() if _KEY.fullmatch(key) else ():
        try:
            async with watched.open_letters() as letters:
                found = await letters.get(key)
            if found is not None and found.endpoint == watched.name:
                return watched, found, await _know(watched, found)
        except OnceOnlyError as error:  # another endpoint may have it
            problem = error
    if problem is not None:
        raise problem
    raise Refused(HTTPStatus.NOT_FOUND, "This dead letter does not exist. It may have been retried or deleted.")


def _has_no_identity(found: DeadLetter) -> bool:
    return found.message is None and not isinstance(found, UnreadableLetter)


async def _know(watched: WatchedEndpoint, found: DeadLetter) -> Knowledge | None:
    if found.message is None:
        return None
    try:
        async with watched.open_operations() as opened:
            return await _know_in(opened, found)
    except OnceOnlyError:  # the letters may be elsewhere: the page stands without this
        return None


async def _know_in(opened: OpenedOperations, found: DeadLetter) -> Knowledge | None:
    assert found.message is not None  # noqa: S101 - checked by the caller
    (known,) = await know(opened, [found.message])
    return known


def _claim(watched: WatchedEndpoint, found: DeadLetter, known: Knowledge | None) -> str:
    """Describe what a retry does, by what the store knows."""
    if isinstance(found, UnreadableLetter):
        return "This version cannot read it, so it cannot be retried. Export it, or retry it with the version that stored it."
    if found.message is None:
        return "It has no identity, so it cannot be retried. Let its sender send it again with an id."
    if found.finish_only:
        return "Its handler's changes are committed. A retry sends the remaining messages and does not run the handler."
    if known is None:
        return "The store does not answer, so it is not known whether the message was handled."
    if isinstance(watched.settings.deduplication, Off):
        return "This endpoint does not store which messages were handled, so a retry may handle it again."
    return _MISMATCH if _is_mismatch(found, known) else _RETRIES[known.claim]


def _conversation(watched: WatchedEndpoint, found: DeadLetter) -> str:
    """Return the key of the page with the message's story, or "" for an endpoint without a journal."""
    if watched.settings.journal is None or found.message is None:
        return ""
    return conversation_key(found.message).hex()


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
