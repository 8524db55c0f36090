"""Providers: users' factories of what handlers ask for, in the order in which they need each other."""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, get_args, get_origin

from onceonly.endpoint.context import Context
from onceonly.endpoint.signatures import CallStyle, Function, ProviderScope, RegisteredProvider, words
from onceonly.systems import Offer

_YIELDING = {
    CallStyle.GENERATOR: (Iterator, Iterable, Generator),
    CallStyle.ASYNC_GENERATOR: (AsyncIterator, AsyncIterable, AsyncGenerator),
}


class ProviderPlan(NamedTuple):
    """How to run one factory: what it makes, for how long, and from what."""

    function: Function
    kind: Any
    scope: ProviderScope
    arguments: Mapping[str, Any]

    async def open(self, stack: AsyncExitStack, find: Callable[[Any], object]) -> object:
        """Make the object; what is to be cleaned up is left on the stack."""
        arguments = {name: find(kind) for name, kind in self.arguments.items()}
        call = self.function.call
        match self.function.flavour:
            case CallStyle.ASYNC_GENERATOR:
                return await stack.enter_async_context(asynccontextmanager(call)(**arguments))
            case CallStyle.GENERATOR:
                return stack.enter_context(contextmanager(call)(**arguments))
            case CallStyle.COROUTINE:
                return await call(**arguments)
            case CallStyle.PLAIN:
                return call(**arguments)


class Providers(NamedTuple):
    """All factories by what they make; `ordered` has each one behind those that it needs."""

    by_kind: Mapping[Any, ProviderPlan]
    ordered: tuple[ProviderPlan, ...]

    def find(self, annotation: Any) -> Any:
        return next((kind for kind in self.by_kind if kind is annotation or kind == annotation), None)

    def needed_by(self, kinds: Iterable[Any]) -> tuple[ProviderPlan, ...]:
        """Return the factories that these need, directly or not, in order."""
        wanted, queue = set[Any](), list(kinds)
        while queue:
            kind = queue.pop()
            if kind in self.by_kind and kind not in wanted:
                wanted.add(kind)
                queue += self.by_kind[kind].arguments.values()
        return tuple(each for each in self.ordered if each.kind in wanted)


def plan_providers(registered: Sequence[RegisteredProvider], offer: Offer, problems: list[str]) -> Providers:
    """Plan all factories; adds what is wrong to `problems`."""
    kinds = {each.function: _made_by(each, offer, problems) for each in registered}
    scopes: dict[Any, RegisteredProvider] = {}
    for each in registered:
        kind = kinds[each.function]
        if kind is None:
            continue
        if kind in scopes:
            problems.append(
                f"{scopes[kind].function.name} and {each.function.name} both provide {words(kind)}: remove one of them"
            )
        scopes[kind] = each
    by_kind = {kind: _plan_one(each, kind, all_=scopes, offer=offer, problems=problems) for kind, each in scopes.items()}
    return Providers(by_kind, _in_order(by_kind, problems))


def _made_by(registered: RegisteredProvider, offer: Offer, problems: list[str]) -> Any:
    """Return the type that a factory makes, by its return annotation; None when it is wrong."""
    function = registered.function
    made = function.signature().returns
    yielding = _YIELDING.get(function.flavour)
    if yielding and made is not inspect.Parameter.empty:
        made = get_args(made)[0] if get_origin(made) in yielding and get_args(made) else None
    if registered.scope not in {scope.value for scope in ProviderScope}:
        problems.append(f"provider {function.name}: scope must be 'process' or 'message', not {registered.scope!r}")
    elif made is inspect.Parameter.empty or made is None or made is type(None):
        wanted = " as Iterator[...] or AsyncIterator[...]" if yielding else ""
        problems.append(f"provider {function.name}: annotate its return type{wanted}; handlers request it by this type")
    elif made is Context or offer.match(made, offer.asynchronous | offer.synchronous):
        problems.append(f"provider {function.name}: {words(made)} is already provided by onceonly")
    else:
        return made
    return None


def _plan_one(
    registered: RegisteredProvider, kind: Any, *, all_: Mapping[Any, RegisteredProvider], offer: Offer, problems: list[str]
) -> ProviderPlan:
    function, scope = registered.function, ProviderScope(registered.scope)
    signature = function.signature()
    wrong = list(signature.problems)
    arguments: dict[str, Any] = {}
    for name, annotation, has_default in () if wrong else signature.parameters:
        found = Context if annotation is Context else offer.match(annotation, offer.asynchronous)
        is_synchronous = found is None and offer.match(annotation, offer.synchronous) is not None
        needed = next((all_[each] for each in all_ if each == annotation), None)
        for_each_message = found is not None or (needed is not None and needed.scope == ProviderScope.MESSAGE.value)
        if for_each_message and scope is ProviderScope.PROCESS:
            wrong.append(f'{name}: {words(annotation)} exists for each message only: use @provide(scope="message")')
        elif is_synchronous and needed is None:
            wrong.append(
                f'{name}: {words(annotation)} is for def handlers; providers with @provide(scope="message") can ask for '
                f"{offer.words(offer.asynchronous)}"
            )
        elif found is not None or needed is not None:
            arguments[name] = annotation if found is None else found
        elif not has_default:
            wrong.append(
                f"{name}: {'a value' if annotation is inspect.Parameter.empty else words(annotation)} cannot "
                "be injected: no provider returns it"
            )
    problems += [f"provider {function.name}: {each}" for each in wrong]
    return ProviderPlan(function, kind, scope, arguments)


def _in_order(by_kind: Mapping[Any, ProviderPlan], problems: list[str]) -> tuple[ProviderPlan, ...]:
    """Put every factory behind those it needs; a circle is a problem, named once."""
    ordered: list[ProviderPlan] = []
    waiting = dict(by_kind)
    while waiting:
        ready = [each for each in waiting.values() if not any(needed in waiting for needed in each.arguments.values())]
        if not ready:
            names = ", ".join(each.function.name for each in waiting.values())
            problems.append(f"circular dependency of providers: {names}")
            break
        ordered += ready
        waiting = {kind: each for kind, each in waiting.items() if each not in ready}
    return tuple(ordered)
