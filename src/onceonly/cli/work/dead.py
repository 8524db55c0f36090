"""What `onceonly dead` does."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from time import monotonic
from typing import Any, NamedTuple

import typer
from msgspec.structs import replace

from onceonly.assembly import open_dead_letters
from onceonly.assembly.looking import looked_at
from onceonly.cli.hints import pasteable
from onceonly.cli.operating import opened_parts, operator
from onceonly.cli.output import NEGATIVE, progress, refuse, say, show, show_json, show_table
from onceonly.cli.places import CommandTarget, UrlOverrides, place_of
from onceonly.cli.reaching import reached
from onceonly.formats.cloudevents import HISTORY, attribute_of
from onceonly.formats.escaping import escape
from onceonly.model.action import Action, ActionKind, ActionState
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.message import Failure
from onceonly.operations.actions import ActionParts, ActionRunner, confirm
from onceonly.operations.groups import complete_group, read_groups
from onceonly.operations.letters import HEAD_START_SECONDS, LetterSelection, RetryTally, by_endpoint, choose, find, moment
from onceonly.ports.dead_letters import DeadLetters, Filter, GroupCount, GroupCounts

SHORT_KEY = 12
LONGEST_REASON = 200
"""Characters of a reason in a list; `show` has all of them."""


def list_(  # noqa: PLR0913 - one parameter for each option
    place: str, *, endpoint: str, type_: str, reason: str, group: str, limit: int, store: str | None, as_json: bool
) -> None:
    """List dead letters, oldest first."""
    where = place_of(place, UrlOverrides(store))
    chosen = LetterSelection(filter=filter_of(where, endpoint, type_, reason, group))
    found, count = asyncio.run(_list(where, chosen, limit))
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


def groups(place: str, *, endpoint: str, store: str | None, as_json: bool) -> None:
    """Count dead letters with the same failure: message type, exception, and place in the code. The largest group is first."""
    where = place_of(place, UrlOverrides(store))
    found = asyncio.run(_groups(where, endpoint or where.name))
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
            _line(str(count.group or "not grouped yet: maintenance does it")),
        )
        for count in found.groups
    ]
    show_table(f"groups: {len(rows)}", ("group", "endpoint", "type", "count", "first", "last", "failure"), rows)
    if not found.complete:
        say("there are more dead letters than were counted")


def show_(place: str, key: str, *, store: str | None, as_json: bool) -> None:
    """Show one dead letter: its message, its reason, and the failures before it."""
    letter = asyncio.run(_show(place_of(place, UrlOverrides(store)), key))
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


def retry(  # noqa: PLR0913 - one parameter for each option
    place: str,
    keys: list[str] | None,
    *,
    endpoint: str,
    type_: str,
    reason: str,
    group: str,
    all_: bool,
    anyway: bool,
    rate: float,
    probe: int,
    note: str,
    store: str | None,
    transport: str | None,
    as_json: bool,
) -> None:
    """Return the messages of dead letters to the queue of their endpoint, with the same ids, and delete the dead letters."""
    if anyway and not keys:
        raise SetupError("--anyway requires keys. Check each dead letter, make sure that it was not handled, and name its key")
    where = place_of(place, UrlOverrides(store, transport))
    everything = all_ or (bool(endpoint) and not keys)
    chosen = _chosen(keys or (), filter_of(where, endpoint, type_, reason, group), everything=everything)
    done = RetryTally()
    kind = ActionKind.RETRY_ANYWAY if anyway else ActionKind.RETRY
    try:
        stopped = asyncio.run(_retry(where, chosen, done, ActionOptions(kind, note, rate, probe)))
    except RetryableError:
        if done.sent:
            say(
                f"{done.sent} retried before the error. Run the command again for the rest: this is safe, the ids stay the same"
            )
        raise
    kept = [(key, pasteable(why, (place,))) for key, why in done.kept]
    if as_json:
        show_json({"retried": done.sent, "kept": [{"key": key, "reason": why} for key, why in kept]})
    else:
        show(f"{done.sent} retried")
    if anyway and done.sent:
        say("retried with --anyway: a message that was handled before is handled a second time")
    for key, why in done.early:
        say(f"{key[:SHORT_KEY]} retried: {why}")
    for key, why in kept:
        say(f"{key[:SHORT_KEY]} not retried: {why}")
    if stopped:
        say("stopped: the messages of the probe were not handled. The other dead letters are not retried")
    if kept or stopped:
        raise typer.Exit(NEGATIVE)


def purge(  # noqa: PLR0913 - one parameter for each option
    place: str,
    keys: list[str] | None,
    *,
    endpoint: str,
    type_: str,
    reason: str,
    group: str,
    all_: bool,
    note: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete dead letters and their messages. In a SQL database, `onceonly dead restore` undoes it for 7 days."""
    where = place_of(place, UrlOverrides(store))
    chosen = _chosen(keys or (), filter_of(where, endpoint, type_, reason, group), everything=all_)
    removed, finish_only = asyncio.run(_purge(where, chosen, note))
    if as_json:
        show_json({"purged": removed})
    else:
        show(f"{removed} purged")
    if finish_only:
        say(f"warning: {finish_only} of {removed} are finish-only: their unsent messages stay in the store for the relay")


