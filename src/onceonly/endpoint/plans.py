"""From registrations to plans: which handler takes which type, and where each of its arguments comes from.

Everything that is wrong is found here, before anything runs, and reported at once.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from onceonly.endpoint.batch import BatchContext
from onceonly.endpoint.context import Context
from onceonly.endpoint.entities import EntityPlan, EntityRule, plan_entity, takes
from onceonly.endpoint.message_builder import Subscribers
from onceonly.endpoint.message_types import BareName
from onceonly.endpoint.middleware import MiddlewarePlan
from onceonly.endpoint.partitions import PartitionPlan, plan_partition
from onceonly.endpoint.providers import ProviderPlan, Providers, plan_providers
from onceonly.endpoint.received_message import Place
from onceonly.endpoint.signatures import (
    CallStyle,
    Function,
    Parameter,
    ProviderScope,
    RegisteredHandler,
    RegisteredProvider,
    words,
)
from onceonly.formats.bodies import SUPPORTED, BodyError, Codec, body_kind, codec_for, is_supported, type_name
from onceonly.model.errors import InvalidHandler
from onceonly.model.remote import is_operation
from onceonly.model.retry import Retry
from onceonly.systems import SQL, Offer

_OWN_PARAMETERS = 2
"""The first parameters of a middleware: the context, and what runs the next one."""


class HandlerPlan(NamedTuple):
    """How to run one handler. `arguments` maps its parameters, but the first, to the types that fill them."""

    function: Function
    type: str
    codec: Codec
    arguments: Mapping[str, Any]
    providers: tuple[ProviderPlan, ...]
    """Those to run for each message, in order."""
    retry: Retry | None
    timeout: float | None
    entity: EntityPlan | None = None
    """How it works on entities, if it does; then one of its arguments is of that kind."""
    middleware: tuple[MiddlewarePlan, ...] = ()
    """What runs around it, the outermost first."""
    is_command: bool = False
    """Whether its messages are declared as commands, so that the endpoint does not subscribe to them."""
    is_batch: bool = False
    """Whether it takes a list of messages."""
    runs_alone: bool = False
    """Whether each of its messages has a database transaction of its own."""
    isolation: str | None = None
    """The isolation level of these transactions; None for the store's."""
    bare_name: BareName | None = None
    """Set if the type of its messages is only the bare name of their class."""
    partition: PartitionPlan | None = None
    """Which partition its documents are in, where it has said so."""

    @property
    def place(self) -> Place | None:
        """What finds the unit of its messages. None where they have none."""
        found = self.entity or self.partition
        return None if found is None else found.place

    @property
    def is_async(self) -> bool:
        """Whether it is awaited; otherwise it runs with the unit's synchronous resources."""
        return self.function.flavour is CallStyle.COROUTINE


class Plans(NamedTuple):
    """All handlers by message type, and the providers to run at start, in order."""

    handlers: Mapping[str, HandlerPlan]
    process: tuple[ProviderPlan, ...]
    responders: Mapping[str, HandlerPlan] = MappingProxyType({})
    """Those that execute what other services ask for, by operation."""
    sends: bool = False
    """Whether messages are only sent here, so that there need be no handlers."""
    take_connections: bool = False
    """Whether any handler takes a connection, and so waits for the database during each of its statements."""

    @property
    def bare_names(self) -> tuple[BareName, ...]:
        """The types of messages that are only the bare names of their classes."""
        return tuple(each.bare_name for each in self.handlers.values() if each.bare_name is not None)

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, each in self.handlers.items() if not each.is_command))

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, each in self.handlers.items() if each.is_command))

    @property
    def work_on_entities(self) -> bool:
        """Whether any message works on an entity, or in a partition."""
        return any(each.place is not None for each in self.handlers.values())


