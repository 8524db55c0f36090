"""The options that several commands share."""

from enum import StrEnum
from typing import Annotated, TypeAlias

import typer

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", envvar="ONCEONLY_STORE", metavar="URL", help="Store URL [default: the endpoint's]."),
]
TransportOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--transport", envvar="ONCEONLY_TRANSPORT", metavar="URL", help="Transport URL [default: the endpoint's]."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
HealthOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--health",
        envvar="ONCEONLY_HEALTH",
        metavar="HOST:PORT",
        help="Serve GET /live, /ready and /metrics here. A port alone binds to localhost.",
    ),
]


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level on entries are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption = Annotated[
    LogLevel, typer.Option(help="Lowest level to log. At debug, each run of a handler is logged with its duration.")
]


class Component(StrEnum):
    """What a place is used as."""

    STORE = "store"
    TRANSPORT = "transport"
    DOCUMENTS = "documents"
    BLOBS = "blobs"
    HTTP = "http"
    JOURNAL = "journal"