async def _list(place: CommandTarget, chosen: LetterSelection, limit: int) -> tuple[list[DeadLetter], int]:
    async with opened_letters(looked_at(place.dead_letters)) as letters:
        chosen = await completed(letters, chosen)
        return await choose(letters, chosen, limit=limit), await letters.count(chosen.filter)


async def _groups(place: CommandTarget, endpoint: str) -> GroupCounts:
    async with opened_letters(looked_at(place.dead_letters)) as letters:
        return await read_groups(letters, endpoint)


async def _show(place: CommandTarget, key: str) -> DeadLetter:
    async with opened_letters(looked_at(place.dead_letters)) as letters:
        return await find(letters, key)


async def _retry(place: CommandTarget, chosen: LetterSelection, done: RetryTally, options: "ActionOptions") -> bool:
    """Send all of them back, then wait once, for the last. Return whether it was stopped.

    `done` is kept up to date, also when this raises.
    """
    if options.probe and place.settings is None:
        raise SetupError("--probe checks whether messages are handled, so it requires module:endpoint in place of a URL")
    async with opened_parts(place, sends=True, knows=bool(options.probe), head_start=HEAD_START_SECONDS) as parts:
        chosen = await completed(parts.letters, chosen)
        with progress() as bar:
            task = bar.add_task("retrying", total=len(chosen.keys) or await parts.letters.count(chosen.filter))

            def note(runner: ActionRunner, count: int) -> None:
                done.sent, done.kept, done.early = len(runner.taken), runner.kept, runner.early
                bar.advance(task, count)

            actions, runner = await _act(parts, chosen, options, note)
        if done.sent and runner.due > monotonic():
            say(f"waiting {HEAD_START_SECONDS:g} s, so that messages are delivered after their dead letters are deleted")
            await asyncio.sleep(max(0.0, runner.due - monotonic()))
        return any(action.state is ActionState.STOPPED for action in actions)


class ActionOptions(NamedTuple):
    """What the options of a command say about an action."""

    kind: ActionKind
    note: str = ""
    rate: float = 0
    probe: int = 0


async def _act(
    parts: ActionParts,
    chosen: LetterSelection,
    options: ActionOptions,
    tick: Callable[[ActionRunner, int], None] = lambda _runner, _count: None,
) -> tuple[list[Action], ActionRunner]:
    """Store an action for each endpoint, and run it. If this process cannot go on, it is stopped.

    A command that is run again begins new ones. If this process is killed, a dashboard of the endpoint continues its action.
    """
    runner = ActionRunner(parts, tick=lambda count: tick(runner, count))
    ended: list[Action] = []
    for own in await by_endpoint(parts.letters, chosen):
        action = await confirm(
            parts, operator(), options.kind, own, reason=options.note, rate=options.rate, probe=options.probe
        )
        try:
            ended.append(await runner.run(action.position))
        except BaseException:
            tick(runner, 0)
            with suppress(RetryableError):
                await parts.log.stop(action.position)
            raise
    return ended, runner


async def _purge(place: CommandTarget, chosen: LetterSelection, note: str) -> tuple[int, int]:
    """Give how many were removed, and how many of those chosen were finish-only."""
    async with opened_parts(place) as parts:
        chosen = await completed(parts.letters, chosen)
        actions, runner = await _act(parts, chosen, ActionOptions(ActionKind.DELETE, note))
        return sum(action.done for action in actions), runner.finish_only


def opened_letters(setting: object) -> AbstractAsyncContextManager[DeadLetters]:
    """Open the dead letters of a setting."""
    return reached("dead_letters", setting, open_dead_letters(setting))


def filter_of(place: CommandTarget, endpoint: str, type_: str, reason: str, group: str = "") -> Filter:  # noqa: PLR0917
    """Give what the options of a command choose; an endpoint's place is about that endpoint unless another is named."""
    return Filter(endpoint=endpoint or place.name, type=type_, reason=reason, failure=group)


async def completed(letters: DeadLetters, chosen: LetterSelection) -> LetterSelection:
    """Return a selection with the whole key of its failure group. Raises SetupError."""
    return replace(chosen, filter=await complete_group(letters, chosen.filter))


def _chosen(keys: Sequence[str], chosen: Filter, *, everything: bool) -> LetterSelection:
    if not keys and not everything and not chosen.type and not chosen.reason and not chosen.failure:
        raise SetupError("no dead letters selected: name keys, --type, --reason, --group or --all")
    if keys and everything:
        refuse("keys and --all exclude each other: use one of them", 2)
    return LetterSelection(keys=tuple(keys), filter=chosen)


def _group(count: GroupCount) -> dict[str, Any]:
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


def _summary(letter: DeadLetter) -> dict[str, Any]:
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


def _details(letter: DeadLetter) -> dict[str, Any]:
    return _summary(letter) | {
        "headers": [list(pair) for pair in letter.headers],
        "body": letter.body.decode(errors="replace"),
        "history": [_failure(failure) for failure in letter.history],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "kind": failure.kind.value,
        "handler": failure.handler,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "at": moment(failure.at),
    }


def _type(letter: DeadLetter) -> str:
    return letter.message.type if letter.message else "-"


def _id(letter: DeadLetter) -> str:
    return letter.message.id if letter.message else "-"


def _indented(text: str) -> str:
    """Indent what comes on further lines: a line feed in a body must not make a line that looks like a field."""
    return escape(text).replace("\n", "\n    ")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else f"{line[: LONGEST_REASON - 4]} ..."
