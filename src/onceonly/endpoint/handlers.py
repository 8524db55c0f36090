"""The Handlers port over users' functions: reads deliveries, runs handlers, and describes what became of them."""

import asyncio
import inspect
import logging
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from onceonly.config.destinations import DestinationPolicy
from onceonly.config.endpoint import MAX_HOPS
from onceonly.endpoint.batch import BatchContext, close_batch, failed_in_batch, group, set_aside
from onceonly.endpoint.blobs import BlobPlace
from onceonly.endpoint.context import Context, ContextPorts, close, decision_of, follow_up_call
from onceonly.endpoint.failures import CANCELLED, blame, failed, storable
from onceonly.endpoint.kept_resources import ProvidedObjects, WatchedResources
from onceonly.endpoint.left_tasks import TaskWatch, is_watched
from onceonly.endpoint.limits import CancelledFromInside, LimitedRun, TimeLimits
from onceonly.endpoint.message_builder import NO_DESTINATIONS, MessageBuilder, Subscribers, foreign_format
from onceonly.endpoint.message_types import UnknownTypes, note_received
from onceonly.endpoint.middleware import through
from onceonly.endpoint.other_writes import OTHER_WRITES, RUNNING, HandlerName
from onceonly.endpoint.partitions import DECODED
from onceonly.endpoint.plans import HandlerPlan, Plans
from onceonly.endpoint.received_message import ReceivedMessage, read
from onceonly.endpoint.requests import RequestPlace
from onceonly.formats.bodies import BodyError
from onceonly.formats.identity import IdentityRule
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.formats.message_formats import MessageFormat
from onceonly.formats.third_party import decode_call, own_body, response_to_call
from onceonly.model.errors import (
    USERS_ERRORS,
    ConflictError,
    HandlerAbandoned,
    HandlerFailed,
    HandlerStuck,
    InvalidEffect,
    OnceOnlyError,
    RetryableError,
    leaves,
)
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Unreadable, expiry_text
from onceonly.model.record import Decision
from onceonly.model.remote import Peer, Response, asks
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.model.third_party import called_peer
from onceonly.ports.projections import ProjectionWriter
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.presence import TypesElsewhere
from onceonly.runtime.observe.crash import ProcessCrash
from onceonly.runtime.observe.telemetry import CreationHook
from onceonly.runtime.worker.handler_thread import LEAVE_SECONDS, MOST_LEFT, HandlerThread, ThreadResources, too_many_left

_log = EventLogger(logging.getLogger("onceonly"))
_PASSES = (Exception, BaseExceptionGroup, asyncio.CancelledError, ProcessCrash)
"""What leaves a handler as it is: `_run_handler` judges all but the last. All else that it raises is its own failure."""


class HandlerRules(NamedTuple):
    """What holds for all handlers of an endpoint. `timeout` is in seconds, `max_body` in bytes.

    `subscribers` are those of `Tokens`, None for an endpoint without tokens. `repeats` means that one message may be handled
    and committed more than once.
    """

    endpoint: str
    retry: Retry
    timeout: float
    identity: IdentityRule | None
    max_body: int
    subscribers: Subscribers | None = None
    repeats: bool = False
    grace: float = 10.0
    """Seconds that a handler has to end once it was cancelled because its time is over."""
    max_hops: int | None = MAX_HOPS
    """How many handlers a chain of messages may pass before this endpoint rejects its next message."""
    carry_headers: tuple[str, ...] = ()
    """The names, in lower case, of headers that what is sent gets from the message that is handled."""
    threads: bool = True
    """Whether `def` handlers run in threads. Otherwise they run in the event loop."""
    is_limited: bool = True
    """Whether handlers have a time limit."""
    transport: str = ""
    """Where messages go, as it may be shown."""
    has_transport: bool = True
    """Whether messages can be sent at all."""
    orders_keys: bool = True
    """Whether the transport keeps messages with the same key in order."""
    unknown_types_wait: float = 0.0
    """Seconds for which a message without a handler waits for another process. 0: it is rejected at once."""
    runs_alone: bool = False
    """Whether each message has a unit of its own: at the store's isolation level a second one would read what is outdated."""
    destinations: DestinationPolicy = NO_DESTINATIONS
    """Which destinations that are not endpoints messages may have."""
    format_: MessageFormat | None = None
    """How messages look on the wire. None: as CloudEvents."""
    carries_headers: bool = True
    """Whether the transport has headers that other programs can read."""


