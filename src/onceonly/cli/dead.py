"""`onceonly dead`: list, show, retry and purge dead letters."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from onceonly.cli.commands import JsonOption, StoreOption, TransportOption
from onceonly.cli.output import NEGATIVE, progress, refuse, say, show, show_json, show_table
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.escaping import escape

if TYPE_CHECKING:
    from onceonly.model.action import Action
    from onceonly.model.dead_letter import DeadLetter
    from onceonly.model.message import Failure
    from onceonly.operations.action_runner import ActionRunner
    from onceonly.ports.dead_letters import GroupCount, GroupCounts

SAFE_AGAIN = "Run the command again for the rest: this is safe, the ids stay the same"
SHORT_KEY = 12
LONGEST_REASON = 200
"""Characters of a reason in a list; `show` has all of them."""
PlaceArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ENDPOINT_OR_URL", help="module:endpoint, or the URL of the store with the dead letters.")
]
KeysArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY", help="Keys of dead letters; the first digits are enough.", show_default=False),
]
EndpointOption: TypeAlias = Annotated[
    str, typer.Option("--endpoint", metavar="NAME", help="Only dead letters of this endpoint.")
]
TypeOption: TypeAlias = Annotated[str, typer.Option("--type", metavar="TYPE", help="Only messages of this type.")]
ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Only dead letters whose reason contains this text.")
]
GroupOption: TypeAlias = Annotated[
    str,
    typer.Option("--group", metavar="KEY", help="Only dead letters of this failure group; the first digits are enough."),
]
NoteOption: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why, for `onceonly dead actions`.", show_default=False)
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="All dead letters.")]
AnywayOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--anyway",
        help="With keys: retry even if the message is older than the retention or from the future. If it was handled before, "
        "it is HANDLED TWICE. Check your data first.",
    ),
]
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, show, retry, purge, export and import dead letters.",
)


@app.command("list")
def list_(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of dead letters.")] = 100,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest first."""
    import asyncio

    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of
    from onceonly.operations.letters import choose, complete_group, moment
    from onceonly.ports.dead_letters import Filter

    target = target_of(place, store)
    options = Filter(endpoint=endpoint or target.name, type=type_, reason=reason, failure=group)

    async def read() -> "tuple[list[DeadLetter], int]":
        async with open_letters(target, reads=True) as letters:
            chosen = await complete_group(letters, options)
            return await choose(letters, chosen, limit=limit), await letters.count(chosen)

    found, count = asyncio.run(read())
    if as_json:
        show_json([_summary(letter) for letter in found])
        return
    rows = [
        (
            letter.key[:SHORT_KEY],
            letter.endpoint,
            _type(letter),
            _id(letter),
            letter.attempts,
            moment(letter.at),
            _line(letter.reason),
        )
        for letter in found
    ]
    show_table(f"dead letters: {count}", ("key", "endpoint", "type", "id", "attempts", "at", "reason"), rows)
    if count > len(found):
        say(f"showing the first {len(found)} of {count}; raise --limit to see more")


