"""`onceonly leave`: what must be gone before the library can be removed."""

from typing import TYPE_CHECKING, Annotated

import typer

from onceonly.cli.commands import JsonOption, StoreOption, TransportOption
from onceonly.cli.output import NEGATIVE, say, show_json, show_table

if TYPE_CHECKING:
    from onceonly.cli.remainders import Departure, Remainder


def leave(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what must be gone before the library can be removed from endpoints, and when it is.

    Changes nothing, and needs no running worker. Exits with code 0 if nothing is left that matters, with 1 if something is, or
    if the store holds documents, whose claims and entities are not counted.

    Claims, keys, tokens and entities are counted for all endpoints of the tables, because they do not show whose they are.
    """
    import asyncio

    from onceonly.cli.remainders import read_departure
    from onceonly.cli.targets import UrlOverrides, load_all

    settings = [UrlOverrides(store, transport).settings(endpoint) for endpoint in load_all(endpoints)]

    async def read() -> "list[Departure]":
        return [await read_departure(each) for each in settings]

    found = asyncio.run(read())
    if as_json:
        show_json(found)
    else:
        rows = [_row(departure, each) for departure in found for each in departure.remainders]
        show_table("", ("endpoint", "what", "left", "needed until", "to do"), rows)
        for departure in found:
            state = "nothing is left that matters" if departure.clear else "the library is still needed"
            say(f"{departure.endpoint}: {state}")
    if not all(departure.clear for departure in found):
        raise typer.Exit(NEGATIVE)


def _row(departure: "Departure", each: "Remainder") -> tuple[str, ...]:
    left = "unknown" if each.count is None else f"{each.count:,}{' or more' if each.more else ''}"
    until = "-" if each.expires is None else f"{each.expires:%Y-%m-%d %H:%M:%S} UTC"
    what = f"{each.what}, {each.whose}" if each.whose and each.count else each.what
    return departure.endpoint, what, left, until, each.to_do or "-"
