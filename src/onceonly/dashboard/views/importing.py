"""Import of a changed body from a file: for bodies that no form can show."""

from hashlib import sha256
from http import HTTPStatus

from msgspec import Struct

from onceonly.dashboard.access import BODY
from onceonly.dashboard.acting import open_parts
from onceonly.dashboard.asking import Answer, Ask
from onceonly.dashboard.bodies import SHOWN_BYTES, DiffLine, diff
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.redaction import redacted
from onceonly.dashboard.rendering import Page
from onceonly.dashboard.views.confirming import MOST_REASON, Scope, audit_view, operator_of, to_action, use_form
from onceonly.dashboard.views.editing import message_of
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.operations.actions import ActionParts
from onceonly.operations.editing import Edit, decoding_check, edit, why_not_editable, why_too_long

OTHER_FILE = "This is not the file that was reviewed. Review it first."


class Review(Struct, frozen=True, kw_only=True):
    """What is shown of a file: its size and its SHA-256, and the difference where both bodies are short texts."""

    size: int
    sha256: str
    unchanged: bool
    lines: list[DiffLine] | None


async def import_form(ask: Ask) -> Page:
    """Ask for a file, or show why the letter cannot be edited."""
    scope = Scope(ask)
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        return _page(ask, scope, letter, why=await _why_not(ask, parts, letter))


async def import_body(ask: Ask) -> Answer:
    """Show what the file changes. When the same file is sent again, send the message with this body."""
    scope, sends = Scope(ask), ask.sent("step") == "send"
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(ask, parts, letter):
            raise Refused(HTTPStatus.CONFLICT, f"It cannot be edited: {why}.")
        body, reason = ask.files.get("file"), ask.sent("reason").strip()[:MOST_REASON]
        if body is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "Choose a file with the new body.")
        if not reason:
            raise Refused(HTTPStatus.BAD_REQUEST, "State a reason: it is stored with the edit.")
        if why := why_too_long(parts, body, from_file=True):
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{why[:1].upper()}{why[1:]}.")
        check = decoding_check(scope.watched.endpoint)
        if not sends:
            problem = check(Edit(body=body).of(message_of(letter)))
            if not problem and not _is_hidden(ask, letter):
                await audit_view(ask, parts.log, letter)
            return _page(ask, scope, letter, reason=reason, problem=problem, review=_review(ask, letter, body))
        if ask.sent("sha256") != sha256(body).hexdigest():
            raise Refused(HTTPStatus.CONFLICT, OTHER_FILE)
        await use_form(ask, parts.log)
        try:
            change = Edit(body=body)
            stored = await edit(parts, operator_of(ask), letter.key, change, reason=reason, check=check, from_file=True)
        except SetupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
        ask.dashboard.auditor.ended(stored)
    return to_action(ask, scope.watched, stored.position)


def _page(  # noqa: PLR0913 - what the page shows, by name
    ask: Ask,
    scope: Scope,
    letter: DeadLetter,
    *,
    why: str = "",
    reason: str = "",
    problem: str = "",
    review: Review | None = None,
) -> Page:
    reviewed = review is not None and not problem
    return Page(
        template="import.html",
        title="Import a body",
        data={
            "endpoint": scope.watched.name,
            "key": letter.key,
            "why_not": why,
            "problem": problem,
            "before": 0 if why else len(message_of(letter).body),
            "after": review.size if review is not None and reviewed else None,
            "sha256": review.sha256 if review is not None and reviewed else "",
            "unchanged": review is not None and review.unchanged,
        },
        view={
            "reason": reason,
            "reviewed": reviewed,
            "lines": review.lines if review is not None and reviewed else None,
            "hidden": not why and _is_hidden(ask, letter),
            "nonce": ask.dashboard.nonces.issue(),
            "off": scope.watched.settings.plan.retention is None,
        },
        status=HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK,
    )


def _review(ask: Ask, letter: DeadLetter, body: bytes) -> Review:
    before, lines = message_of(letter).body, None
    if max(len(before), len(body)) <= SHOWN_BYTES and not _is_hidden(ask, letter):
        try:
            lines = diff(before.decode(), body.decode())
        except UnicodeDecodeError:
            lines = None
    return Review(size=len(body), sha256=sha256(body).hexdigest(), unchanged=body == before, lines=lines)


def _is_hidden(ask: Ask, letter: DeadLetter) -> bool:
    """Return whether `redact=` hides a part of the body."""
    shown = redacted(letter, ask.dashboard.redact).message
    return shown is None or shown.body != message_of(letter).body


async def _why_not(ask: Ask, parts: ActionParts, letter: DeadLetter) -> str:
    if not ask.has(BODY):
        return "its body is needed for that, and so is the role body"
    return await why_not_editable(parts, letter, from_file=True)