@app.command()
def groups(
    place: PlaceArgument,
    *,
    endpoint: EndpointOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count dead letters with the same failure: message type, exception, and place in the code. The largest group is first.

    --group of the other commands selects the dead letters of a group. In a document store, the newest 1,000 dead letters are
    counted.
    """
    import asyncio

    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of
    from onceonly.operations.letters import moment, read_groups

    target = target_of(place, store)

    async def read() -> "GroupCounts":
        async with open_letters(target, reads=True) as letters:
            return await read_groups(letters, endpoint or target.name)

    found = asyncio.run(read())
    if as_json:
        show_json({"complete": found.complete, "groups": [_group(count) for count in found.groups]})
        return
    rows = [
        (
            count.key[:SHORT_KEY] or "-",
            count.endpoint,
            count.group.type if count.group else "-",
            count.count,
            moment(count.first),
            moment(count.last),
            _line(str(count.group or "unreadable")),
        )
        for count in found.groups
    ]
    show_table(f"groups: {len(rows)}", ("group", "endpoint", "type", "count", "first", "last", "failure"), rows)
    if not found.complete:
        say("there are more dead letters than were counted")


@app.command("show")
def show_(
    place: PlaceArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the dead letter; the first digits are enough.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: its message, its reason, and the failures before it."""
    import asyncio

    from onceonly.cli.operator_ports import open_letters
    from onceonly.cli.targets import target_of
    from onceonly.formats.cloudevents import HISTORY, attribute_of
    from onceonly.operations.letters import find, moment

    target = target_of(place, store)

    async def read() -> "DeadLetter":
        async with open_letters(target, reads=True) as letters:
            return await find(letters, key)

    letter = asyncio.run(read())
    if as_json:
        show_json(_details(letter))
        return
    for name, value in _details(letter).items():
        if name not in ("history", "headers"):
            show(f"{name}: {_indented(value) if name == 'body' else escape(str(value), multiline=False)}")
    for name, value in letter.headers:
        if attribute_of(name) == HISTORY:
            continue  # these are the failures below
        show(escape(f"header {name}: {value}", multiline=False))
    for number, failure in enumerate(letter.history, 1):
        handler = f" in {failure.handler}" if failure.handler else ""
        line = f"failure {number}: {moment(failure.at)} {failure.kind.value}{handler}: {failure.reason}"
        show(escape(line, multiline=False))
        if failure.traceback:
            show(f"    {_indented(failure.traceback.rstrip())}")


@app.command()
def retry(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    keys: KeysArgument = None,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    all_: AllOption = False,
    anyway: AnywayOption = False,
    rate: Annotated[float, typer.Option(min=0, metavar="NUMBER", help="Messages per second. 0 means unlimited.")] = 0,
    probe: Annotated[
        int,
        typer.Option(
            min=0, metavar="NUMBER", help="Retry this number of dead letters first, and the rest only if these are handled."
        ),
    ] = 0,
    note: NoteOption = "",
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Return the messages of dead letters to the queue of their endpoint, with the same ids, and delete the dead letters.

    Select them by key, or with --endpoint, --type, --reason or --all. A message that was handled before is not handled again;
    only its unsent messages are sent.

    A message "behind the horizon" is older than the retention, so the store cannot decide whether it was handled. It is retried
    with --anyway only. A message "from the future" is retried when its time has come, or with --anyway.

    Exits with code 1 if a dead letter could not be retried.
    """
    import asyncio
    from time import monotonic

    from onceonly.cli.operator_ports import open_operator_ports, operator
    from onceonly.cli.targets import target_of
    from onceonly.model.action import ActionKind, ActionScope, ActionState
    from onceonly.operations.action_runner import ActionRunner
    from onceonly.operations.actions import new_action

    if anyway and not keys:
        raise SetupError("--anyway requires keys. Check each dead letter, make sure that it was not handled, and name its key")
    target = target_of(place, store, transport)
    _require_selection(keys, type_, reason, group, everything=all_ or (bool(endpoint) and not keys))
    if probe and target.settings is None:
        raise SetupError("--probe checks whether messages are handled, so it requires module:endpoint in place of a URL")
    kind = ActionKind.RETRY_ANYWAY if anyway else ActionKind.RETRY
    scope = ActionScope(keys=tuple(keys or ()), type=type_, reason=reason, failure=group, rate=rate, probe=probe)
    action = new_action(operator(), kind, endpoint or target.name, scope, reason=note)

    async def run() -> "tuple[ActionRunner, Sequence[Action]]":
        async with open_operator_ports(target, sends=True, knows=bool(probe)) as ports:
            bar = progress()
            task = bar.add_task("retrying", total=None)
            runner = ActionRunner(ports, tick=lambda count: bar.advance(task, count))
            try:
                with bar:
                    actions = await run_actions(runner, action, on_total=lambda total: bar.update(task, total=total))
            except RetryableError:
                if runner.sent:
                    say(f"{runner.sent} retried before the error. {SAFE_AGAIN}")
                raise
            if runner.sent and runner.due > monotonic():
                seconds = f"{ports.head_start:g} s"
                say(f"waiting {seconds}, so that messages are delivered after their dead letters are deleted")
                await asyncio.sleep(max(0.0, runner.due - monotonic()))
            return runner, actions

    runner, actions = asyncio.run(run())
    is_stopped = any(action.state is ActionState.STOPPED for action in actions)
    _show_retried(runner, place, anyway=anyway, is_stopped=is_stopped, as_json=as_json)


def _show_retried(runner: "ActionRunner", place: str, *, anyway: bool, is_stopped: bool, as_json: bool) -> None:
    """Show what a retry did. Exits with code 1 if a dead letter was not retried."""
    from onceonly.cli.hints import pasteable

    kept = [(key, pasteable(why, (place,))) for key, why in runner.kept]
    if as_json:
        show_json({"retried": runner.sent, "kept": [{"key": key, "reason": why} for key, why in kept]})
    else:
        show(f"{runner.sent} retried")
    if anyway and runner.sent:
        say("retried with --anyway: a message that was handled before is handled a second time")
    for key, why in runner.early:
        say(f"{key[:SHORT_KEY]} retried: {why}")
    for key, why in kept:
        say(f"{key[:SHORT_KEY]} not retried: {why}")
    if is_stopped:
        say("stopped: the messages of the probe were not handled. The other dead letters are not retried")
    if kept or is_stopped:
        raise typer.Exit(NEGATIVE)


@app.command()
def purge(  # noqa: PLR0913 - one parameter for each option
    place: PlaceArgument,
    keys: KeysArgument = None,
    *,
    endpoint: EndpointOption = "",
    type_: TypeOption = "",
    reason: ReasonOption = "",
    group: GroupOption = "",
    all_: AllOption = False,
    note: NoteOption = "",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters and their messages. In a SQL database, `onceonly dead restore` undoes it for 7 days.

    A finish-only dead letter is different: its handler's changes are committed. Its record stays in the store, and the relay
    retries the unsent messages until the broker accepts them.
    """
    import asyncio

    from onceonly.cli.operator_ports import open_operator_ports, operator
    from onceonly.cli.targets import target_of
    from onceonly.model.action import ActionKind, ActionScope
    from onceonly.operations.action_runner import ActionRunner
    from onceonly.operations.actions import new_action

    target = target_of(place, store)
    _require_selection(keys, type_, reason, group, everything=all_)
    scope = ActionScope(keys=tuple(keys or ()), type=type_, reason=reason, failure=group)
    action = new_action(operator(), ActionKind.DELETE, endpoint or target.name, scope, reason=note)

    async def run() -> tuple[int, int]:
        async with open_operator_ports(target) as ports:
            runner = ActionRunner(ports)
            actions = await run_actions(runner, action)
            return sum(action.done for action in actions), runner.finish_only

    removed, finish_only = asyncio.run(run())
    if as_json:
        show_json({"purged": removed})
    else:
        show(f"{removed} purged")
    if finish_only:
        say(f"warning: {finish_only} of {removed} are finish-only: their unsent messages stay in the store for the relay")


async def run_actions(runner: "ActionRunner", action: "Action", *, on_total: Callable[[int], object] = int) -> "list[Action]":
    """Store a new action for each endpoint, and run it. If this process cannot go on, it is stopped.

    A command that is run again begins new ones. If this process is killed, a dashboard of the endpoint continues its action.
    """
    from msgspec.structs import replace

    from onceonly.operations.actions import by_endpoint, confirm, filter_of
    from onceonly.operations.letters import complete_group

    letters, log = runner.parts.letters, runner.parts.log
    chosen = await complete_group(letters, filter_of(action))
    action = replace(action, scope=replace(action.scope, failure=chosen.failure))
    on_total(len(action.scope.keys) or await letters.count(chosen))
    ended = []
    for own in await by_endpoint(letters, action):
        stored = await confirm(runner.parts, own)
        try:
            ended.append(await runner.run(stored.position))
        except BaseException:
            with suppress(RetryableError):
                await log.stop(stored.position)
            raise
    return ended


def _require_selection(keys: Sequence[str] | None, *filters: str, everything: bool) -> None:
    """Refuse a command that selects no dead letters, or selects them in two ways. `filters` are empty if not given."""
    if not keys and not everything and not any(filters):
        raise SetupError("no dead letters selected: name keys, --type, --reason, --group or --all")
    if keys and everything:
        refuse("keys and --all exclude each other: use one of them", 2)


def _group(count: "GroupCount") -> dict[str, Any]:
    from onceonly.operations.letters import moment

    group = count.group
    return {
        "group": count.key or None,
        "endpoint": count.endpoint,
        "type": group.type if group else None,
        "kind": group.kind if group else None,
        "exception": group.exception if group else None,
        "place": group.place if group else None,
        "count": count.count,
        "first": moment(count.first),
        "last": moment(count.last),
        "latest": count.latest,
    }


def _summary(letter: "DeadLetter") -> dict[str, Any]:
    from onceonly.operations.letters import moment

    return {
        "key": letter.key,
        "endpoint": letter.endpoint,
        "source": letter.message.source if letter.message else None,
        "id": letter.message.id if letter.message else None,
        "type": letter.message.type if letter.message else None,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "at": moment(letter.at),
        "finish_only": letter.finish_only,
        "retryable": letter.message is not None,
    }


def _details(letter: "DeadLetter") -> dict[str, Any]:
    return _summary(letter) | {
        "headers": [list(pair) for pair in letter.headers],
        "body": letter.body.decode(errors="replace"),
        "history": [_failure(failure) for failure in letter.history],
    }


def _failure(failure: "Failure") -> dict[str, Any]:
    from onceonly.operations.letters import moment

    return {
        "kind": failure.kind.value,
        "handler": failure.handler,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "at": moment(failure.at),
    }


def _type(letter: "DeadLetter") -> str:
    return letter.message.type if letter.message else "-"


def _id(letter: "DeadLetter") -> str:
    return letter.message.id if letter.message else "-"


def _indented(text: str) -> str:
    """Indent what comes on further lines: a line feed in a body must not make a line that looks like a field."""
    return escape(text).replace("\n", "\n    ")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 4]} ..."
