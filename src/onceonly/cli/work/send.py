"""What `onceonly send` does."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import BinaryIO, NamedTuple

import typer

from onceonly.assembly import open_transport
from onceonly.assembly.token_issuer import TokenIssuer, open_token_issuer
from onceonly.cli.events import BadItem, EventDefaults, RefusedItem, read_items, to_message
from onceonly.cli.files import interruptible, reading
from onceonly.cli.headers import headers_given
from onceonly.cli.loading import load
from onceonly.cli.output import NEGATIVE, complain, progress, say, show, show_json
from onceonly.cli.places import UrlOverrides
from onceonly.cli.reaching import answering, reached
from onceonly.cli.sending import SendTally, TokenIssuing, send_all, unhandled
from onceonly.config.endpoint import Settings
from onceonly.model.endpoint_name import NAME_RULE, is_endpoint_name
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.message import Message
from onceonly.ports.transport import Topology

SHOWN = 10
"""Refused messages that are named one by one; --json names all of them."""


class Target(NamedTuple):
    """Where messages go: an endpoint's queue (empty: whoever subscribed), over which transport, declared before or not."""

    endpoint: str
    transport: str
    topology: Topology | None = None
    issuer: Settings | None = None
    """The settings of an endpoint that asks for tokens."""
    handled: tuple[str, ...] | None = None
    """The types that the endpoint handles. None: its program was not named, or any type is sent."""

    def __repr__(self) -> str:
        return f"Target({self.endpoint!r})"


def send(  # noqa: PLR0913 - one parameter for each option
    file: str,
    *,
    to: str,
    event: bool,
    type_: str,
    id_from: str,
    source: str,
    headers: Sequence[str] = (),
    any_type: bool,
    transport: str | None,
    as_json: bool,
) -> None:
    """Send one message for each line of a file."""
    target = _target(to, UrlOverrides(transport=transport), event=event)
    if any_type:
        target = target._replace(handled=None)
    if type_ and (problem := unhandled(type_, target.endpoint, target.handled)):
        raise SetupError(f"--type {type_!r}: {problem}")
    ids = tuple(name.strip() for name in id_from.split(",") if name.strip())
    form = EventDefaults(type=type_, source=source, id_from=ids, headers=headers_given(headers))
    tally, problem = SendTally(), ""
    with reading(file) as stream:
        try:
            asyncio.run(_send(stream, form, target, tally))
        except BadItem as error:
            problem = str(error)
        except (RetryableError, KeyboardInterrupt) as error:
            if tally.sent:
                reason = "the error" if isinstance(error, RetryableError) else "Ctrl-C"
                say(f"{tally.sent} sent before {reason}. Send the file again: this is safe, the ids stay the same")
            raise
    _answer(tally, target, problem, as_json=as_json)


async def _send(stream: BinaryIO, form: EventDefaults, target: Target, tally: SendTally) -> None:
    opening = open_transport(target.transport, target.endpoint or "cli")
    async with reached("transport", target.transport, opening) as transport:
        if target.topology is not None:
            async with answering("transport", target.transport):
                await transport.declare([target.topology])
        async with AsyncExitStack() as stack:
            issuer = await _open_issuer(target, stack)
            bar = stack.enter_context(progress())
            task = bar.add_task("sending", total=None)
            await send_all(
                _messages(stream, form),
                TokenIssuing(transport, issuer) if issuer else transport,
                to=target.endpoint,
                handled=target.handled,
                tally=tally,
                tick=lambda count: bar.advance(task, count),
            )


async def _open_issuer(target: Target, stack: AsyncExitStack) -> TokenIssuer | None:
    """Open the place where the endpoint looks for tokens, if it asks for some."""
    if target.issuer is None:
        return None
    return await stack.enter_async_context(reached("tokens", target.issuer.plan.tokens, open_token_issuer(target.issuer)))


def _messages(stream: BinaryIO, form: EventDefaults) -> Iterator[Message | RefusedItem]:
    return (to_message(item, form) for item in read_items(interruptible(stream)))


def _target(to: str, instead: UrlOverrides, *, event: bool) -> Target:
    if bool(to) == event:
        raise SetupError("no destination: use --to ENDPOINT to send commands, or --event to publish events")
    if ":" in to:
        endpoint = load(to)
        settings = instead.settings(endpoint)
        issuer = settings if settings.plan.tokens is not None else None
        topology = endpoint.topology()
        return Target(endpoint.name, settings.transport, topology, issuer, tuple(sorted(topology.events + topology.commands)))
    if to and not is_endpoint_name(to):
        raise SetupError(f"--to {to!r}: {NAME_RULE}")
    if instead.transport is None:
        raise SetupError(
            "no transport: set --transport URL or ONCEONLY_TRANSPORT, or use the endpoint's own with --to module:endpoint"
        )
    return Target(to, instead.transport)


def _answer(tally: SendTally, target: Target, problem: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"sent": tally.sent, "refused": tally.refused, "unknown": tally.unknown, "error": problem or None})
    else:
        where = f"to {target.endpoint}" if target.endpoint else "as events"
        show(f"{tally.sent} sent {where}")
        for refused in tally.refused[:SHOWN]:
            say(f"refused {refused.place or f'{refused.source} {refused.id}'}: {refused.reason}")
        if len(tally.refused) > SHOWN:
            say(f"... and {len(tally.refused) - SHOWN} more; --json lists all of them")
    if problem:
        complain(f"{problem}. Sending stopped there. Correct the line and send the file again: the ids stay the same")
    elif tally.refused:
        complain(f"{len(tally.refused)} refused: {tally.refused[0].reason}")
    elif tally.unknown:
        complain(f"{tally.unknown} not confirmed by the broker. Send the file again: this is safe, the ids stay the same")
    if problem or tally.refused or tally.unknown:
        raise typer.Exit(NEGATIVE)
