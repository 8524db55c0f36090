"""Actions on single letters: edit and retry, send as new, restore.

An edit keeps source, id, time and token. So the first body that commits is the one that takes effect, and a copy with the
other body is a payload mismatch.
"""

from collections.abc import Callable
from functools import partial
from unicodedata import category

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from onceonly.assembly.deduplication import with_token
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import encode, is_structured
from onceonly.formats.records import encode_letter
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ItemOutcome
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import SetupError
from onceonly.model.headers import content_type_problem, headers_of, size_problem
from onceonly.model.identity import fingerprint, hash_of
from onceonly.model.limits import too_long, type_problem
from onceonly.model.message import Delivery, Headers, Message, Send, Unreadable
from onceonly.model.token import Token
from onceonly.operations.action_runner import LEASE_MS
from onceonly.operations.actions import (
    WITHDRAWN,
    ActionParts,
    Operator,
    begin,
    end,
    item_of,
    new_action,
    refusal,
    send_back,
    stored_letter,
)
from onceonly.operations.letters import find
from onceonly.ports.operators import ClaimState

EDIT_LIMIT = 1 << 20
"""Bytes of the longest body that can be edited in a form."""
FILE_LIMIT = 16 << 20
"""Bytes of the longest body that can be read from a file. The transport may have a lower limit."""

ONCE = "once"
"""The runner of an action on single letters, which is never continued."""
Check = Callable[[Message], str]
"""Returns what is wrong with a message that is to be sent; empty if its handler can decode it."""


class Edit(Struct, frozen=True, kw_only=True):
    """What changes. Source, id, time, token and the other extension attributes are locked."""

    body: bytes
    type: str | UnsetType = UNSET
    datacontenttype: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET

    def of(self, message: Message) -> Message:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(message, **{name: value for name, value in values.items() if value is not UNSET})

    def changed(self, message: Message) -> tuple[str, ...]:
        edited = self.of(message)
        return tuple(name for name in self.__struct_fields__ if getattr(edited, name) != getattr(message, name))

    def problem_of(self, message: Message) -> str:
        """Return why no message can be sent with these attributes and headers, or ""."""
        names = self.changed(message)
        edited = self.of(message)
        if "type" in names and (problem := type_problem(edited.type) if edited.type.strip() else "it has no message type"):
            return problem
        attributes = tuple((name, str(getattr(edited, name))) for name in ("subject", "datacontenttype") if name in names)
        if problem := too_long(attributes) or next((_control(each) for each in attributes if _control(each)), ""):
            return problem
        if "datacontenttype" in names and edited.datacontenttype and (problem := content_type_problem(edited.datacontenttype)):
            return f"the attribute `datacontenttype` {problem}"
        if is_structured(edited.datacontenttype) and edited.datacontenttype != message.datacontenttype:
            return "a body of this content type contains an id and a source, and these are locked"
        return _headers_problem(message.headers, edited.headers) if "headers" in names else ""


def _control(attribute: tuple[str, str]) -> str:
    name, value = attribute
    odd = any(category(letter) in ("Cc", "Cs") for letter in value)
    return f"the attribute `{name}` has control characters or is not valid Unicode. Use plain text of one line" if odd else ""


def _headers_problem(before: Headers, after: Headers) -> str:
    """Return what is wrong with the headers that are new. Those that came with the message were sent before."""
    try:
        for name, value in set(after) - set(before):
            headers_of({name: value})
    except ValueError as error:
        return str(error)
    return size_problem(after) or ""


def accept_anything(message: Message) -> str:  # noqa: ARG001 - a Check
    """Check nothing, where the endpoint with the handlers is not known."""
    return ""


def decoding_check(endpoint: Endpoint) -> Check:
    handlers = host_of(endpoint).handlers(settings=endpoint.settings)

    def problem(message: Message) -> str:
        headers, body = encode(Send(message=message, to=endpoint.name, alone=True))  # as a retry: its attributes name it
        read = handlers.read(Delivery(receipt=0, queue=endpoint.name, headers=headers, body=body))
        if isinstance(read, Unreadable):
            return read.reason
        if read.identity != message.identity:
            return "it would have another source and id: its body is read as a whole CloudEvent"
        return handlers.problem_of(read)

    return problem


def body_from_form(before: bytes, text: str) -> bytes:
    """Return the bytes of a body that was edited in a form: browsers send each line end as CR LF. Raises SetupError.

    Line ends become those of the body before. Nothing else is changed, so an unchanged text has the same bytes.
    """
    ends = line_ends(before)
    if len(ends) > 1:
        raise SetupError("the body has different line ends, which a form cannot keep: edit it with `onceonly dead edit`")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.replace("\n", next(iter(ends), "\n")).encode()


def line_ends(body: bytes) -> frozenset[str]:
    crlf, cr, lf = body.count(b"\r\n"), body.count(b"\r"), body.count(b"\n")
    found = {"\r\n": crlf, "\r": cr - crlf, "\n": lf - crlf}
    return frozenset(end for end, count in found.items() if count)