def plan(  # noqa: PLR0913 - what a user has registered, and what that may use
    handlers: Sequence[RegisteredHandler],
    providers: Sequence[RegisteredProvider],
    *,
    endpoint: str,
    offer: Offer,
    subscribers: Subscribers | None = None,
    only_sends: bool = False,
    has_controls: bool = False,
    responders: Sequence[RegisteredHandler] = (),
    middleware: Sequence[Function] = (),
) -> Plans:
    """Plan everything; `subscribers` are those of `Tokens`. Who `only_sends` needs no handlers.

    `has_controls` means that control messages finish its transactions.

    Raises InvalidHandler listing all that is wrong.
    """
    problems: list[str] = []
    available = plan_providers(providers, offer, problems)
    layers = tuple(layer for each in middleware if (layer := _plan_middleware(each, available, offer, problems)) is not None)
    found = _by_type(handlers, available, offer, problems)
    responding = _by_type(responders, available, offer, problems)
    problems += _not_for_batches(layers, found.values())
    if layers:
        found = {name: _with_middleware(layers, each, available) for name, each in found.items()}
        responding = {name: _with_middleware(layers, each, available) for name, each in responding.items()}
    problems += [
        f"responder {each!r}: an operation name consists of letters, digits and . _ ~ -"
        for each in _invalid_operations(responding)
    ]
    problems += _same_names(found.values())
    problems += _undeclared_events(found.values(), endpoint, subscribers or {})
    if not (handlers or responders or only_sends):
        problems.append(_no_handler_problem(endpoint, has_controls=has_controls))
    if problems:
        lines = "".join(f"\n  * {problem}" for problem in problems)
        raise InvalidHandler(f"endpoint {endpoint!r} cannot start:{lines}")
    process = tuple(each for each in available.ordered if each.scope is ProviderScope.PROCESS)
    connections = any(offer.is_connection(kind) for each in found.values() for kind in each.arguments.values())
    return Plans(found, process, responding, sends=only_sends, take_connections=connections)


def _by_type(
    handlers: Sequence[RegisteredHandler], available: Providers, offer: Offer, problems: list[str]
) -> dict[str, HandlerPlan]:
    found: dict[str, HandlerPlan] = {}
    for registered in handlers:
        planned = _plan_handler(registered, available, offer, problems)
        if planned is None:
            continue
        if planned.type in found:
            both = f"{found[planned.type].function.name} and {planned.function.name}"
            problems.append(f"{both} both handle {planned.type!r}: a message type has one handler")
        found[planned.type] = planned
    return found


def _no_handler_problem(endpoint: str, *, has_controls: bool) -> str:
    problem = f"no handler is registered: decorate a function with @{endpoint}.handler"
    if not has_controls:
        return f"{problem}. If it only sends, run `onceonly relay` for it, or open it in the application that sends"
    return (
        f"{problem}. If this endpoint only sends, name the endpoint that finishes its transactions: "
        "control=ControlMessages(processed_by=...)"
    )


def _invalid_operations(responders: Iterable[str]) -> Iterable[str]:
    return [operation for operation in responders if not is_operation(operation)]


def _plan_handler(registered: RegisteredHandler, providers: Providers, offer: Offer, problems: list[str]) -> HandlerPlan | None:
    function = registered.function
    signature = function.signature()
    wrong = list(signature.problems)
    if function.flavour in (CallStyle.GENERATOR, CallStyle.ASYNC_GENERATOR):
        wrong.append("a handler must not `yield`; use context.send or context.publish")
    if registered.retry is not None:
        wrong += registered.retry.problems()
    if registered.timeout is not None and not 0 < registered.timeout < float("inf"):
        wrong.append(f"timeout must be a number of seconds above 0, not {registered.timeout}")
    parameters = _of_items(signature.parameters, wrong) if registered.batch else signature.parameters
    type_, codec = (None, None) if signature.problems or parameters is None else _plan_body(parameters, registered.type, wrong)
    if registered.batch:
        wrong += _problems_of_batch(registered, offer)
    wrong += _problems_of_transaction(registered, offer)
    others = () if signature.problems else signature.parameters[1:]
    is_async = function.flavour is CallStyle.COROUTINE
    rule, entity, partition = EntityRule(registered.entity, registered.key), None, None
    if registered.partition_key is not None and codec is not None and parameters is not None:
        kind = parameters[0].annotation
        partition = plan_partition(registered.partition_key, kind, is_offered=offer.documents, wrong=wrong)
    if rule != EntityRule(None, None) and codec is not None and parameters is not None:
        message = parameters[0].annotation
        entity = plan_entity(rule, message, others, partition=partition, is_offered=offer.entities, wrong=wrong)
    takers = [each.name for each in others if rule.kind is not None and takes(each.annotation, rule.kind)]
    others = tuple(each for each in others if each.name not in takers)
    context = BatchContext if registered.batch else Context
    arguments = dict(_plan_arguments(others, providers, offer, is_async=is_async, wrong=wrong, context=context))
    needed = tuple(each for each in providers.needed_by(arguments.values()) if each.scope is ProviderScope.MESSAGE)
    if registered.batch:
        wrong += _of_one_message(needed)
    problems += [f"handler {function.name}: {each}" for each in wrong]
    if wrong or type_ is None or codec is None or parameters is None:
        return None
    if entity is not None:
        arguments[takers[0]] = entity.kind
    known = body_kind(parameters[0].annotation)
    planned = HandlerPlan(function, type_, codec, arguments, needed, registered.retry, registered.timeout, entity)
    bare_name = BareName(type_, known.class_name) if known.class_name and registered.type is None else None
    runs_alone = registered.own_transaction or registered.isolation is not None
    return planned._replace(
        is_command=known.declared == "command",
        bare_name=bare_name,
        is_batch=registered.batch,
        runs_alone=runs_alone,
        isolation=registered.isolation,
        partition=partition,
    )


