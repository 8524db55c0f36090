"""`onceonly run`: endpoints in supervised processes, until a signal."""

import logging
import platform
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from onceonly.cli.commands import HealthOption, LogFormat, LogLevel, LogLevelOption, StoreOption, TransportOption
from onceonly.model.errors import SetupError

WORKER = "onceonly.cli.child"
"""The module of what a worker process runs."""


def run(  # noqa: PLR0913 - one parameter for each option
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1024, help="Number of processes.")] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Batches in work at once, for each endpoint in each process [default: 1 or 2, more while handlers wait].",
        ),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a .py file in this directory tree changes.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when the queues are empty. One process only.")] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Run in this process, for breakpoint(): no time limits, and nothing restarts it."),
    ] = False,
    freeze: Annotated[
        bool, typer.Option(help="Exempt objects that exist after the start from garbage collection in worker processes.")
    ] = True,
    log_format: Annotated[LogFormat, typer.Option(help="Log as text, or as one JSON object for each line.")] = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    health: HealthOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Run endpoints until SIGTERM or Ctrl-C, then finish the messages in work and stop.

    A process that dies or hangs is replaced, and its messages are delivered again. If a server is unreachable, the command
    retries until it answers. With --health, GET /live and /ready report the state of all processes: 200, or 503 if they need
    attention. GET /metrics has their numbers for Prometheus.

    Exits with code 2 if the configuration is wrong. With --drain, exits with code 1 if any message is left: waiting, held,
    delayed or unsent.
    """
    if debug and (drain or reload or processes > 1 or health is not None):
        raise SetupError("--debug runs in one process, unsupervised: leave out --processes, --reload, --drain and --health")
    if drain and (reload or processes > 1 or health is not None):
        raise SetupError("--drain runs in one process, once: leave out --processes, --reload and --health")
    from onceonly.runtime.processes.early_start import early_start

    with nullcontext() if debug or drain else early_start(processes, [WORKER]) as early:
        # the worker processes import the library meanwhile
        from onceonly.cli.child import ChildPlan
        from onceonly.runtime.observe.logs import log_to_stderr

        plan = ChildPlan(
            names=tuple(endpoints),
            concurrency=concurrency,
            store=store,
            transport=transport,
            json_logs=log_format is LogFormat.JSON,
            log_level=log_level.value,  # plain data: a worker process that reads it must not import Typer
            health=health,
            debug=debug,
            freeze=freeze,
        )
        log_to_stderr(json_lines=plan.json_logs, level=plan.log_level)
        _warn_without_lock()
        if early is not None:
            from onceonly.cli.supervision import run_supervised

            code = run_supervised(plan, processes=processes, reload=reload, early=early)
        elif drain:
            from onceonly.cli.drain import run_drain

            code = run_drain(plan)
        else:
            from onceonly.cli.debugger import run_debugged

            code = run_debugged(plan)
    raise typer.Exit(code)


def _warn_without_lock() -> None:
    """Warn if the global interpreter lock is off, as in a free-threaded build. No test has run without it."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return
    from onceonly.formats.log_events import EventLogger

    log = EventLogger(logging.getLogger("onceonly"))
    log.warning("not tested without the global interpreter lock", extra={"python": platform.python_version()})