class EndpointHandlers:
    """The handlers of one endpoint, with what its providers made for this process."""

    def __init__(  # noqa: PLR0913 - what it has from its host, by name
        self,
        plans: Plans,
        rules: HandlerRules,
        environment: Environment,
        made: Mapping[Any, object],
        *,
        blobs: BlobPlace | None = None,
        peers: Sequence[Peer] = (),
        projections: Mapping[str, ProjectionWriter | None] = MappingProxyType({}),
        creation: CreationHook | None = None,
        elsewhere: TypesElsewhere | None = None,
    ) -> None:
        """Serve these plans; without `blobs` handlers can create none, without `peers` have nothing executed elsewhere.

        `elsewhere` are the types that other processes handle.
        """
        self._plans = plans
        self._types = tuple(sorted(plans.handlers))
        others, clock, random = elsewhere or TypesElsewhere(), environment.clock, environment.random
        self._unknown = UnknownTypes(rules.endpoint, self._types, rules.unknown_types_wait, others, clock, random, LoggedKeys())
        self._alone = {name for name, each in plans.handlers.items() if rules.runs_alone or each.runs_alone}
        self._batched = frozenset(name for name, each in plans.handlers.items() if each.is_batch)
        self._rules = rules
        self._environment = environment
        self._made = made
        self._places = {type_: place for type_, each in plans.handlers.items() if (place := each.place) is not None}
        requests = None
        if peers:
            third_parties = tuple(peer for peer in peers if peer.is_third_party)
            of_protocol = tuple(peer for peer in peers if not peer.is_third_party)
            requests = RequestPlace(of_protocol, frozenset(plans.handlers), third_parties)
        self._reach = ContextPorts(blobs, requests, projections=projections)
        self._builder = MessageBuilder(
            rules.endpoint,
            max_body=rules.max_body,
            subscribers=rules.subscribers,
            carry_headers=rules.carry_headers,
            transport=rules.transport,
            has_transport=rules.has_transport,
            orders_keys=rules.orders_keys,
            creation=creation,
            destinations=rules.destinations,
            format_=rules.format_,
            carries_headers=rules.carries_headers,
        )
        self._format = foreign_format(rules.format_)
        self._limits = TimeLimits(rules.grace)
        paths = {each.function.path for each in (*plans.handlers.values(), *plans.responders.values())}
        self._provided = ProvidedObjects(plans.process, made)
        self._watches = {path: TaskWatch(path) for path in paths}
        self._names = {path: HandlerName(rules.endpoint, path) for path in paths}

    @property
    def longest_timeout(self) -> float:
        """How long, in seconds, the slowest of these handlers may take."""
        return max((plan.timeout or self._rules.timeout for plan in self._plans.handlers.values()), default=self._rules.timeout)

    def read(self, delivery: Delivery) -> Message | Unreadable:
        rules = self._rules
        return read(
            delivery,
            self._types,
            identity=rules.identity,
            max_body=rules.max_body,
            places=self._places,
            needs_token=rules.subscribers is not None,
            format_=self._format,
        )

    def problem_of(self, message: Message) -> str:
        """Return why no handler could decode a message, or "". Nothing is run but the user's own validators."""
        plan = self._plans.handlers.get(message.type)
        if plan is None and called_peer(message):
            return ""
        if plan is None:
            return self._unknown.reason(message.type)
        try:
            _decode(plan, message)
        except HandlerFailed as error:
            return error.failure.reason
        return ""

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Group messages by runs of handlers: those of a batch handler together, all others alone."""
        return group(messages, self._batched) if self._batched else [(message,) for message in messages]

    def runs_alone(self, message: Message) -> bool:
        """Return whether the message's handler needs a unit of one: by its registration, or by a run in this process."""
        return message.type in self._alone

    def needs_response(self, message: Message) -> bool:
        """Return whether the message follows a request up."""
        return asks(message)

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Run the handler that takes this message. Raises HandlerFailed; what the store's own machinery raises passes.

        A type that no handler takes is rejected here, not in `read`: by now the store knows that the message is new. One
        that was handled before, by a version of this endpoint that took it, still gets its effects dispatched. The same holds
        for a message whose chain is too long, and for one that has expired. Before it is rejected, it waits for a process that
        takes it (`unknown_types_wait`).
        """
        plan = self._plans.handlers.get(message.type)
        if plan is None and response is not None and called_peer(message):
            return self._follow_up(message, response)
        if plan is None:
            if self._rules.unknown_types_wait:
                self._refuse_expired(message, self._environment.clock.now())
            raise self._unknown.failure_of(message)
        if plan.is_batch:
            (decision,) = await self.handle_batch((message,), resources, (attempt,), (response,))
            return decision
        context = self._context(plan, message, attempt, response, resources)
        await self._run_handler(plan, resources, self._body(plan, message), context)
        return decision_of(context)

    async def handle_batch(
        self,
        messages: Sequence[Message],
        resources: Resources,
        attempts: Sequence[str],
        responses: Sequence[Response | None],
    ) -> Sequence[Decision]:
        """Run the batch handler that takes these messages, all of one type. Raises HandlerFailed, as `handle`."""
        plan = self._plans.handlers[messages[0].type]
        contexts: list[Context] = []
        bodies: list[object] = []
        failures: dict[Identity, Failure] = {}
        for message, attempt, response in zip(messages, attempts, responses, strict=True):
            try:
                contexts.append(self._context(plan, message, attempt, response))
                bodies.append(self._body(plan, message))
            except HandlerFailed as error:
                failures[message.identity] = error.failure
        if failures:  # nothing was done yet: the handler runs without them
            raise failed_in_batch(failures)
        await self._run_handler(plan, resources, bodies, BatchContext(contexts, bodies))
        return [decision_of(context) for context in contexts]

    def _context(  # noqa: PLR0917 - what one message has
        self,
        plan: HandlerPlan,
        message: Message,
        attempt: str,
        response: Response | None,
        resources: Resources | None = None,
    ) -> Context:
        """Make the context of a message. Raises HandlerFailed for one that is not to be handled."""
        if self._rules.max_hops is not None and message.hops > self._rules.max_hops:
            raise failed(FailureKind.REJECTED, self._too_many_hops(message))
        now, repeats = self._environment.clock.now(), self._rules.repeats
        self._refuse_expired(message, now)
        places = self._reach._replace(response=response or _response_in(message), resources=resources)
        return Context(self._builder, message, now=now, attempt=attempt, places=places, repeats=repeats, in_batch=plan.is_batch)

    def _follow_up(self, message: Message, response: Response) -> Decision:
        """Send what follows up the call that this message has had made."""
        _, then = decode_call(message)  # it was read before, to make the call
        context = Context(self._builder, message, now=self._environment.clock.now())
        try:
            return follow_up_call(context, then, response)
        except InvalidEffect as error:
            raise failed(FailureKind.REJECTED, f"the response cannot be sent on: {error}") from error

    def _refuse_expired(self, message: Message, now: int) -> None:
        if message.expires and message.expires <= now:
            raise failed(FailureKind.REJECTED, expired(message))

    async def respond(self, message: Message, resources: Resources) -> tuple[object, Decision]:
        """Run the responder of an operation, which the message is named after. Returns what it returned as well.

        Raises HandlerFailed; what the store's own machinery raises passes.
        """
        plan = self._plans.responders[message.type]
        context = Context(self._builder, message, now=self._environment.clock.now())
        left = await self._run_handler(plan, resources, self._body(plan, message), context)
        return left, decision_of(context)

    def _body(self, plan: HandlerPlan, message: Message) -> object:
        if plan.bare_name is not None:
            note_received(self._rules.endpoint, plan.bare_name, message)
        return _decode(plan, message)

    async def _run_handler(
        self, plan: HandlerPlan, resources: Resources, body: object, context: Context | BatchContext
    ) -> object:
        """Run one handler, within its time. Returns what it returned. Its context is closed then."""
        thread = self._thread(plan, context)
        run = LimitedRun(self._limits, self._timeout(plan), self._watches[plan.function.path])
        OTHER_WRITES.start()
        running = RUNNING.set(self._names[plan.function.path])
        try:
            async with resources.attempt(plan.function.path):
                given = resources if thread is None else ThreadResources(resources, thread)
                return await run(self._run(plan, body, given, context))
        except (HandlerFailed, RetryableError, ConflictError) as error:  # the store's, and what `_run` made of the user's
            if isinstance(error, HandlerFailed) and error.failure.kind is FailureKind.ALONE and plan.type not in self._alone:
                self._alone.add(plan.type)
                fields = {"handler": plan.function.path, "reason": error.failure.reason}
                _log.info("handler gets a database transaction of its own", extra=fields)
            if run.expired and (isinstance(error, HandlerFailed) or _is_left_behind(thread)):
                raise self._timeout_error(plan, thread) from error
            raise
        except CancelledFromInside as error:
            raise blame(plan.function, error.__cause__ or error, CANCELLED) from error
        except USERS_ERRORS as error:  # also from a provider's clean-up, or a listener of the user's session
            inside = leaves(error)
            if crash := next((each for each in inside if isinstance(each, ProcessCrash)), None):
                raise crash from None
            if run.expired:
                raise self._timeout_error(plan, thread) from error
            if not self._rules.is_limited and (quits := next((each for each in inside if isinstance(each, BdbQuit)), None)):
                raise quits from None  # `q` in `onceonly run --debug` is not the message's failure
            raise blame(plan.function, error) from error
        finally:
            RUNNING.reset(running)
            _close(context)

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Decide by the handler's own retry policy, or the endpoint's."""
        plan = self._plans.handlers.get(message.type)
        policy = plan.retry if plan is not None and plan.retry is not None else self._rules.retry
        clock, random = self._environment.clock, self._environment.random
        failure = replace(failure, handler=storable(self.path_of(message)))
        return decide_retry(policy, failure, attempts=attempts, history=history, now=clock.now(), fraction=random.fraction())

    def path_of(self, message: Message) -> str:
        """Return the module and qualified name of the handler that takes this message, or an empty text."""
        plan = self._plans.handlers.get(message.type)
        return "" if plan is None else plan.function.path

    async def _run(self, plan: HandlerPlan, body: object, resources: Resources, context: Context | BatchContext) -> object:
        """Make what the handler asks for, run it, and clean up: all of it inside the attempt, its task and its time."""
        made: dict[Any, object] = {**self._made, context.__class__: context}
        if not self._provided.is_empty and is_watched():
            resources = WatchedResources(resources, self._provided, plan.function.path)
        work = None
        if plan.entity is not None and isinstance(context, Context):
            work = plan.entity.open(context.message, body, resources)
            made[plan.entity.kind] = work.entity
        if plan.providers:
            left = await _call_with_providers(plan, body, made, resources)
        else:
            try:
                left = await (_call_inside if plan.middleware else _call)(plan, body, made, resources)
            except OnceOnlyError as error:
                raise blame(plan.function, error) from error
            except _PASSES:
                raise
            except BaseException as error:
                raise blame(plan.function, error) from error
        if (plan.providers or plan.middleware) and (writing := resources.leave(is_last=True)) is not None:
            await writing  # what clean-up and middleware have left
        if work is not None:
            work.save(left)
        if isinstance(context, BatchContext) and (failures := set_aside(context, plan.function)):
            raise failed_in_batch(failures)
        return left

    def _timeout(self, plan: HandlerPlan) -> float:
        return (plan.timeout or self._rules.timeout) if self._rules.is_limited else inf

    def _thread(self, plan: HandlerPlan, context: Context | BatchContext) -> HandlerThread | None:
        if plan.is_async or not self._rules.threads:
            return None
        leave = min(LEAVE_SECONDS, self._rules.grace / 2)  # the event loop waits for the end of a run for `grace`
        thread = HandlerThread(plan.function.path, seconds=self._timeout(plan), leave=leave)
        thread.on_expiry(lambda _: _close(context))
        return thread

    def _timeout_error(
        self, plan: HandlerPlan, thread: HandlerThread | None
    ) -> HandlerFailed | HandlerAbandoned | HandlerStuck:
        """Make the error for a handler whose time is over. The unit of a thread left behind cannot be used any more."""
        late = failed(FailureKind.TIMEOUT, f"handler {plan.function.path} took longer than {self._timeout(plan):g} s")
        if not _is_left_behind(thread):
            return late
        if too_many_left():
            return HandlerStuck(f"more than {MOST_LEFT} handlers have not ended although their time is over")
        return HandlerAbandoned(late.failure)

    def _too_many_hops(self, message: Message) -> str:
        return (
            f"endless chain: {message.type!r} comes after {message.hops:,} handlers that each sent the next message. The limit "
            f"of endpoint {self._rules.endpoint!r} is {self._rules.max_hops:,}. If the chain is meant to be this long, raise "
            "max_hops= of the endpoint, or set it to None"
        )


