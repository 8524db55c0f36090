"""`onceonly dead edit`, `send-as-new`, `restore` and `actions`: changes of single dead letters, and what operators did."""

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from onceonly.cli.commands import JsonOption, StoreOption, TransportOption
from onceonly.cli.dead import SHORT_KEY, NoteOption, PlaceArgument, app
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table
from onceonly.model.errors import SetupError

if TYPE_CHECKING:
    from onceonly.cli.targets import CommandTarget
    from onceonly.model.action import Action, ActionItem
    from onceonly.operations.edits import Check

Done: TypeAlias = "tuple[Action, tuple[ActionItem, ...]]"
"""An action that was done, and its items."""


@app.command()
def edit(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File with the new body, or - for standard input. Without it, the body stays.")
    ] = "",
    *,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Set this header. May be repeated.", show_default=False),
    ] = None,
    remove_header: Annotated[
        list[str] | None,
        typer.Option("--remove-header", metavar="NAME", help="Remove this header. May be repeated.", show_default=False),
    ] = None,
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Retry a dead letter with another body or other headers, and the same source and id. --note is required.

    Of the old and the new body, the first that is committed takes effect; the other one is a payload mismatch. The handler's
    type decodes the new body first. The bytes of the file are sent as they are, at most 16 MiB. A dead letter that is finish
    only, was handled or has no identity cannot be edited.

    In a SQL database, `onceonly dead restore` brings the old dead letter back for 7 days.
    """
    import asyncio

    from msgspec import UNSET

    from onceonly.cli.events import changed_headers
    from onceonly.cli.files import reading
    from onceonly.cli.operator_ports import open_operator_ports, operator
    from onceonly.cli.targets import target_of
    from onceonly.operations.edits import Edit
    from onceonly.operations.edits import edit as edit_letter
    from onceonly.operations.letters import find

    if not (file or header or remove_header):
        raise SetupError("nothing is changed: name a FILE with the new body, or use --header or --remove-header")
    target, check = target_of(place, store, transport), _check_of(place)
    body: bytes | None = None
    if file:
        with reading(file) as stream:
            body = stream.read()

    async def run() -> Done:
        async with open_operator_ports(target, sends=True, knows=True) as ports:
            letter = await find(ports.letters, key)
            change = Edit(body=b"")  # refused
            if (message := letter.message) is not None:
                is_other = header or remove_header
                headers = changed_headers(message.headers, header or (), remove_header or ()) if is_other else UNSET
                change = Edit(body=message.body if body is None else body, headers=headers)
            action = await edit_letter(ports, operator(), letter.key, change, reason=note, check=check, from_file=True)
            return action, await ports.log.items(action.position)

    _show_outcome(key, asyncio.run(run()), verb="retried", words="retried with changes", as_json=as_json)


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
    import asyncio

    from onceonly.cli.operator_ports import open_operator_ports, operator
    from onceonly.cli.targets import target_of
    from onceonly.operations.edits import send_as_new as send_letter_as_new
    from onceonly.operations.letters import find

    target, check = target_of(place, store, transport), _check_of(place)

    async def run() -> Done:
        async with open_operator_ports(target, sends=True, knows=True) as ports:
            letter = await find(ports.letters, key)
            action = await send_letter_as_new(ports, operator(), letter.key, reason=note, type_=type_, check=check)
            return action, await ports.log.items(action.position)

    _show_outcome(key, asyncio.run(run()), verb="sent", words="sent as a new message", as_json=as_json)


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
    import asyncio

    from onceonly.cli.operator_ports import open_operator_ports, operator
    from onceonly.cli.targets import target_of
    from onceonly.operations.edits import restore as restore_letters

    target = target_of(place, store)

    async def run() -> "Action":
        async with open_operator_ports(target) as ports:
            return await restore_letters(ports, operator(), action, key, reason=note)

    done = asyncio.run(run())
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
    import asyncio

    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of
    from onceonly.operations.actions import action_log_of
    from onceonly.operations.letters import moment

    target = target_of(place, store)
    if number:
        _show_items(asyncio.run(_read_items(target, number, limit)), as_json=as_json)
        return

    async def read() -> "tuple[Action, ...]":
        async with open_letters(target, reads=True) as letters:
            return await action_log_of(letters).recent(limit=limit)

    found = asyncio.run(read())
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


async def _read_items(target: "CommandTarget", number: int, limit: int) -> "tuple[ActionItem, ...]":
    from onceonly.cli.operator_ports import open_operator_ports
    from onceonly.operations.actions import read_outcomes

    async with open_operator_ports(target, knows=target.settings is not None) as ports:
        action = await ports.log.get(number)
        if action is None:
            raise SetupError(f"action {number} does not exist: `onceonly dead actions module:endpoint` lists them")
        return await read_outcomes(ports, action, limit=limit)


def _show_items(items: "tuple[ActionItem, ...]", *, as_json: bool) -> None:
    from onceonly.operations.letters import moment

    if as_json:
        show_json([{"key": item.letter, "outcome": item.outcome.value, "detail": item.detail} for item in items])
        return
    rows = [(item.letter[:SHORT_KEY], item.outcome.value, item.detail, moment(item.at)) for item in items]
    show_table("", ("key", "outcome", "detail", "at"), rows)


def _show_outcome(key: str, done: Done, *, verb: str, words: str, as_json: bool) -> None:
    """Show what an action did with one letter. Exits with code 1 if the letter was kept."""
    from onceonly.model.action import ItemOutcome

    action, items = done
    kept = [item.detail for item in items if item.outcome is ItemOutcome.KEPT]
    if as_json:
        show_json({"action": action.position, verb: action.done, "kept": kept})
    else:
        show(f"{action.done} {words} (action {action.position})")
    for why in kept:
        say(f"{key} not {verb}: {why}")
    if kept:
        raise typer.Exit(NEGATIVE)


def _action(action: "Action") -> dict[str, Any]:
    from onceonly.operations.letters import moment

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


def _check_of(place: str) -> "Check":
    """Return the check that the endpoint's handlers decode a message. A URL has no handlers."""
    from onceonly.cli.targets import is_url, load
    from onceonly.operations.edits import accept_anything, decoding_check

    return accept_anything if is_url(place) else decoding_check(load(place))
