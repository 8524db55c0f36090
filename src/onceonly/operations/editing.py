"""Actions on single letters: edit and retry, send as new, restore.

An edit keeps source, id, time and token. So the first body that commits is the one that takes effect, and a copy with the
other body is a payload mismatch.
"""

from collections.abc import Callable
from functools import partial

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from onceonly.assembly.token_issuer import with_token
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import encode
from onceonly.formats.records import decode_letter, encode_letter
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.identity import fingerprint, hash_of
from onceonly.model.message import Delivery, Headers, Message, Send, Unreadable
from onceonly.model.token import Token
from onceonly.operations.actions import WITHDRAWN, ActionParts, Operator, item_of, refuse
from onceonly.operations.audit import log_ended, log_started
from onceonly.operations.letters import TOO_SLOW, WayBack, find, send_page
from onceonly.ports.lookup import ClaimState

EDIT_LIMIT = 1 << 20
"""Bytes of the longest body that can be edited."""

Check = Callable[[Message], str]
"""Returns what is wrong with a message that is to be sent; empty if its handler can decode it."""


class Edit(Struct, frozen=True, kw_only=True):
    """What changes. Source, id, time, token and the other extension attributes are locked."""

    body: bytes
    datacontenttype: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    headers: Headers | UnsetType = UNSET

    def of(self, message: Message) -> Message:
        """Return the message with these changes."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(message, **{name: value for name, value in values.items() if value is not UNSET})


def accept_anything(message: Message) -> str:  # noqa: ARG001 - a Check
    """Check nothing, where the endpoint with the handlers is not known."""
    return ""


def decoding_check(endpoint: Endpoint) -> Check:
    """Return the check that an endpoint's handlers can decode a message."""
    handlers = host_of(endpoint).handlers(settings=endpoint.settings)

    def problem(message: Message) -> str:
        headers, body = encode(Send(message=message, to=endpoint.name))
        read = handlers.read(Delivery(receipt=0, queue=endpoint.name, headers=headers, body=body))
        return read.reason if isinstance(read, Unreadable) else handlers.problem_of(read)

    return problem


def body_from_form(before: bytes, text: str) -> bytes:
    """Return the bytes of a body that was edited in a form: browsers send each line end as CR LF. Raises SetupError.

    Line ends become those of the body before. Nothing else is changed, so an unchanged text has the same bytes.
    """
    ends = line_ends(before)
    if len(ends) > 1:
        raise SetupError("the body has different line ends, which a form cannot keep: export the letter and import it instead")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return lines.replace("\n", next(iter(ends), "\n")).encode()


def line_ends(body: bytes) -> frozenset[str]:
    """Return the kinds of line ends in a body."""
    crlf, cr, lf = body.count(b"\r\n"), body.count(b"\r"), body.count(b"\n")
    found = {"\r\n": crlf, "\r": cr - crlf, "\n": lf - crlf}
    return frozenset(end for end, count in found.items() if count)


async def why_not_editable(parts: ActionParts, letter: DeadLetter) -> str:
    """Return why a letter cannot be edited, or "". Raises CommitFailed, OutcomeUnknown."""
    if why := _why_not_alone(letter):
        return why
    if parts.know is not None and letter.message is not None:
        (known,) = await parts.know([letter.message])
        if known.claim is ClaimState.HANDLED:
            return "its message was handled: another body would be a payload mismatch"
        if known.claim is ClaimState.TOO_OLD:
            return "it is behind the horizon: whether its message was handled is unknown"
    return ""


def _why_not_alone(letter: DeadLetter) -> str:
    """Return what in the letter itself prevents an edit."""
    if letter.message is None:
        return "it has no identity: send it as a new message"
    if letter.finish_only:
        return "it is finish only: its handler's changes are committed, and its messages cannot be changed"
    if len(letter.message.body) > EDIT_LIMIT:
        return f"its body has {len(letter.message.body):,} bytes; the limit is {EDIT_LIMIT:,}. Export it and import it instead"
    try:
        letter.message.body.decode()
    except UnicodeDecodeError:
        return "its body is not UTF-8: export it and import it instead"
    return ""