def expired(message: Message) -> str:
    """Return the reason of the dead letter of a message that has expired."""
    before = f", after {message.attempts} failed attempts" if isinstance(message, ReceivedMessage) and message.attempts else ""
    return f"expired at {expiry_text(message.expires)}{before}, and was not handled. A retry of this dead letter handles it"


def _close(context: Context | BatchContext) -> None:
    if isinstance(context, BatchContext):
        close_batch(context)
    else:
        close(context)


def _is_left_behind(thread: HandlerThread | None) -> bool:
    return thread is not None and thread.is_left


def _response_in(message: Message) -> Response | None:
    """Return the response that a message brings. Raises HandlerFailed."""
    try:
        return response_to_call(message)
    except ValueError as error:
        raise failed(FailureKind.REJECTED, str(error)) from error


def _decode(plan: HandlerPlan, message: Message) -> object:
    if plan.place is not None and DECODED in message.__dict__:
        return message.__dict__.pop(DECODED)  # once: another attempt must not find what this one did to it
    try:
        return plan.codec.decode(own_body(message))
    except BodyError as error:
        raise failed(FailureKind.REJECTED, str(error)) from error
    except USERS_ERRORS as error:  # a validator of the user's own class
        raise blame(plan.function, error) from error


async def _call_with_providers(plan: HandlerPlan, body: object, made: dict[Any, object], resources: Resources) -> object:
    left: object = None
    raised: BaseException | None = None
    async with AsyncExitStack() as stack:
        try:
            for provider in plan.providers:
                made[provider.kind] = await provider.open(stack, lambda kind: _find(kind, made, resources.get))
            left = await (_call_inside if plan.middleware else _call)(plan, body, made, resources)
        except OnceOnlyError as error:
            raised = blame(plan.function, error)
            raise raised from error
        except _PASSES as error:
            raised = error
            raise
        except BaseException as error:
            raised = blame(plan.function, error)
            raise raised from error
    if raised is not None:
        raise raised  # a provider's clean-up swallowed it; the handler failed all the same
    return left


