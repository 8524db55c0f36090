"""`onceonly send`: messages from a file or standard input into a queue."""

from typing import Annotated

import typer

from onceonly.cli.options import JsonOption, TransportOption


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
    from onceonly.cli.work import send as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.send(
        file,
        to=to,
        event=event,
        type_=type_,
        id_from=id_from,
        source=source,
        headers=header or (),
        any_type=any_type,
        transport=transport,
        as_json=as_json,
    )
