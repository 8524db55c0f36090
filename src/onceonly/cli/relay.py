"""`onceonly relay`: sends committed messages without running handlers, until it is stopped."""

from typing import Annotated

import typer

from onceonly.cli.options import HealthOption, LogFormat, LogLevel, LogLevelOption, StoreOption, TransportOption


def relay(
    endpoints: Annotated[
        list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints whose messages to send, such as shop:shop.")
    ],
    *,
    log_format: Annotated[LogFormat, typer.Option(help="Log as text, or as one JSON object for each line.")] = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    health: HealthOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Send messages that were committed and not sent, until SIGTERM or Ctrl-C. Runs no handlers.

    Use it if messages are committed by processes in which the endpoint does not run. `onceonly run` includes it. Several relays
    share the work: to add one, start this command again.

    If a server is unreachable, the relay retries until it answers. With --health, GET /live and /ready report its state. The
    `health=` of endpoints is ignored. Exits with code 2 if the configuration is wrong.
    """
    from onceonly.cli.work import relay as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.relay(endpoints, log_format=log_format, log_level=log_level, health=health, store=store, transport=transport)
