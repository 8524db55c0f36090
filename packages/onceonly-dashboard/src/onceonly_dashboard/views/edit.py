"""Edit and retry: a form with the message of one dead letter, the difference, and the edited message."""

from collections.abc import Callable
from difflib import SequenceMatcher
from http import HTTPStatus

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.headers import MOST_HEADER_BYTES
from onceonly.model.message import Headers, Message
from onceonly.operations.actions import ActionParts
from onceonly.operations.edits import Check, Edit, body_from_form, decoding_check, edit, line_ends, why_not_editable
from onceonly.operations.previews import is_secret
from onceonly_dashboard.access import BODY
from onceonly_dashboard.action_worker import open_parts
from onceonly_dashboard.gate import Refusal
from onceonly_dashboard.page_request import Answer, PageContent, PageRequest, PageServices
from onceonly_dashboard.pages import Verbatim, visible
from onceonly_dashboard.redaction import redacted
from onceonly_dashboard.views.confirmation import (
    MOST_REASON,
    LetterScope,
    audit_view,
    operator_of,
    report_refused,
    to_action,
    use_form,
)

LABELS = {"type": "Type", "subject": "Subject", "datacontenttype": "Content type"}
"""The attributes that can be changed, with their labels. Source, id, time, token and the other extensions are locked."""
NAMES = {"type": "message_type", "subject": "subject", "datacontenttype": "datacontenttype"}
"""Their names in the form: `type` is the filter of a group."""
DIFF_CONTEXT = 3
MOST_DIFF_LINES = 2000
_NOT_SENT = "The edited message cannot be sent"


class FormFields(Struct, frozen=True, kw_only=True):
    """What a form has in addition to the body.

    `attributes` are the values by name. One that pages hide, or that a form cannot keep, is not there. `headers` are lines of
    names and values, `locked` are headers that stay as they are for the same reasons.
    """

    attributes: dict[str, str]
    headers: str
    locked: Headers

    @property
    def text(self) -> str:
        """All of it as lines, to be compared."""
        return "\n".join([*(f"{LABELS[name].lower()}: {value}" for name, value in self.attributes.items()), self.headers])

    def updated(self, value_of: Callable[[str, str], str]) -> "FormFields":
        """Return the fields with the values of a form. A field that the form does not have stays as it is."""
        attributes = {name: value_of(NAMES[name], value).strip() for name, value in self.attributes.items()}
        lines = value_of("headers", self.headers).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        headers = "\n".join(line.strip() for line in lines if line.strip())
        return FormFields(attributes=attributes, headers=headers, locked=self.locked)


class DiffLine(Struct, frozen=True):
    """One line of a difference: `sign` is "+", "-", or empty for a line that is the same."""

    sign: str
    text: str


class Draft(Struct, frozen=True, kw_only=True):
    """What a form shows: the body, the other fields, the reason, and what is wrong with it."""

    text: str
    fields: FormFields
    reason: str = ""
    problem: str = ""


async def edit_form(request: PageRequest, services: PageServices) -> PageContent:
    """Show the message of a letter in a form, or why it cannot be edited."""
    scope = LetterScope(request, services)
    async with open_parts(scope.probes) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(request, services, parts, letter):
            return _edit_page(services, scope, why=why)
        await audit_view(request, services, parts.log, letter)
    message = message_of(letter)
    return _edit_page(services, scope, Draft(text=message.body.decode(), fields=_fields(services, letter)))


async def save_edit(request: PageRequest, services: PageServices) -> Answer:
    """Show the difference first; then send the edited message."""
    scope, sends = LetterScope(request, services), request.form_value("step") == "send"
    async with open_parts(scope.probes) as parts:
        letter = await scope.letter(parts.letters)
        if why := await _why_not(request, services, parts, letter):
            if sends:
                raise Refusal(HTTPStatus.CONFLICT, f"It cannot be edited: {why}.")
            return _edit_page(services, scope, why=why)
        message, before = message_of(letter), _fields(services, letter)
        draft = Draft(
            text=request.form_value("body"),
            fields=before.updated(request.form_value),
            reason=request.form_value("reason").strip()[:MOST_REASON],
        )
        check = decoding_check(scope.probes.endpoint)
        try:
            change = _change(message, before, draft, check)
        except UnusableEdit as error:
            if sends:
                await report_refused(request, services, Refusal(HTTPStatus.BAD_REQUEST, error.summary))
            return _edit_page(services, scope, replace(draft, problem=str(error)))
        if not sends:
            return _edit_page(services, scope, draft, lines=_changes(message, before, draft.fields, change))
        await use_form(request, services, parts.log)
        try:
            stored = await edit(parts, operator_of(request, services), letter.key, change, reason=draft.reason, check=check)
        except SetupError as error:
            raise Refusal(HTTPStatus.CONFLICT, str(error), is_stored=True) from error
        services.auditor.ended(stored)
    return to_action(request, scope.probes, stored.position)


