"""Finding what a process-scoped provider keeps of one run of a handler: its session, its connection, or an object of a session.

What a handler is given ends with its run. A cache or a repository that lives as long as the process and keeps it gets an error
at the next use, far from the cause. So the objects of providers are searched at the end of watched runs; see `left_tasks`.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from types import BuiltinFunctionType, CodeType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from onceonly.endpoint.providers import ProviderPlan
from onceonly.endpoint.signatures import words
from onceonly.formats.log_events import EventLogger
from onceonly.ports.store import Resources, SyncThread

MOST_OBJECTS = 300
"""How many objects of one provider are searched. A container of more is passed over."""
DEPTH = 6
"""How many references away from the provider's object is searched."""

_STATE = "_sa_instance_state"  # the attribute in which SQLAlchemy keeps the session of an object
_INNER = ("sync_session", "sync_connection")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_NONE = object()
_PASSED_OVER = (
    *(str, bytes, int, float, type(None), type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType),
    *(CoroutineType, GeneratorType, Context, asyncio.AbstractEventLoop, asyncio.Future),
)
"""What is not searched: it has no parts, or leads to everything."""
_log = EventLogger(logging.getLogger("onceonly"))


class ProvidedObjects:
    """The objects of process-scoped providers. Each provider is reported once."""

    def __init__(self, plans: Iterable[ProviderPlan], made: Mapping[Any, object]) -> None:
        self._left = {each.function.path: made[each.kind] for each in plans if each.kind in made}

    @property
    def is_empty(self) -> bool:
        return not self._left

    def look(self, given: Sequence[object], handler: str) -> None:
        """Log the providers whose objects keep something that a handler was given."""
        for provider, root in tuple(self._left.items()):
            if (kept := _find_kept(root, given)) is not None:
                del self._left[provider]
                fields = {"provider": provider, "handler": handler, "kept": words(type(kept))}
                _log.warning("process-scoped provider keeps what ends with a handler", extra=fields)


class WatchedResources:
    """The resources of one run, which searches the providers' objects when its function has returned."""

    def __init__(self, resources: Resources, provided: ProvidedObjects, handler: str) -> None:
        self._resources = resources
        self._provided = provided
        self._handler = handler
        self._used: list[object] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resources, name)

    def get(self, kind: type) -> object:
        return self._add(self._resources.get(kind))

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        self._check(is_last=is_last)
        return self._resources.leave(is_last=is_last)

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Search at the end of the function; see the port."""

        def run(get: Callable[[type], object]) -> Any:
            left = function(lambda kind: self._add(get(kind)))
            self._check(is_last=is_last)
            return left

        return await self._resources.run_sync(run, thread, is_last=is_last)

    def _add(self, resource: object) -> object:
        self._used.append(resource)
        return resource

    def _check(self, *, is_last: bool) -> None:
        if self._used:
            self._provided.look(self._used, self._handler)
        if is_last:
            self._used.clear()  # nothing here keeps it either


def _find_kept(root: object, given: Iterable[object]) -> object:
    """Search what an object refers to, the nearest first. None if nothing of it belongs to a run."""
    own = {id(each) for resource in given for each in (resource, *_inside(resource))}
    seen, level = {id(root)}, [root]
    for _ in range(DEPTH):
        found: list[object] = []
        for each in gc.get_referents(*(each for each in level if not _is_large(each))):
            if isinstance(each, _PASSED_OVER) or id(each) in seen:
                continue
            if id(each) in own or id(_session_of(each)) in own:
                return each
            if len(seen) >= MOST_OBJECTS:
                return None
            seen.add(id(each))
            found.append(each)
        level = found
    return None


def _is_large(value: object) -> bool:
    """Return whether this is a container of so many things that only looking at them takes long, such as a full cache."""
    return isinstance(value, _CONTAINERS) and len(value) > MOST_OBJECTS


def _inside(resource: object) -> Iterable[object]:
    return [inner for name in _INNER if (inner := getattr(resource, name, None)) is not None]


def _session_of(value: object) -> object:
    """Return the session of a mapped object. SQLAlchemy may not be installed, so only its attribute is looked for."""
    try:
        state = object.__getattribute__(value, "__dict__").get(_STATE)
    except AttributeError:
        return _NONE
    return _NONE if state is None else getattr(state, "session", _NONE)
