"""`onceonly janitor`: clean up now, once; for a timer of your own where `janitor=False`, and for whoever cannot wait."""

from typing import Annotated

import typer

from onceonly.cli.options import JsonOption, StoreOption, TransportOption


def janitor(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run all clean-up tasks now, even if they are not due. `onceonly run` runs them automatically.

    Exits with code 1 if a task failed, a time bucket is late, or another process is running the tasks.
    """
    from onceonly.cli.work import janitor as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.janitor(endpoints, store=store, transport=transport, as_json=as_json)