class UnusableEdit(Exception):
    """What is wrong with a form. `summary` is without its content, so it can be stored."""

    def __init__(self, summary: str, detail: str = "") -> None:
        super().__init__(f"{summary}: {detail}" if detail else f"{summary}.")
        self.summary = f"{summary}."


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
    services: PageServices,
    scope: LetterScope,
    draft: Draft | None = None,
    *,
    why: str = "",
    lines: list[DiffLine] | None = None,
) -> PageContent:
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
    return PageContent(
        template="edit.html",
        title="Edit and retry",
        data={"endpoint": scope.probes.name, "key": scope.key, "why_not": why, "problem": problem, "unchanged": same},
        view={
            **view,
            "lines": lines or [],
            "reviewed": lines is not None,
            "nonce": services.nonces.issue(),
            "off": scope.probes.settings.plan.retention is None,
        },
        status=HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK,
    )


def message_of(letter: DeadLetter) -> Message:
    """Return the message of a letter. Raises Refusal if it has no identity."""
    if letter.message is None:
        raise Refusal(HTTPStatus.CONFLICT, "It has no identity, so it cannot be edited.")
    return letter.message


def _fields(services: PageServices, letter: DeadLetter) -> FormFields:
    message = message_of(letter)
    return fields_of(message, redacted(letter, services.options.redact).message or message)


async def _why_not(request: PageRequest, services: PageServices, parts: ActionParts, letter: DeadLetter) -> str:
    if BODY not in request.roles:
        return "the form shows the body, and that needs the role body"
    if why := await why_not_editable(parts, letter):
        return why
    message = message_of(letter)
    shown = redacted(letter, services.options.redact).message
    if shown is None or shown.body != message.body:
        return "redact= hides a part of its body, and the form shows all of it"
    text = message.body.decode()
    if len(line_ends(message.body)) > 1 or visible(text) != text.replace("\r\n", "\n"):
        return "its body has characters that a form cannot keep: edit it with `onceonly dead edit`"
    return ""


def fields_of(message: Message, shown: Message) -> FormFields:
    """Return the fields of a message. `shown` is what may be shown of it."""
    attributes = {
        name: value
        for name in LABELS
        if _fits(value := str(getattr(message, name))) and value == getattr(shown, name)  # what `redact` changed is hidden
    }
    free = tuple(pair for pair in message.headers if pair in shown.headers and not is_secret(pair[0]) and _fits_line(pair))
    text = "\n".join(f"{name}: {value}" for name, value in free)
    if len(text.encode()) > MOST_HEADER_BYTES:
        free, text = (), ""
    return FormFields(attributes=attributes, headers=text, locked=tuple(pair for pair in message.headers if pair not in free))


def edit_of(before: FormFields, after: FormFields, body: bytes) -> Edit:
    """Return the edit that a form asks for. Raises ValueError, with the reason."""
    attributes = {name: value if value != before.attributes[name] else UNSET for name, value in after.attributes.items()}
    headers: Headers | UnsetType = UNSET
    if after.headers != before.headers:
        headers = (*after.locked, *map(_pair, after.headers.split("\n") if after.headers else ()))
        own = {name.lower() for name, _ in headers[len(after.locked) :]}
        if taken := sorted({name for name, _ in after.locked if name.lower() in own}):
            raise ValueError(f"the header {taken[0]!r} is hidden, so the form cannot change it")
    return Edit(body=body, headers=headers, **attributes)


def _fits(value: str) -> bool:
    return value == value.strip() and "\n" not in value and visible(value) == value


def _fits_line(pair: tuple[str, str]) -> bool:
    name, value = pair
    return bool(name) and ":" not in name and _fits(name) and _fits(value)


def _pair(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError(f"{line!r:.100} is not a header: write `name: value`, one on each line")
    return name.strip(), value.strip()


def diff(before: str, after: str) -> list[DiffLine]:
    """Return the changed lines with three lines around them. Beyond 2,000 lines each text is shown as a whole."""
    old, new = before.split("\n"), after.split("\n")
    if max(len(old), len(new)) > MOST_DIFF_LINES:
        return [] if old == new else [*(DiffLine("-", line) for line in old), *(DiffLine("+", line) for line in new)]
    found: list[DiffLine] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(DIFF_CONTEXT):
        for tag, start, end, new_start, new_end in group:
            found += [DiffLine("" if tag == "equal" else "-", line) for line in old[start:end]]
            if tag != "equal":
                found += [DiffLine("+", line) for line in new[new_start:new_end]]
    return found
