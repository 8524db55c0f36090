"""Read the URL of a system, its host and its options, and the address where a process listens. No error contains a password."""

import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.model.escaping import is_utf8
from onceonly.model.wording import an

__all__ = [
    "Hiding",
    "check_login",
    "is_plain_http",
    "read_number",
    "read_options",
    "read_seconds",
    "read_truth",
    "split_parts",
    "split_url",
]

_UNREADABLE = r"[\x00-\x1f\x7f]"
"""Characters that no URL has, nor what is not UTF-8. Parsers drop some of them silently, and what is left is another URL."""
_WORD = r"(?:[A-Za-z][A-Za-z_-]{0,19})?"
_ENCODE = (
    "percent-encode @ : / ? # [ ] in the user and the password, and @ everywhere else in the URL. "
    "Write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D"
)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Hiding(Struct, frozen=True, kw_only=True):
    """A struct whose `repr` shows none of its `secrets`, the names of fields: a traceback may show its variables."""

    secrets: ClassVar[tuple[str, ...]] = ("key", "password", "secret", "token", "url", "user")

    def __repr__(self) -> str:
        names: tuple[str, ...] = self.__struct_fields__
        fields = (f"{name}={'...' if name in self.secrets else repr(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({', '.join(fields)})"


def check_login(url: str) -> None:
    """Check that every parser finds the same user, password and host in a URL. Call it before any of them.

    The characters @ : / ? # [ ] must be percent-encoded in the user and in the password; otherwise a part of the password is
    taken for a host, a path or an option, and is shown. Raises SetupError, which contains nothing of the URL.
    """
    if problem := login_problem(url):
        raise SetupError(problem)


def login_problem(url: str) -> str | None:
    if re.search(_UNREADABLE, url) or not is_utf8(url):
        return "a control character, a line break or a byte that is not UTF-8 is in this URL: remove or percent-encode it"
    _, separator, rest = url.partition("://")
    if not separator:
        return "not a URL: write SCHEME://"
    end = re.search(r"[/?#]", rest)
    authority, behind = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    login = authority.rpartition("@")[0]
    path, options = _divided(behind)
    strays = options if not authority else path + options  # in the path of a file, an @ is a letter like others
    if "@" in strays or "@" in login or login.count(":") > 1 or re.search(r"[\s\[\]]", login):
        return f"the user or the password in this URL cannot be read: {_ENCODE}"
    return None


def split_parts(url: str, service: str, example: str) -> SplitResult:
    """Return the parts of a URL, which may name no host or several.

    `service` and `example`, a URL, are for the error message, which contains nothing of the URL. Raises SetupError.
    """
    check_login(url)
    try:
        return urlsplit(url)
    except ValueError:
        pass  # its text, and a cause or a context, would repeat parts of the URL
    raise SetupError(f"not a {service} URL: use a URL such as {example}")


def split_url(url: str, service: str, example: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port, None if it has none.

    `service` and `example`, a URL, are for the error message, which contains nothing of the URL. Raises SetupError for a URL
    without a host.
    """
    parts = split_parts(url, service, example)
    try:
        port = parts.port
    except ValueError:
        port = -1  # as in `split_parts`
    if port == -1:
        raise SetupError(f"not a {service} URL: use a URL such as {example}")
    if not parts.hostname:
        raise SetupError(f"this {service} URL has no host: use a URL such as {example}")
    return parts, port


def is_plain_http(url: str) -> bool:
    """Return whether this is an http or https URL with a host, and without a user, options and a fragment."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_extended = parts.username is not None or parts.query or parts.fragment or port == 0
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not is_extended


def server_of(url: str) -> str:
    """Return the server of an http or https URL, however the URL is spelled: its host, its port if unusual, and its path."""
    parts = urlsplit(url)
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, usual) else f":{parts.port}"
    return f"{(parts.hostname or '').rstrip('.')}{port}{parts.path.rstrip('/')}"


def _divided(behind: str) -> tuple[str, str]:
    """Divide what follows the host into the path, and the options with the fragment."""
    found = re.search(r"[?#]", behind)
    return (behind[: found.start()], behind[found.start() :]) if found else (behind, "")


def read_options(query: str, service: str, known: Iterable[str]) -> dict[str, str]:
    """Return the options in the query of a URL. `known` are their names, `service` is for the error message.

    Raises SetupError for an unknown option, for one that is given twice, and for one without a `=`.
    """
    names = sorted(known)
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, value = parse_qsl(part, keep_blank_values=True)[0]
        if name not in names:
            shown = f"unknown option {name!r}" if re.fullmatch(_WORD, name) else "unknown option"  # else perhaps of a password
            raise SetupError(f"{shown} in the {service} URL. Supported: {', '.join(names)}")
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


LOOPBACK = "127.0.0.1"
_MOST = 65_535
_FORM = r"(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]*):)?(?P<port>\d{1,5})"
FORM = 'use HOST:PORT, such as "127.0.0.1:8080", or "8080" for this machine alone'


class Address(NamedTuple):
    """A host, by name or number, and a port; 0 has the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `:PORT` or `PORT`. Raises ValueError, which describes what to write."""
    found = re.fullmatch(_FORM, text)
    if found is None or int(found["port"]) > _MOST:
        given = "a URL" if "@" in text or "://" in text else f"{text!r:.100}"  # a URL may hold a password
        raise ValueError(f"{given} is not an address: {FORM}")
    return Address((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))


def address_problem(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be text, not {an(type(text).__name__)}: {FORM}"
    try:
        parse_address(text)
    except ValueError as error:
        return str(error)
    return None