async def why_not_editable(parts: ActionParts, letter: DeadLetter, *, from_file: bool = False) -> str:
    """Return why a letter cannot be edited, or "". Raises CommitFailed, OutcomeUnknown.

    A body `from_file` replaces bodies that no form can show.
    """
    if why := _why_not_alone(letter) or ("" if from_file else _why_not_in_form(letter)):
        return why
    if parts.know is not None and letter.message is not None:
        (known,) = await parts.know([letter.message])
        if known.claim is ClaimState.HANDLED:
            return "its message was handled: another body would be a payload mismatch"
        if known.claim is ClaimState.TOO_OLD:
            return "it is behind the horizon: whether its message was handled is unknown"
    return ""


def _why_not_alone(letter: DeadLetter) -> str:
    if isinstance(letter, UnreadableLetter):
        return "this version cannot read it: export it or delete it"
    if letter.message is None:
        return "it has no identity: send it as a new message"
    if letter.finish_only:
        return "it is finish only: its handler's changes are committed, and its messages cannot be changed"
    return ""


def _why_not_in_form(letter: DeadLetter) -> str:
    assert letter.message is not None  # noqa: S101 - checked by the caller
    if len(letter.message.body) > EDIT_LIMIT:
        return f"its body has {len(letter.message.body):,} bytes; the limit is {EDIT_LIMIT:,}. Use `onceonly dead edit`"
    try:
        letter.message.body.decode()
    except UnicodeDecodeError:
        return "its body is not UTF-8: edit it with `onceonly dead edit`"
    return ""


def why_too_long(parts: ActionParts, body: bytes, *, from_file: bool) -> str:
    """Return why a body is too long to be sent, or ""."""
    limit = FILE_LIMIT if from_file else EDIT_LIMIT
    if parts.transport is not None:
        limit = min(limit, parts.transport.traits.max_body)
    return f"the edited body has {len(body):,} bytes; the limit is {limit:,}. Shorten it" if len(body) > limit else ""


async def edit(  # noqa: PLR0913 - one argument for each part of the action, by name
    parts: ActionParts,
    by: Operator,
    key: str,
    change: Edit,
    *,
    reason: str,
    check: Check = accept_anything,
    from_file: bool = False,
) -> Action:
    """Send the message of a letter with changes, and delete the letter. The letter can be restored for 7 days.

    A body `from_file` may be any bytes, up to 16 MiB; one from a form has at most 1 MiB.
    Raises SetupError if it is refused, which is stored as well; CommitFailed, OutcomeUnknown.
    """
    letter = await find(parts.letters, key)
    refused = partial(refusal, parts, by, ActionKind.EDIT, letter=letter)
    if why := await why_not_editable(parts, letter, from_file=from_file):
        raise await refused(why=f"letter {letter.key} cannot be edited: {why}")
    assert letter.message is not None  # noqa: S101 - checked above
    if why := why_too_long(parts, change.body, from_file=from_file):
        raise await refused(why=why)
    if not reason.strip():
        raise await refused(why="an edit needs a reason, which is stored with it: state one")
    if problem := change.problem_of(letter.message):
        raise await refused(why="the edited message cannot be sent", detail=problem)
    edited = change.of(letter.message)
    if problem := check(edited):
        raise await refused(why="the edited message cannot be handled", detail=problem)
    names = ", ".join(change.changed(letter.message))
    return await _send_one(
        parts, by, ActionKind.EDIT, letter=letter, message=edited, reason=reason, detail=f"changed: {names}" if names else ""
    )


async def send_as_new(
    parts: ActionParts, by: Operator, key: str, *, reason: str, type_: str = "", check: Check = accept_anything
) -> Action:
    """Send the body of a letter as a new message, and delete the letter: of a payload mismatch, or without identity.

    The id is a hash of the letter's key and the action. Late copies of the old id are handled too. `type_` is needed where the
    letter has none. Raises SetupError if it is refused, which is stored as well; CommitFailed, OutcomeUnknown.
    """
    letter = await find(parts.letters, key)
    refused = partial(refusal, parts, by, ActionKind.SEND_AS_NEW, letter=letter)
    if isinstance(letter, UnreadableLetter):
        raise await refused(why=f"this version cannot read letter {letter.key}: export it or delete it")
    if letter.finish_only:
        raise await refused(why=f"letter {letter.key} is finish only: retry it, so that its pending messages are sent")
    if letter.message is not None:
        (known,) = await parts.know([letter.message]) if parts.know is not None else (None,)
        is_mismatch = (
            known is not None and known.claim is ClaimState.HANDLED and known.fingerprint != letter.message.fingerprint
        )
        if not is_mismatch:
            raise await refused(why=f"letter {letter.key} is not a payload mismatch: retry it, so that it is handled once")
    if not reason.strip():
        raise await refused(why="sending as new needs a reason, which is stored with it: state one")
    old = letter.message or Message(source=letter.endpoint, id="-", type=type_, body=letter.body)
    kind = type_ or old.type
    if not kind:
        raise await refused(why=f"letter {letter.key} has no message type: name one")
    id_ = hash_of(b"send as new", letter.key.encode(), kind.encode()).hex()
    message = Message(
        source=old.source, id=id_, type=kind, body=old.body, subject=old.subject, datacontenttype=old.datacontenttype
    )
    if parts.tokens is not None:
        message = with_token(message)
    if problem := check(message):
        raise await refused(why="the new message cannot be handled", detail=problem)
    return await _send_one(parts, by, ActionKind.SEND_AS_NEW, letter=letter, message=message, reason=reason)


