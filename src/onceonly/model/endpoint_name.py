"""Which names an endpoint may have. Names are parts of queue names and of commands to brokers, so they come from an allow-list.

A name that is read back, from a broker's subscriptions or from a table, is foreign text until it has passed this rule.
"""

import re
from typing import TypeGuard

NAME_RULE = "an endpoint name is a lower-case letter, then at most 62 lower-case letters, digits, '-', '_' or '.'"

_is_name = re.compile(r"[a-z][a-z0-9_.-]{0,62}").fullmatch


def is_endpoint_name(name: object) -> TypeGuard[str]:
    """Return whether an endpoint may have this name."""
    return isinstance(name, str) and _is_name(name) is not None
