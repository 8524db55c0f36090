"""`onceonly dead edit`, `send-as-new`, `restore` and `actions`: changes of single dead letters, and what operators did."""

import asyncio
from typing import Annotated, Any

import typer

from onceonly.assembly.looking import looked_at
from onceonly.cli.dead import SHORT_KEY, NoteOption, PlaceArgument, app, opened_letters
from onceonly.cli.files import reading
from onceonly.cli.loading import load
from onceonly.cli.operating import opened_parts, operator
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.cli.places import (
    CommandTarget,
    JsonOption,
    StoreOption,
    TransportOption,
    UrlOverrides,
    is_url,
    place_of,
)
from onceonly.model.action import Action, ActionItem, ItemOutcome
from onceonly.model.errors import SetupError
from onceonly.operations.actions import action_log_of, read_outcomes
from onceonly.operations.editing import Check, Edit, accept_anything, decoding_check
from onceonly.operations.editing import edit as edit_letter
from onceonly.operations.editing import restore as restore_letters
from onceonly.operations.editing import send_as_new as send_letter_as_new
from onceonly.operations.letters import find, moment


@app.command()
def edit(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="File with the new body, or - for standard input.")],
    *,
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry a dead letter with another body, and the same source and id. --note is required.

    Of the old and the new body, the first that is committed takes effect; the other one is a payload mismatch. The handler's
    type decodes the new body first. A dead letter that is finish only, was handled, has no identity, has more than 1 MiB or is
    not UTF-8 cannot be edited.

    In a SQL database, `onceonly dead restore` brings the old dead letter back for 7 days.
    """
    where = place_of(place, UrlOverrides(store, transport))
    with reading(file) as stream:
        body = stream.read()
    check = accept_anything if is_url(place) else decoding_check(load(place))
    action, items = asyncio.run(_edit(where, key, body, note=note, check=check))
    kept = [item.detail for item in items if item.outcome is ItemOutcome.KEPT]
    if as_json:
        show_json({"action": action.position, "retried": action.done, "kept": kept})
    else:
        show(f"{action.done} retried with another body (action {action.position})")
    for why in kept:
        say(f"{key} not retried: {why}")
    if kept:
        raise typer.Exit(NEGATIVE)


@app.command("send-as-new")
def send_as_new(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    *,
    type_: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Message type, for a dead letter without one.", show_default=False)
    ] = "",
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send the body of a dead letter as a new message, and delete the dead letter. --note is required.

    Only for a payload mismatch, or a dead letter without identity. The new id is a hash of the dead letter's key, so repeating
    the command does not make a second message. Late copies with the old id are handled as well: check that both are meant.
    """
    where = place_of(place, UrlOverrides(store, transport))
    check = accept_anything if is_url(place) else decoding_check(load(place))
    action, items = asyncio.run(_send_as_new(where, key, type_, note=note, check=check))
    kept = [item.detail for item in items if item.outcome is ItemOutcome.KEPT]
    if as_json:
        show_json({"action": action.position, "sent": action.done, "kept": kept})
    else:
        show(f"{action.done} sent as a new message (action {action.position})")
    for why in kept:
        say(f"{key} not sent: {why}")
    if kept:
        raise typer.Exit(NEGATIVE)


@app.command()
def restore(
    place: PlaceArgument,
    action: Annotated[int, typer.Argument(metavar="ACTION", help="Number of the action, from `onceonly dead actions`.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Only this dead letter; the first digits are enough.")] = "",
    *,
    note: NoteOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore dead letters that an action deleted or edited, for 7 days. Their keys and times are those of before.

    If a restored message has been handled with an edited body, a retry of it is a payload mismatch.
    """
    where = place_of(place, UrlOverrides(store))
    done = asyncio.run(_restore(where, action, key, note))
    if as_json:
        show_json({"action": done.position, "restored": done.done})
    else:
        show(f"{done.done} restored (action {done.position})")


@app.command()
def actions(
    place: PlaceArgument,
    number: Annotated[int, typer.Argument(metavar="ACTION", help="Show the dead letters of this action.")] = 0,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of rows.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what operators did with dead letters, the newest first: retries, edits, deletions, and what became of them.

    Actions are stored in SQL databases for 400 days. Elsewhere they are only lines of the log `onceonly.audit`.
    """
    where = place_of(place, UrlOverrides(store))
    if number:
        _show_items(asyncio.run(_items(where, number, limit)), as_json=as_json)
        return
    found = asyncio.run(_actions(where, limit))
    if as_json:
        show_json([_action(each) for each in found])
        return
    rows = [
        (
            each.position,
            moment(each.at),
            each.actor,
            each.action.value,
            each.state.value,
            each.total,
            each.done,
            each.kept,
            each.reason,
        )
        for each in found
    ]
    show_table("", ("action", "at", "actor", "kind", "state", "total", "done", "kept", "note"), rows)


def _show_items(items: tuple[ActionItem, ...], *, as_json: bool) -> None:
    if as_json:
        show_json([{"key": item.letter, "outcome": item.outcome.value, "detail": item.detail} for item in items])
        return
    rows = [(item.letter[:SHORT_KEY], item.outcome.value, item.detail, moment(item.at)) for item in items]
    show_table("", ("key", "outcome", "detail", "at"), rows)


async def _edit(
    place: CommandTarget, key: str, body: bytes, *, note: str, check: Check
) -> tuple[Action, tuple[ActionItem, ...]]:
    async with opened_parts(place, sends=True, knows=True) as parts:
        letter = await find(parts.letters, key)
        action = await edit_letter(parts, operator(), letter.key, Edit(body=body), reason=note, check=check)
        return action, await parts.log.items(action.position)


async def _send_as_new(
    place: CommandTarget, key: str, type_: str, *, note: str, check: Check
) -> tuple[Action, tuple[ActionItem, ...]]:
    async with opened_parts(place, sends=True, knows=True) as parts:
        letter = await find(parts.letters, key)
        action = await send_letter_as_new(parts, operator(), letter.key, reason=note, type_=type_, check=check)
        return action, await parts.log.items(action.position)


async def _restore(place: CommandTarget, action: int, key: str, note: str) -> Action:
    async with opened_parts(place) as parts:
        return await restore_letters(parts, operator(), action, key, reason=note)


async def _actions(place: CommandTarget, limit: int) -> tuple[Action, ...]:
    async with opened_letters(looked_at(place.dead_letters)) as letters:
        return await action_log_of(letters).recent(limit=limit)


async def _items(place: CommandTarget, number: int, limit: int) -> tuple[ActionItem, ...]:
    async with opened_parts(place, knows=place.settings is not None) as parts:
        action = await parts.log.get(number)
        if action is None:
            raise SetupError(f"action {number} does not exist: `onceonly dead actions module:endpoint` lists them")
        return await read_outcomes(parts, action, limit=limit)


def _action(action: Action) -> dict[str, Any]:
    return {
        "action": action.position,
        "at": moment(action.at),
        "actor": action.actor,
        "method": action.method,
        "kind": action.action.value,
        "endpoint": action.endpoint,
        "state": action.state.value,
        "total": action.total,
        "done": action.done,
        "kept": action.kept,
        "note": action.reason,
    }