async def _send_one(  # noqa: PLR0913 - one argument for each part of the action, by name
    parts: ActionParts,
    by: Operator,
    kind: ActionKind,
    *,
    letter: DeadLetter,
    message: Message,
    reason: str,
    detail: str = "",
) -> Action:
    if parts.transport is None:
        raise SetupError("sending needs the transport of the endpoint")
    now = parts.environment.clock.now
    action = new_action(by, kind, letter.endpoint, ActionScope(keys=(letter.key,)), reason=reason)
    action = await begin(parts.log, replace(action, total=1, reached=1, runner=ONCE, lease=now() + LEASE_MS))
    item = replace(item_of(action.position, 1, letter, now=now(), whole=True), after=message.fingerprint)
    if kind is ActionKind.SEND_AS_NEW:
        item = replace(item, stored=encode_letter(replace(letter, message=message)))
    await parts.log.plan(action, [item])
    # Crash here: 1 item planned, nothing sent, 2 the letter is there, 3 the operator sees the planned item and repeats it.
    if kind is ActionKind.SEND_AS_NEW and parts.tokens is not None:
        await parts.tokens.add([Token(message.token, letter.endpoint)])
    sent = await send_back(parts, [letter], edited={letter.key: message})
    outcome, problem = sent.outcomes[letter.key]
    done = int(outcome is ItemOutcome.WAITING)
    item = replace(item, outcome=outcome, detail=problem or detail, at=now())
    return await end(parts.log, replace(action, done=done, kept=1 - done), [item])


async def restore(parts: ActionParts, by: Operator, position: int, key: str = "", *, reason: str = "") -> Action:
    """Store the letters again that an action deleted or edited, or one of them, with their keys and their times.

    Tokens that were withdrawn become live again. Letters can be restored for 7 days. A letter that is there is not changed.
    Raises SetupError if there is nothing to restore, CommitFailed, OutcomeUnknown.
    """
    found = await parts.log.get(position)
    if found is None or found.action not in (ActionKind.DELETE, ActionKind.EDIT):
        raise SetupError(f"action {position} is not a deletion or an edit: `onceonly dead actions module:endpoint` lists them")
    chosen = [item for item in await _stored_items(parts, position) if item.letter.startswith(key)]
    letters = [(item, letter) for item in chosen if (letter := stored_letter(item, "not restored")) is not None]
    items = [item for item, _ in letters]
    if chosen and not items:
        raise SetupError(f"the stored letters of action {position} cannot be read: see `stored data unreadable` in the log")
    if not items:
        raise SetupError(f"action {position} has no letter to restore: letters are stored for 7 days")
    now = parts.environment.clock.now
    scope = ActionScope(keys=tuple(item.letter for item in items))
    action = new_action(by, ActionKind.RESTORE, found.endpoint, scope, reason=reason or f"action {position}")
    action = await begin(parts.log, replace(action, total=len(items), runner=ONCE, lease=now() + LEASE_MS))
    restored = []
    for number, (item, letter) in enumerate(letters, 1):
        if item.detail == WITHDRAWN and parts.tokens is not None and letter.message:
            await parts.tokens.add([Token(letter.message.token, letter.endpoint)])
        await parts.letters.add(letter)
        restored.append(
            replace(item, action=action.position, number=number, outcome=ItemOutcome.RESTORED, stored=b"", at=now())
        )
    await parts.log.plan(action, [replace(each, stored_until=0) for each in restored])
    return await end(parts.log, replace(action, done=len(restored)))


async def _stored_items(parts: ActionParts, position: int) -> list[ActionItem]:
    found: list[ActionItem] = []
    while page := await parts.log.items(position, after=found[-1].number if found else 0, limit=1000):
        found += page
    return [item for item in found if item.stored and item.outcome is not ItemOutcome.KEPT]


def is_earlier_body(item: ActionItem, letter: DeadLetter) -> bool:
    """Return whether a letter has the body that an edit replaced: a late copy, which pages annotate."""
    return letter.message is not None and item.before == fingerprint(letter.message.body) != item.after
