"""What a user registered, as it was registered; judged when the endpoint starts, when everything is defined."""

from enum import Enum
from typing import Any, NamedTuple

from msgspec import Struct, field

from onceonly.endpoint.signatures import Function
from onceonly.model.retry import Retry


class Scope(Enum):
    """For how long what a provider made is kept."""

    PROCESS = "process"
    MESSAGE = "message"


class RegisteredHandler(NamedTuple):
    """A handler and what was said about it; None means as the endpoint says."""

    function: Function
    type: str | None
    retry: Retry | None
    timeout: float | None
    entity: Any = None
    key: Any = None
    batch: bool = False
    own_transaction: bool = False
    isolation: str | None = None


class RegisteredProvider(NamedTuple):
    """A factory of something that handlers ask for."""

    function: Function
    scope: str


class Registrations(Struct, eq=False):
    """What was registered at one endpoint. Registration may go on until the endpoint is opened."""

    handlers: list[RegisteredHandler] = field(default_factory=list)
    responders: list[RegisteredHandler] = field(default_factory=list)
    providers: list[RegisteredProvider] = field(default_factory=list)
    middleware: list[Function] = field(default_factory=list)
