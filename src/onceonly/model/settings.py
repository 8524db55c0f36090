"""Settings of an endpoint: frozen, checked on construction, all problems reported at once."""

import re
from dataclasses import dataclass
from datetime import timedelta

from onceonly.model.errors import SetupError

NAME_RULE = "an endpoint's name is a lower-case letter, then at most 62 lower-case letters, digits, '-', '_' or '.'"

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class History:
    """Deduplication by claims that the store itself keeps, at least for `retention`.

    Nothing evicts claims in this version, so a copy is known however late it comes; `retention` says how long it must be.
    """

    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises SetupError."""
        if self.retention <= timedelta():
            raise SetupError("History: retention must be a timedelta longer than 0")


@dataclass(frozen=True)
class Off:
    """No deduplication: honest at-least-once, for control runs and comparisons. Copies are handled again."""


Deduplication = History | Off


def is_endpoint_name(name: object) -> bool:
    """Tell whether an endpoint may be called this; names are parts of queue names, so they come from an allow-list."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
