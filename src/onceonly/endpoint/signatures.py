"""Reading the signatures of users' functions: parameters with real types, whatever way the annotations were written."""

import inspect
import typing
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from types import FrameType
from typing import Any, NamedTuple

from msgspec import Struct, field

from onceonly.formats.annotations import signature_of
from onceonly.model.retry import Retry

POSSIBLE_ERRORS = (NameError, AttributeError, TypeError, SyntaxError)
"""What evaluating an annotation may raise."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class CallStyle(Enum):
    """How a function must be called."""

    PLAIN = "def"
    COROUTINE = "async def"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"


class Parameter(NamedTuple):
    """One parameter; `annotation` is `inspect.Parameter.empty` when it has none."""

    name: str
    annotation: Any
    has_default: bool


class Signature(NamedTuple):
    """A signature taken apart, and what is wrong with it, in words."""

    parameters: tuple[Parameter, ...]
    returns: Any
    problems: tuple[str, ...]


class Function:
    """A user's function, and the frame whose local names its annotations can see."""

    def __init__(self, function: Callable[..., Any], frame: FrameType | None) -> None:
        """Keep the frame only for as long as an annotation still waits for a name that is defined later."""
        self.call = function
        self.name = getattr(function, "__qualname__", repr(function)).replace("<locals>.", "")
        self.path = f"{function.__module__}.{self.name}" if hasattr(function, "__qualname__") else self.name
        self._frame = frame
        self._hints: dict[str, Any] | None = None
        try:
            self._hints = self._evaluate()
        except POSSIBLE_ERRORS:
            return
        self._frame = None

    @cached_property
    def flavour(self) -> CallStyle:
        if inspect.isasyncgenfunction(self.call):
            return CallStyle.ASYNC_GENERATOR
        if inspect.isgeneratorfunction(self.call):
            return CallStyle.GENERATOR
        return CallStyle.COROUTINE if inspect.iscoroutinefunction(self.call) else CallStyle.PLAIN

    def signature(self) -> Signature:
        """Take the signature apart; call it when everything is defined."""
        hints: dict[str, Any] = {}
        problems: list[str] = []
        try:
            hints = self._evaluate() if self._hints is None else self._hints
        except POSSIBLE_ERRORS as error:
            problems.append(f"an annotation cannot be resolved: {error}")
        parameters: list[Parameter] = []
        for each in signature_of(self.call).parameters.values():
            if each.kind in _VARIADIC:
                problems.append(f"{each} cannot be injected: use named parameters")
            elif each.kind is inspect.Parameter.POSITIONAL_ONLY and parameters:
                problems.append(f"{each.name} is positional-only: only the first parameter may be")
            else:
                annotation = hints.get(each.name, inspect.Parameter.empty)
                parameters.append(Parameter(each.name, annotation, each.default is not inspect.Parameter.empty))
        return Signature(tuple(parameters), hints.get("return", inspect.Parameter.empty), tuple(problems))

    def _evaluate(self) -> dict[str, Any]:
        return typing.get_type_hints(self.call, localns=self._frame.f_locals if self._frame is not None else None)


def is_function(candidate: object) -> bool:
    """Return whether this is a function or a method, also one that was decorated with `functools.wraps`."""
    return inspect.isfunction(candidate) or inspect.ismethod(candidate)


def callers_frame() -> FrameType | None:
    """Return the frame of whoever called the function that calls this; None for a module's: its names are seen anyway."""
    frame: FrameType | None = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    return None if frame is None or frame.f_locals is frame.f_globals else frame


def words(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


class ProviderScope(Enum):
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
    partition_key: Any = None

    @property
    def has_unit(self) -> bool:
        """Whether its messages work on an entity, or in a partition."""
        return self.entity is not None or self.partition_key is not None


class RegisteredProvider(NamedTuple):
    function: Function
    scope: str


class Registrations(Struct, eq=False):
    """What was registered at one endpoint. Registration may go on until the endpoint is opened."""

    handlers: list[RegisteredHandler] = field(default_factory=list)
    responders: list[RegisteredHandler] = field(default_factory=list)
    providers: list[RegisteredProvider] = field(default_factory=list)
    middleware: list[Function] = field(default_factory=list)
