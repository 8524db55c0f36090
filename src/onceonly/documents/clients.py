"""Helpers for the client of a service: options of its URL, and errors that drivers raise by accident."""

import re
from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qsl, urlsplit

from onceonly.model.errors import SetupError

__all__ = ["DRIVER_FAULTS", "read_options", "read_seconds", "read_truth", "split_url"]

DRIVER_FAULTS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StopAsyncIteration,
    TypeError,
    ValueError,
)
"""Built-in errors that drivers raise when a connection breaks or its data is garbled.

Which one is raised depends on the moment, the driver's version and the event loop. Catch them around calls of a driver, and
nowhere else. They leave the outcome of a write unknown. Errors of this library are not among them.
"""
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def split_url(url: str, service: str, example: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port, None if it has none.

    `service` and `example`, a URL, are for the error message, which never contains a password. Raises SetupError for a URL
    without a host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SetupError(f"not a {service} URL: use a URL such as {example}") from error
    if not parts.hostname or "@" in parts.path:
        raise SetupError(f"this {service} URL has no host: use a URL such as {example}, and write / in a password as %2F")
    return parts, port


def read_options(query: str, service: str, known: Iterable[str]) -> dict[str, str]:
    """Return the options in the query of a URL. `known` are their names, `service` is for the error message.

    Raises SetupError for an unknown option, and for one that is given twice.
    """
    names = sorted(known)
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in names:
            raise SetupError(f"unknown option {name!r} in a {service} URL. Supported: {', '.join(names)}")
        if name in options:
            raise SetupError(f"option {name} is set more than once in a {service} URL: set it once")
        options[name] = value
    return options


def read_seconds(options: dict[str, str], name: str, default: float) -> float:
    """Return an option in seconds, with up to three decimals. Raises SetupError unless it is above 0 and below 10000."""
    text = options.get(name, str(default))
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text) or float(text) <= 0:
        raise SetupError(f"option {name}={text!r}: use a number of seconds above 0, below 10000, such as 30")
    return float(text)


def read_truth(options: dict[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false, also written as 1, 0, yes or no. Raises SetupError for anything else."""
    text = options.get(name, str(default)).lower()
    if text not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: use true or false")
    return _TRUTH[text]
