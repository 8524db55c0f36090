"""Edit and retry: a form with the message of one dead letter, the difference, and the edited message."""

from http import HTTPStatus

from msgspec import Struct
from msgspec.structs import replace

from onceonly.dashboard.access import BODY
from onceonly.dashboard.acting import open_parts
from onceonly.dashboard.asking import Answer, Ask
from onceonly.dashboard.bodies import DiffLine, diff
from onceonly.dashboard.fields import LABELS, NAMES, FormFields, edit_of, fields_of
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.redaction import redacted
from onceonly.dashboard.rendering import Page, Verbatim
from onceonly.dashboard.text import visible
from onceonly.dashboard.views.confirming import MOST_REASON, Scope, audit_view, operator_of, report_refused, to_action, use_form
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.message import Message
from onceonly.operations.actions import ActionParts
from onceonly.operations.editing import Check, Edit, body_from_form, decoding_check, edit, line_ends, why_not_editable

_NOT_SENT = "The edited message cannot be sent"


class Draft(Struct, frozen=True, kw_only=True):
    """What a form shows: the body, the other fields, the reason, and what is wrong with it."""

    text: str
    fields: FormFields
    reason: str = ""
    problem: str = ""


async def edit_form(ask: Ask) -> Page:
    """Show the message of a letter in a form, or why it cannot be edited."""
    scope = Scope(ask)
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(ask, parts, letter):
            return _edit_page(ask, scope, why=why)
        await audit_view(ask, parts.log, letter)
    message = message_of(letter)
    return _edit_page(ask, scope, Draft(text=message.body.decode(), fields=_fields(ask, letter)))


async def save_edit(ask: Ask) -> Answer:
    """Show the difference first; then send the edited message."""
    scope, sends = Scope(ask), ask.sent("step") == "send"
    async with open_parts(scope.watched) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(ask, parts, letter):
            if sends:
                raise Refused(HTTPStatus.CONFLICT, f"It cannot be edited: {why}.")
            return _edit_page(ask, scope, why=why)
        message, before = message_of(letter), _fields(ask, letter)
        draft = Draft(text=ask.sent("body"), fields=before.sent(ask.sent), reason=ask.sent("reason").strip()[:MOST_REASON])
        check = decoding_check(scope.watched.endpoint)
        try:
            change = _change(message, before, draft, check)
        except UnusableEdit as error:
            if sends:
                await report_refused(ask, Refused(HTTPStatus.BAD_REQUEST, error.words))
            return _edit_page(ask, scope, replace(draft, problem=str(error)))
        if not sends:
            return _edit_page(ask, scope, draft, lines=_changes(message, before, draft.fields, change))
        await use_form(ask, parts.log)
        try:
            stored = await edit(parts, operator_of(ask), letter.key, change, reason=draft.reason, check=check)
        except SetupError as error:
            raise Refused(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
        ask.dashboard.auditor.ended(stored)
    return to_action(ask, scope.watched, stored.position)


class UnusableEdit(Exception):
    """What is wrong with a form. `words` are without its content, and can be stored."""

    def __init__(self, words: str, detail: str = "") -> None:
        super().__init__(f"{words}: {detail}" if detail else f"{words}.")
        self.words = f"{words}."


def _change(message: Message, before: FormFields, draft: Draft, check: Check) -> Edit:
    """Return the edit that a form asks for. Raises UnusableEdit."""
    if not draft.reason:
        raise UnusableEdit("State a reason: it is stored with the edit")
    try:
        change = edit_of(before, draft.fields, body_from_form(message.body, draft.text))
        problem = change.problem_of(message)
    except ValueError as error:
        raise UnusableEdit(_NOT_SENT, str(error)) from error
    if problem:
        raise UnusableEdit(_NOT_SENT, problem)
    if problem := check(change.of(message)):
        raise UnusableEdit("The handler could not read the edited message", problem)
    return change


def _changes(message: Message, before: FormFields, after: FormFields, change: Edit) -> list[DiffLine]:
    """Return the changed lines of attributes and headers, then those of the body."""
    fields = diff(before.text, after.text)
    body = diff(message.body.decode(), change.body.decode())
    return [*fields, *body] if fields else body


def _edit_page(
    ask: Ask, scope: Scope, draft: Draft | None = None, *, why: str = "", lines: list[DiffLine] | None = None
) -> Page:
    same = lines is not None and not any(line.sign for line in lines)
    problem = draft.problem if draft is not None else ""
    view: dict[str, object] = {}
    if draft is not None:
        view = {
            "text": Verbatim(draft.text),
            "attributes": [(NAMES[name], LABELS[name], Verbatim(value)) for name, value in draft.fields.attributes.items()],
            "headers": Verbatim(draft.fields.headers),
            "locked": [name for name, _ in draft.fields.locked],
            "reason": draft.reason,
        }
    return Page(
        template="edit.html",
        title="Edit and retry",
        data={"endpoint": scope.watched.name, "key": scope.key, "why_not": why, "problem": problem, "unchanged": same},
        view={
            **view,
            "importable": ask.has(BODY),
            "lines": lines or [],
            "reviewed": lines is not None,
            "nonce": ask.dashboard.nonces.issue(),
            "off": scope.watched.settings.plan.retention is None,
        },
        status=HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK,
    )


def message_of(letter: DeadLetter) -> Message:
    """Return the message of a letter. Raises Refused if it has no identity."""
    if letter.message is None:
        raise Refused(HTTPStatus.CONFLICT, "It has no identity, so it cannot be edited.")
    return letter.message


def _fields(ask: Ask, letter: DeadLetter) -> FormFields:
    message = message_of(letter)
    return fields_of(message, redacted(letter, ask.dashboard.redact).message or message)


async def _why_not(ask: Ask, parts: ActionParts, letter: DeadLetter) -> str:
    if not ask.has(BODY):
        return "the form shows the body, and that needs the role body"
    if why := await why_not_editable(parts, letter):
        return why
    message = message_of(letter)
    shown = redacted(letter, ask.dashboard.redact).message
    if shown is None or shown.body != message.body:
        return "redact= hides a part of its body, and the form shows all of it"
    text = message.body.decode()
    if len(line_ends(message.body)) > 1 or visible(text) != text.replace("\r\n", "\n"):
        return "its body has characters that a form cannot keep: import it from a file"
    return ""
