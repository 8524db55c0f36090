"""Where a process listens: `HOST:PORT`, and this machine alone unless a host is named."""

import re
from typing import NamedTuple

from onceonly.model.wording import an

LOOPBACK = "127.0.0.1"
_MOST = 65_535
_FORM = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]*):)?(?P<port>\d{1,5})")
FORM = 'use HOST:PORT, such as "127.0.0.1:8080", or "8080" for this machine alone'


class Address(NamedTuple):
    """A host, by name or number, and a port; 0 has the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `:PORT` or `PORT`. Raises ValueError, which describes what to write."""
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"]) > _MOST:
        given = "a URL" if "@" in text or "://" in text else f"{text!r:.100}"  # a URL may hold a password
        raise ValueError(f"{given} is not an address: {FORM}")
    return Address((found["host"] or LOOPBACK).strip("[]"), int(found["port"]))


def address_problem(text: object) -> str | None:
    """Return what is wrong with an address."""
    if not isinstance(text, str):
        return f"must be text, not {an(type(text).__name__)}: {FORM}"
    try:
        parse_address(text)
    except ValueError as error:
        return str(error)
    return None