def _of_items(parameters: tuple[Parameter, ...], wrong: list[str]) -> tuple[Parameter, ...] | None:
    """Return the parameters of a batch handler with the class of one message in the place of their list; None if it is none."""
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return parameters
    first = parameters[0]
    kinds = get_args(first.annotation)
    if get_origin(first.annotation) not in (list, Sequence) or len(kinds) != 1:
        wrong.append(
            f"its first parameter, {first.name}, receives the messages of a batch and must be a list of their class, such as "
            f"list[PlaceOrder], not {words(first.annotation)}"
        )
        return None
    return (first._replace(annotation=kinds[0]), *parameters[1:])


def _problems_of_batch(registered: RegisteredHandler, offer: Offer) -> Iterable[str]:
    if registered.partition_key is not None:
        yield "batch=True and partition_key= exclude each other: each message has its own unit"
    if registered.entity is not None or registered.key is not None:
        yield "batch=True and entity= exclude each other: each message of an entity has its own unit"
    if offer.instead:
        yield "batch=True is not possible here: each message has a transaction of its own"
    elif not offer.asynchronous & SQL.asynchronous:
        yield "batch=True needs a SQL store: on this one, a unit has one message"


def _problems_of_transaction(registered: RegisteredHandler, offer: Offer) -> Iterable[str]:
    has_isolation = registered.isolation is not None
    for name, is_set in (("own_transaction=True", registered.own_transaction), ("isolation=", has_isolation)):
        if is_set and registered.batch:
            yield f"{name} and batch=True exclude each other: the messages of a batch share a database transaction"
        if is_set and not offer.asynchronous & SQL.asynchronous:
            yield f"{name} is not possible here: {offer.instead}" if offer.instead else f"{name} needs a SQL store"
    if has_isolation and not isinstance(registered.isolation, str):
        yield f'isolation must be a level such as "SERIALIZABLE", not {registered.isolation!r}'


def _of_one_message(providers: Iterable[ProviderPlan]) -> Iterable[str]:
    for each in providers:
        if Context in each.arguments.values():
            yield f"provider {each.function.name} asks for the Context of one message, and a batch has several"


def _plan_middleware(function: Function, providers: Providers, offer: Offer, problems: list[str]) -> MiddlewarePlan | None:
    signature = function.signature()
    wrong = list(signature.problems)
    first = signature.parameters[:_OWN_PARAMETERS]
    if function.flavour is not CallStyle.COROUTINE:
        wrong.append("it must be an `async def` function")
    accepted = _alternatives(first[0].annotation) if first else ()
    is_for_batches = BatchContext in accepted
    others = [each for each in accepted if each is not BatchContext]
    if not wrong and (len(first) < _OWN_PARAMETERS or others not in ([Context], [inspect.Parameter.empty])):
        wrong.append("its first two parameters must be the Context and call_next: async def NAME(context, call_next, ...)")
    arguments: dict[str, Any] = {}
    if not wrong:
        arguments = dict(_plan_arguments(signature.parameters[_OWN_PARAMETERS:], providers, offer, is_async=True, wrong=wrong))
    problems += [f"middleware {function.name}: {each}" for each in wrong]
    return None if wrong else MiddlewarePlan(function, arguments, is_for_batches)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _with_middleware(layers: tuple[MiddlewarePlan, ...], plan: HandlerPlan, providers: Providers) -> HandlerPlan:
    """Put a handler inside its middleware, whose providers run for each of its messages as well."""
    kinds = [*plan.arguments.values(), *(kind for layer in layers for kind in layer.arguments.values())]
    needed = tuple(each for each in providers.needed_by(kinds) if each.scope is ProviderScope.MESSAGE)
    return plan._replace(middleware=layers, providers=needed)


