"""`onceonly send`: messages from a file or standard input into a queue."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from onceonly.cli.commands import JsonOption, TransportOption
from onceonly.cli.output import NEGATIVE, print_error, progress, say, show, show_json
from onceonly.model.errors import RetryableError, SetupError

if TYPE_CHECKING:
    from onceonly.cli.bulk_sender import SendPort, SendTally
    from onceonly.cli.events import EventDefaults
    from onceonly.config.endpoint import Settings
    from onceonly.ports.transport import Topology

SHOWN = 10
"""Refused messages that are named one by one; --json names all of them."""


class SendTarget(NamedTuple):
    """Where messages go: an endpoint's queue (empty: whoever subscribed), over which transport, declared before or not."""

    endpoint: str
    transport: str
    topology: "Topology | None" = None
    issuer: "Settings | None" = None
    """The settings of an endpoint that asks for tokens."""
    handled: tuple[str, ...] | None = None
    """The types that the endpoint handles. None: its program was not named, or any type is sent."""
    settings: "Settings | None" = None
    """Those of the endpoint, if its program was named."""

    def __repr__(self) -> str:
        return f"SendTarget({self.endpoint!r})"


def send(  # noqa: PLR0913 - one parameter for each option
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON Lines or CloudEvents in JSON, or - for standard input.")
    ] = "-",
    *,
    to: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Send commands to this endpoint: its name, or module:endpoint.")
    ] = "",
    event: Annotated[bool, typer.Option("--event", help="Publish events to all subscribers of their type.")] = False,
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help="Message type of lines that are not CloudEvents.")] = "",
    id_from: Annotated[
        str, typer.Option(metavar="FIELD,FIELD", help="Fields that form the message id. Equal values, same message.")
    ] = "",
    source: Annotated[
        str, typer.Option(help="Source of messages without one. A message is identified by source and id.")
    ] = "cli",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Header of each message, such as tenant=acme. May be repeated."),
    ] = None,
    any_type: Annotated[
        bool, typer.Option("--any-type", help="Send types that the endpoint does not handle. They become dead letters.")
    ] = False,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message for each line of a file.

    A line is a message body (set --type and --id-from) or a CloudEvent, which has its own id, source and type. Sending a file
    twice is safe: the ids are the same, so nothing is handled twice. Exception: an endpoint with deduplication=Tokens(...)
    stores no handled messages. Send to it once, and name it as module:endpoint.

    A CloudEvent can have headers of its own, such as "headers": {"tenant": "acme"}. They replace those of --header with the
    same names.

    With --to module:endpoint, types that the endpoint does not handle are refused, unless you set --any-type.

    A line that is not UTF-8, that no receiver could read, or whose headers are invalid is refused with its number, and the
    others are sent. At a line that is not a message, sending stops.

    Exits with code 1 if a line is not a message or a message is refused.
    """
    import asyncio

    from onceonly.cli.bulk_sender import SendTally, unhandled
    from onceonly.cli.events import BadItem, EventDefaults, headers_given
    from onceonly.cli.files import reading

    target = _target(to, transport, event=event)
    if any_type:
        target = target._replace(handled=None)
    if type_ and (problem := unhandled(type_, target.endpoint, target.handled)):
        raise SetupError(f"--type {type_!r}: {problem}")
    ids = tuple(name.strip() for name in id_from.split(",") if name.strip())
    form = EventDefaults(type=type_, source=source, id_from=ids, headers=headers_given(header or ()))
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
    _show_result(tally, target, problem, as_json=as_json)


async def _send(stream: BinaryIO, form: "EventDefaults", target: SendTarget, tally: "SendTally") -> None:
    from onceonly.assembly import open_own_transport, open_transport
    from onceonly.assembly.deduplication import open_token_issuer
    from onceonly.cli.bulk_sender import TokenIssuing, send_all
    from onceonly.cli.events import read_items, to_message
    from onceonly.cli.files import interruptible
    from onceonly.cli.targets import connect, connection_errors

    settings = target.settings
    opening = open_transport(target.transport, target.endpoint or "cli") if settings is None else open_own_transport(settings)
    async with connect("transport", target.transport, opening) as transport:
        if target.topology is not None and (settings is None or settings.receives_from is None):
            async with connection_errors("transport", target.transport):
                await transport.declare([target.topology])
        async with AsyncExitStack() as stack:
            sender: SendPort = transport
            if target.issuer is not None:
                opening_issuer = connect("tokens", target.issuer.plan.tokens, open_token_issuer(target.issuer))
                sender = TokenIssuing(transport, await stack.enter_async_context(opening_issuer))
            bar = stack.enter_context(progress())
            task = bar.add_task("sending", total=None)
            await send_all(
                (to_message(item, form) for item in read_items(interruptible(stream))),
                sender,
                to=target.endpoint,
                handled=target.handled,
                tally=tally,
                tick=lambda count: bar.advance(task, count),
            )


def _target(to: str, transport: str | None, *, event: bool) -> SendTarget:
    from onceonly.cli.targets import UrlOverrides, load
    from onceonly.model.limits import NAME_RULE, is_endpoint_name

    if bool(to) == event:
        raise SetupError("no destination: use --to ENDPOINT to send commands, or --event to publish events")
    if ":" in to:
        endpoint = load(to)
        settings = UrlOverrides(transport=transport).settings(endpoint)
        issuer = settings if settings.plan.tokens is not None else None
        topology = endpoint.topology()
        return SendTarget(
            endpoint.name,
            settings.required_transport,
            topology,
            issuer,
            tuple(sorted(topology.events + topology.commands)),
            settings,
        )
    if to and not is_endpoint_name(to):
        raise SetupError(f"--to {to!r}: {NAME_RULE}")
    if transport is None:
        raise SetupError(
            "no transport: set --transport URL or ONCEONLY_TRANSPORT, or use the endpoint's own with --to module:endpoint"
        )
    return SendTarget(to, transport)


def _show_result(tally: "SendTally", target: SendTarget, problem: str, *, as_json: bool) -> None:
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
        print_error(f"{problem}. Sending stopped there. Correct the line and send the file again: the ids stay the same")
    elif tally.refused:
        print_error(f"{len(tally.refused)} refused: {tally.refused[0].reason}")
    elif tally.unknown:
        print_error(f"{tally.unknown} not confirmed by the broker. Send the file again: this is safe, the ids stay the same")
    if problem or tally.refused or tally.unknown:
        raise typer.Exit(NEGATIVE)
