"""What the clients of document services share: how their URLs are read, and what their drivers raise by accident."""

import re
from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qsl, urlsplit

from onceonly.model.errors import SetupError

TRIPPED: tuple[type[Exception], ...] = (
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
"""What a driver raises when it trips over a connection that was cut or garbled: errors of Python's own, of any family.

Which one depends on the moment, the driver's version and the event loop. Catch these where a driver is called, and nowhere
else; this library's own errors are not among them.
"""
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def split_url(url: str, service: str, example: str) -> tuple[SplitResult, int | None]:
    """Split a URL; gives its parts and its port. Raises SetupError when it names no host, and never repeats a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SetupError(f"this is no {service} URL; write for example {example}") from error
    if not parts.hostname or "@" in parts.path:
        raise SetupError(f"this {service} URL has no host; write for example {example}, and / in a password as %2F")
    return parts, port


def read_options(query: str, service: str, known: Iterable[str]) -> dict[str, str]:
    """Read the options behind the question mark. Raises SetupError for an unknown one, and for one that is given twice."""
    names = sorted(known)
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in names:
            raise SetupError(f"unknown option {name!r} in a {service} URL; there are {', '.join(names)}")
        if name in options:
            raise SetupError(f"option {name} is given more than once in a {service} URL")
        options[name] = value
    return options


def seconds(options: dict[str, str], name: str, default: float) -> float:
    """Read a number of seconds, more than none. Raises SetupError."""
    text = options.get(name, str(default))
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text) or float(text) <= 0:
        raise SetupError(f"option {name}={text!r}: write a number of seconds")
    return float(text)


def truth(options: dict[str, str], name: str, *, default: bool) -> bool:
    """Read true or false. Raises SetupError."""
    text = options.get(name, str(default)).lower()
    if text not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: write true or false")
    return _TRUTH[text]
