"""`onceonly status`: queues, pending records, dead letters and maintenance of endpoints."""

from typing import Annotated

import typer

from onceonly.cli.options import JsonOption, StoreOption, TransportOption


def status(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, max=86_400, metavar="SECONDS", help="Interval of --watch.")] = 2.0,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the queue, pending records, dead letters and maintenance of each endpoint.

    Columns:

    * waiting: messages in the queue that no worker has received

    * held: messages that workers are processing

    * delayed: messages that are not due yet, such as retries

    * records: handled messages whose own messages are not all sent

    * late: records older than `relay_after`

    * oldest: age of the oldest record, in seconds

    * dead letters: messages that were given up

    Columns for endpoints that use these features:

    * wake up: whether the PostgreSQL queue is notified or polled

    * unsubscribed: events that it published and that had no subscriber

    * dropped: messages without a live token, usually duplicates

    * prepared, live: tokens of messages to the endpoint

    * marks: messages in its dedup store

    * attempts: open attempts to create blobs and requests

    * late buckets: time buckets of claims that were not rotated in time

    * janitor: state and last run of the clean-up tasks

    * processes: processes that run the endpoint

    With --watch and --json, each refresh is one line of JSON. A failed refresh is a line with "error".
    """
    from onceonly.cli.work import status as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.status(endpoints, watch=watch, every=every, store=store, transport=transport, as_json=as_json)
