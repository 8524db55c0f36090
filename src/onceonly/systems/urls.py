"""Read the URL of a system: its host and its options. Error messages never contain a password."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, parse_qsl, urlsplit

from onceonly.model.errors import SetupError

__all__ = ["read_number", "read_options", "read_seconds", "read_truth", "split_url"]

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

    Raises SetupError for an unknown option, for one that is given twice, and for one without a `=`.
    """
    names = sorted(known)
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, value = parse_qsl(part, keep_blank_values=True)[0]
        if name not in names:
            raise SetupError(f"unknown option {name!r} in the {service} URL. Supported: {', '.join(names)}")
        if "=" not in part:
            raise SetupError(f"option {name} has no value in the {service} URL: write {name}=VALUE")
        if name in options:
            raise SetupError(f"option {name} is set more than once in the {service} URL: set it once")
        options[name] = value
    return options


def read_seconds(options: Mapping[str, str], name: str, default: float, *, zero: bool = False) -> float:
    """Return an option in seconds, with up to three decimals. Raises SetupError unless it is above 0 and below 10000.

    `zero`: whether 0 is allowed too.
    """
    text = options.get(name, str(default))
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text) or not (float(text) or zero):
        bounds = "below 10000" if zero else "above 0, below 10000"
        raise SetupError(f"option {name}={text!r}: use a number of seconds {bounds}, such as 30")
    return float(text)


def read_number(
    options: Mapping[str, str], name: str, default: int, *, least: int = 1, most: int = 999_999_999, unit: str = ""
) -> int:
    """Return an option that is a whole number. Raises SetupError unless it is from `least` to `most`.

    `unit` is for the error message, such as "bytes".
    """
    text = options.get(name, str(default))
    if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
        kind = f"a whole number of {unit}" if unit else "a whole number"
        raise SetupError(f"option {name}={text!r}: use {kind} from {least} to {most}")
    return int(text)


def read_truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false, also written as 1, 0, yes or no. Raises SetupError for anything else."""
    text = options.get(name, str(default))
    if text.lower() not in _TRUTH:
        raise SetupError(f"option {name}={text!r}: use true or false")
    return _TRUTH[text.lower()]
