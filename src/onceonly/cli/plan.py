"""`onceonly plan`: the size and cleanup cost of deduplication data, measured on this database."""

from typing import Annotated

import typer

from onceonly.cli.options import StoreOption


def plan(  # noqa: PLR0913 - one parameter for each option
    place: Annotated[str, typer.Argument(metavar="ENDPOINT_OR_URL", help="module:endpoint, or the URL of a SQL store.")],
    *,
    rate: Annotated[float, typer.Option("--rate", metavar="N", help="Messages per second, averaged over a day.")],
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="7d",
            help="How long claims are kept [default: the retention of the existing tables, else the endpoint's].",
        ),
    ] = None,
    in_flight: Annotated[
        str, typer.Option("--in-flight", metavar="1min", help="How long a message waits until it is handled; used for tokens.")
    ] = "1min",
    sample: Annotated[
        int, typer.Option("--sample", min=1000, max=1_000_000, help="Number of rows in the measured sample.")
    ] = 50_000,
    store: StoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Estimate the size of claims and tokens in this database, and the cost of deleting them.

    Inserts a sample into temporary tables, measures them and deletes them. The database user needs the right to create tables.
    Existing tables and settings are not changed. Settings that `onceonly run` would refuse are refused here too.
    """
    from onceonly.cli.work import plan as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.plan(place, rate=rate, retention=retention, in_flight=in_flight, sample=sample, store=store, as_json=as_json)