async def edit(
    parts: ActionParts, by: Operator, key: str, change: Edit, *, reason: str, check: Check = accept_anything
) -> Action:
    """Send the message of a letter with changes, and delete the letter. The letter can be restored for 7 days.

    Raises SetupError if it is refused, which is stored as well; CommitFailed, OutcomeUnknown.
    """
    letter = await find(parts.letters, key)
    say_no = partial(refuse, parts, by, ActionKind.EDIT, letter=letter)
    if why := await why_not_editable(parts, letter):
        raise await say_no(why=f"letter {letter.key} cannot be edited: {why}")
    assert letter.message is not None  # noqa: S101 - checked above
    if len(change.body) > EDIT_LIMIT:
        raise await say_no(why=f"the edited body has {len(change.body):,} bytes; the limit is {EDIT_LIMIT:,}. Shorten it")
    if not reason.strip():
        raise await say_no(why="an edit needs a reason, which is stored with it: state one")
    edited = change.of(letter.message)
    if problem := check(edited):
        raise await say_no(why="the edited message cannot be handled", detail=problem)
    return await _send_one(parts, by, ActionKind.EDIT, letter=letter, message=edited, reason=reason)


async def send_as_new(
    parts: ActionParts, by: Operator, key: str, *, reason: str, type_: str = "", check: Check = accept_anything
) -> Action:
    """Send the body of a letter as a new message, and delete the letter: of a payload mismatch, or without identity.

    The id is a hash of the letter's key and the action. Late copies of the old id are handled too. `type_` is needed where the
    letter has none. Raises SetupError if it is refused, which is stored as well; CommitFailed, OutcomeUnknown.
    """
    letter = await find(parts.letters, key)
    say_no = partial(refuse, parts, by, ActionKind.SEND_AS_NEW, letter=letter)
    if letter.finish_only:
        raise await say_no(why=f"letter {letter.key} is finish only: retry it, so that its pending messages are sent")
    if letter.message is not None:
        (known,) = await parts.know([letter.message]) if parts.know is not None else (None,)
        is_mismatch = (
            known is not None and known.claim is ClaimState.HANDLED and known.fingerprint != letter.message.fingerprint
        )
        if not is_mismatch:
            raise await say_no(why=f"letter {letter.key} is not a payload mismatch: retry it, so that it is handled once")
    if not reason.strip():
        raise await say_no(why="sending as new needs a reason, which is stored with it: state one")
    old = letter.message or Message(source=letter.endpoint, id="-", type=type_, body=letter.body)
    kind = type_ or old.type
    if not kind:
        raise await say_no(why=f"letter {letter.key} has no message type: name one")
    id_ = hash_of(b"send as new", letter.key.encode(), kind.encode()).hex()
    message = Message(
        source=old.source, id=id_, type=kind, body=old.body, subject=old.subject, datacontenttype=old.datacontenttype
    )
    if parts.tokens is not None:
        message = with_token(message)
    if problem := check(message):
        raise await say_no(why="the new message cannot be handled", detail=problem)
    return await _send_one(parts, by, ActionKind.SEND_AS_NEW, letter=letter, message=message, reason=reason)


