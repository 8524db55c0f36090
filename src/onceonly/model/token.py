"""Tokens: the right to handle one message once, at one endpoint."""

from typing import NamedTuple

from onceonly.model.identity import Identity

TOKEN = "token"  # noqa: S105 - an attribute's name, no secret
"""The CloudEvents extension attribute that carries a message's token."""


class Token(NamedTuple):
    """The right to handle one message once, at one endpoint. `id` is fresh for each attempt of its sender."""

    id: str
    endpoint: str


class Owner(NamedTuple):
    """Who prepared a token: the unit (an entity's key, empty for others) and the message whose record confirms it."""

    endpoint: str
    unit: str
    identity: Identity


class PreparedToken(NamedTuple):
    """A token that is not live yet, as the sweeper finds it; `at` is in milliseconds since 1970."""

    token: Token
    owner: Owner
    at: int