def _not_for_batches(layers: Iterable[MiddlewarePlan], plans: Iterable[HandlerPlan]) -> Iterable[str]:
    batched = next((each.function.name for each in plans if each.is_batch), "")
    for layer in layers if batched else ():
        if not layer.is_for_batches:
            yield (
                f"middleware {layer.function.name}: handler {batched} takes batches. Annotate the first parameter with "
                "Context | BatchContext: it runs once for a batch"
            )


def _same_names(plans: Iterable[HandlerPlan]) -> Iterable[str]:
    """Find classes whose entities would be taken for each other's."""
    kinds: dict[str, type] = {}
    for entity in (each.entity for each in plans if each.entity is not None):
        if kinds.setdefault(entity.name, entity.kind) is not entity.kind:
            yield f'two entity classes are named {entity.name!r}: rename one of them with @entity("...")'


def _undeclared_events(plans: Iterable[HandlerPlan], endpoint: str, subscribers: Subscribers) -> Iterable[str]:
    """Find events that would come with a token which was issued for others."""
    for each in plans:
        if each.type in subscribers and endpoint not in subscribers[each.type]:
            declared = ", ".join(subscribers[each.type]) or "no endpoint"
            yield (
                f"handler {each.function.name} handles {each.type!r}, and Tokens(subscribers=...) lists "
                f"{declared} for it: add {endpoint!r} there, in every endpoint that publishes it"
            )


def _plan_body(parameters: Sequence[Parameter], name: str | None, wrong: list[str]) -> tuple[str | None, Codec | None]:
    if not parameters:
        wrong.append(f"it has no parameters: the first one receives the message and must be {SUPPORTED}")
        return None, None
    first = parameters[0]
    if first.annotation is inspect.Parameter.empty:
        wrong.append(f"its first parameter, {first.name}, has no annotation: annotate it with the class of the message")
        return None, None
    if not is_supported(first.annotation):
        wrong.append(
            f"its first parameter, {first.name}, receives the message and must be {SUPPORTED}, not {words(first.annotation)}"
        )
        return None, None
    type_ = name if name is not None else type_name(first.annotation)
    if not type_ or not type_.strip():
        batch = ". For a batch of messages, set batch=True" if get_origin(first.annotation) is list else ""
        wrong.append(f'message type of {words(first.annotation)} is unknown: set @handler(type="..."){batch}')
    try:
        return type_, codec_for(first.annotation)
    except BodyError as error:
        wrong.append(str(error))
        return type_, None


def _plan_arguments(
    parameters: Iterable[Parameter],
    providers: Providers,
    offer: Offer,
    *,
    is_async: bool,
    wrong: list[str],
    context: type = Context,
) -> Iterable[tuple[str, type]]:
    own, other = (offer.asynchronous, offer.synchronous) if is_async else (offer.synchronous, offer.asynchronous)
    for name, annotation, has_default in parameters:
        kind = providers.find(annotation) or (context if annotation is context else offer.match(annotation, own))
        if kind is not None:
            yield name, kind
        elif annotation in (Context, BatchContext):
            taken = "several messages, with batch=True" if context is BatchContext else "one message, without batch=True"
            wrong.append(f"{name}: the handler takes {taken}: ask for {context.__name__}, not {words(annotation)}")
        elif offer.match(annotation, other) is not None:
            instead = f"is for {'def' if is_async else 'async def'} handlers; here ask for {offer.words(own)}"
            wrong.append(f"{name}: {words(annotation)} {instead}")
        elif not has_default and offer.instead and SQL.match(annotation, SQL.asynchronous | SQL.synchronous) is not None:
            wrong.append(f"{name}: {words(annotation)} is not available here: {offer.instead}")
        elif not has_default and SQL.match(annotation, SQL.asynchronous | SQL.synchronous) is not None:
            instead = f"; here ask for {offer.words(own)}" if own else ""
            entities = '; work on an entity: @handler(entity=..., key="...")' if offer.entities else ""
            wrong.append(f"{name}: {words(annotation)} is available on SQL stores only{instead}{entities}")
        elif not has_default:
            wrong.append(_argument_problem(name, annotation, f"{offer.words(own)}, {context.__name__}", providers))


def _argument_problem(name: str, annotation: Any, offered: str, providers: Providers) -> str:
    if annotation is inspect.Parameter.empty:
        return f"{name} has no annotation, so it cannot be injected: annotate it"
    made = ", ".join((offered, *(words(kind) for kind in providers.by_kind)))
    return f"{name}: {words(annotation)} cannot be injected; available are {made}, and what @provide factories return"