async def _send_one(
    parts: ActionParts, by: Operator, kind: ActionKind, *, letter: DeadLetter, message: Message, reason: str
) -> Action:
    if parts.transport is None:
        raise SetupError("sending needs the transport of the endpoint")
    now, runner = parts.environment.clock.now, "once"
    action = await parts.log.begin(
        Action(
            actor=by.name,
            method=by.method,
            action=kind,
            endpoint=letter.endpoint,
            scope=ActionScope(keys=(letter.key,), form=by.form),
            reason=reason,
            total=1,
            reached=1,
            runner=runner,
            lease=now() + 30_000,
        )
    )
    log_started(action)
    slim = item_of(action.position, 1, letter, now=now(), whole=True)
    item = replace(slim, after=message.fingerprint)
    if kind is ActionKind.SEND_AS_NEW:
        item = replace(item, stored=encode_letter(replace(letter, message=message)))
    await parts.log.plan(action, [item])
    # Crash here: 1 item planned, nothing sent, 2 the letter is there, 3 the operator sees the planned item and repeats it.
    if kind is ActionKind.SEND_AS_NEW and parts.tokens is not None:
        await parts.tokens.add([Token(message.token, letter.endpoint)])
    way = WayBack(
        transport=parts.transport,
        clock=parts.environment.clock,
        head_start=parts.head_start,
        edited={letter.key: message},
        cut=parts.cut,
    )
    sendable = letter if letter.message is not None else replace(letter, message=message)
    way = way if letter.message is not None else replace(way, edited={sendable.key: message})
    sent = await send_page([sendable], parts.letters, way)
    if sent.taken and sent.deleted and sendable.key != letter.key:
        await parts.letters.remove([letter.key])
    outcome = ItemOutcome.WAITING if sent.taken else ItemOutcome.KEPT
    detail = "" if sent.taken and sent.deleted else TOO_SLOW if sent.taken else next((why for _, why in sent.kept), "")
    done = int(bool(sent.taken))
    ended = replace(action, state=ActionState.DONE, done=done, kept=1 - done, lease=0)
    await parts.log.settle(ended, [replace(item, outcome=outcome, detail=detail, at=now())])
    log_ended(ended)
    return ended


async def restore(parts: ActionParts, by: Operator, position: int, key: str = "", *, reason: str = "") -> Action:
    """Store the letters again that an action deleted or edited, or one of them, with their keys and their times.

    Tokens that were withdrawn become live again. Letters can be restored for 7 days. A letter that is there is not changed.
    Raises SetupError if there is nothing to restore, CommitFailed, OutcomeUnknown.
    """
    found = await parts.log.get(position)
    if found is None or found.action not in (ActionKind.DELETE, ActionKind.EDIT):
        raise SetupError(f"action {position} is not a deletion or an edit: `onceonly dead actions module:endpoint` lists them")
    items = [item for item in await _stored(parts, position) if item.letter.startswith(key)]
    if not items:
        raise SetupError(f"action {position} has no letter to restore: letters are stored for 7 days")
    now, runner = parts.environment.clock.now, "once"
    action = await parts.log.begin(
        Action(
            actor=by.name,
            method=by.method,
            action=ActionKind.RESTORE,
            endpoint=found.endpoint,
            scope=ActionScope(keys=tuple(item.letter for item in items), form=by.form),
            reason=reason or f"action {position}",
            total=len(items),
            runner=runner,
            lease=now() + 30_000,
        )
    )
    log_started(action)
    restored = []
    for number, item in enumerate(items, 1):
        letter = decode_letter(item.stored)
        if item.detail == WITHDRAWN and parts.tokens is not None and letter.message:
            await parts.tokens.add([Token(letter.message.token, letter.endpoint)])
        await parts.letters.add(letter)
        restored.append(
            replace(item, action=action.position, number=number, outcome=ItemOutcome.RESTORED, stored=b"", at=now())
        )
    await parts.log.plan(action, [replace(each, stored_until=0) for each in restored])
    ended = replace(action, state=ActionState.DONE, done=len(restored), lease=0)
    await parts.log.settle(ended, ())
    log_ended(ended)
    return ended


async def _stored(parts: ActionParts, position: int) -> list[ActionItem]:
    found: list[ActionItem] = []
    while page := await parts.log.items(position, after=found[-1].number if found else 0, limit=1000):
        found += page
    return [item for item in found if item.stored and item.outcome is not ItemOutcome.KEPT]


def is_earlier_body(item: ActionItem, letter: DeadLetter) -> bool:
    """Return whether a letter has the body that an edit replaced: a late copy, which pages annotate."""
    return letter.message is not None and item.before == fingerprint(letter.message.body) != item.after