async def _call_inside(plan: HandlerPlan, body: object, made: dict[Any, object], resources: Resources) -> object:
    context: Any = made[BatchContext if plan.is_batch else Context]
    return await through(
        plan.middleware,
        context,
        lambda kind: _find(kind, made, resources.get),
        lambda: _call(plan, body, made, resources),
    )


async def _call(plan: HandlerPlan, body: object, made: Mapping[Any, object], resources: Resources) -> object:
    call, is_last = plan.function.call, not (plan.middleware or plan.providers)
    if plan.is_async:
        arguments = {name: _find(kind, made, resources.get) for name, kind in plan.arguments.items()}
        returned: object = await call(body, **arguments)
        if (writing := resources.leave(is_last=is_last)) is not None:
            await writing
        return returned

    def run(get: Callable[[type], object]) -> object:
        return call(body, **{name: _find(kind, made, get) for name, kind in plan.arguments.items()})

    left = await resources.run_sync(run, is_last=is_last)
    if inspect.isawaitable(left):  # such as a lambda or a decorator around an `async def`
        left = await left
        if (writing := resources.leave(is_last=is_last)) is not None:
            await writing
    return left


def _find(kind: Any, made: Mapping[Any, object], get: Callable[[type], object]) -> object:
    return made[kind] if kind in made else get(kind)
