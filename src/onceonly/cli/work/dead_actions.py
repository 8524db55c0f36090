"""What `onceonly dead edit`, `send-as-new`, `restore` and `actions` do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import typer
from msgspec import UNSET

from onceonly.assembly.looking import looked_at
from onceonly.cli.files import reading
from onceonly.cli.headers import changed_headers
from onceonly.cli.loading import load
from onceonly.cli.operating import opened_parts, operator
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.cli.places import CommandTarget, UrlOverrides, is_url, place_of
from onceonly.cli.work.dead import SHORT_KEY, opened_letters
from onceonly.model.action import Action, ActionItem, ItemOutcome
from onceonly.model.errors import SetupError
from onceonly.model.message import Message
from onceonly.operations.actions import action_log_of, read_outcomes
from onceonly.operations.editing import Check, Edit, accept_anything, decoding_check
from onceonly.operations.editing import edit as edit_letter
from onceonly.operations.editing import restore as restore_letters
from onceonly.operations.editing import send_as_new as send_letter_as_new
from onceonly.operations.letters import find, moment


def edit(  # noqa: PLR0913 - one parameter for each option
    place: str,
    key: str,
    file: str,
    *,
    headers: Sequence[str],
    removed: Sequence[str],
    note: str,
    store: str | None,
    transport: str | None,
    as_json: bool,
) -> None:
    """Retry a dead letter with another body or other headers, and the same source and id. --note is required."""
    if not (file or headers or removed):
        raise SetupError("nothing is changed: name a FILE with the new body, or use --header or --remove-header")
    where = place_of(place, UrlOverrides(store, transport))
    body: bytes | None = None
    if file:
        with reading(file) as stream:
            body = stream.read()

    def change(message: Message) -> Edit:
        others = changed_headers(message.headers, headers, removed) if headers or removed else UNSET
        return Edit(body=message.body if body is None else body, headers=others)

    check = accept_anything if is_url(place) else decoding_check(load(place))
    action, items = asyncio.run(_edit(where, key, change, note=note, check=check))
    _tell(key, action, items, verb="retried", words="retried with changes", as_json=as_json)


def send_as_new(  # noqa: PLR0913 - one parameter for each option
    place: str, key: str, *, type_: str, note: str, store: str | None, transport: str | None, as_json: bool
) -> None:
    """Send the body of a dead letter as a new message, and delete the dead letter. --note is required."""
    where = place_of(place, UrlOverrides(store, transport))
    check = accept_anything if is_url(place) else decoding_check(load(place))
    action, items = asyncio.run(_send_as_new(where, key, type_, note=note, check=check))
    _tell(key, action, items, verb="sent", words="sent as a new message", as_json=as_json)


def _tell(key: str, action: Action, items: tuple[ActionItem, ...], *, verb: str, words: str, as_json: bool) -> None:
    """Show what an action did with one letter. Exits with code 1 if the letter was kept."""
    kept = [item.detail for item in items if item.outcome is ItemOutcome.KEPT]
    if as_json:
        show_json({"action": action.position, verb: action.done, "kept": kept})
    else:
        show(f"{action.done} {words} (action {action.position})")
    for why in kept:
        say(f"{key} not {verb}: {why}")
    if kept:
        raise typer.Exit(NEGATIVE)


def restore(place: str, action: int, key: str, *, note: str, store: str | None, as_json: bool) -> None:
    """Restore dead letters that an action deleted or edited, for 7 days. Their keys and times are those of before."""
    where = place_of(place, UrlOverrides(store))
    done = asyncio.run(_restore(where, action, key, note))
    if as_json:
        show_json({"action": done.position, "restored": done.done})
    else:
        show(f"{done.done} restored (action {done.position})")


def actions(place: str, number: int, *, limit: int, store: str | None, as_json: bool) -> None:
    """List what operators did with dead letters, the newest first: retries, edits, deletions, and what became of them."""
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
    place: CommandTarget, key: str, change: Callable[[Message], Edit], *, note: str, check: Check
) -> tuple[Action, tuple[ActionItem, ...]]:
    async with opened_parts(place, sends=True, knows=True) as parts:
        letter = await find(parts.letters, key)
        edited = change(letter.message) if letter.message is not None else Edit(body=b"")  # which is refused
        action = await edit_letter(parts, operator(), letter.key, edited, reason=note, check=check, from_file=True)
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
