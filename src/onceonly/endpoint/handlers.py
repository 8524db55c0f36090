"""The Handlers port over users' functions: reads deliveries, runs handlers, and says what became of them."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, NamedTuple

from onceonly.endpoint.context import Context
from onceonly.endpoint.envelopes import Envelopes
from onceonly.endpoint.limits import TimeLimit, TimeLimits
from onceonly.endpoint.plans import HandlerPlan, Plans
from onceonly.endpoint.reading import read
from onceonly.model.errors import Conflict, HandlerFailed, InvalidEffect, OnceOnlyError, Reject, RetryLater, TryAgain
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.retry import Retry, Verdict, judge
from onceonly.ports.store import Resources
from onceonly.runtime.surroundings import Surroundings
from onceonly.serialization.bodies import BodyError
from onceonly.serialization.identity import IdentityRule

REASON_LIMIT = 2000
TRACEBACK_LIMIT = 8000
LONGEST_DELAY = timedelta(days=3650).total_seconds()
_NO_PORTS_ANSWER = (OnceOnlyError, SystemExit, GeneratorExit, BaseExceptionGroup)
"""Whatever the user's code raises is its own failure: from a handler these are no port's answer, and end no process."""


class Rules(NamedTuple):
    """What holds for all handlers of an endpoint. `timeout` is in seconds, `max_body` in bytes."""

    endpoint: str
    retry: Retry
    timeout: float
    identity: IdentityRule | None
    max_body: int


class EndpointHandlers:
    """The handlers of one endpoint, with what its providers made for this process."""

    def __init__(self, plans: Plans, rules: Rules, surroundings: Surroundings, made: Mapping[Any, object]) -> None:
        """Serve these plans."""
        self._plans = plans
        self._types = tuple(sorted(plans.handlers))
        self._rules = rules
        self._surroundings = surroundings
        self._made = made
        self._envelopes = Envelopes(rules.endpoint, max_body=rules.max_body)
        self._limits = TimeLimits()

    @property
    def longest_timeout(self) -> float:
        """How long, in seconds, the slowest of these handlers may take."""
        return max((plan.timeout or self._rules.timeout for plan in self._plans.handlers.values()), default=self._rules.timeout)

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Give the message a delivery brings, or why it is none."""
        return read(delivery, self._types, identity=self._rules.identity, max_body=self._rules.max_body)

    async def handle(self, message: Message, resources: Resources, attempt: str = "") -> Decision:
        """Run the handler that takes this message. Raises HandlerFailed; what the store's own machinery raises passes.

        A type that no handler takes is rejected here, not in `read`: by now the store knows that the message is new. One
        that was handled before, by a version of this endpoint that took it, still gets its effects dispatched.
        """
        plan = self._plans.handlers.get(message.type)
        if plan is None:
            raise _failed(FailureKind.REJECTED, self._no_handler(message.type))
        body = _decode(plan, message)
        context = Context(self._envelopes, message, now=self._surroundings.clock.now())
        limit = TimeLimit(self._limits, plan.timeout or self._rules.timeout)
        try:
            async with resources.attempt():
                await self._run(plan, body, resources, context=context, limit=limit)
        except (HandlerFailed, TryAgain, Conflict) as error:  # the store's, and what `_run` made of the user's
            if isinstance(error, HandlerFailed) and limit.expired:
                raise self._timed_out(plan) from error
            raise
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            if limit.expired:
                raise self._timed_out(plan) from error
            raise _blame(plan, error, "the handler was cancelled from inside") from error
        except Exception as error:
            if limit.expired:
                raise self._timed_out(plan) from error
            raise _blame(plan, error) from error
        finally:
            effects = context.end()
        return Decision(effects)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Decide by the handler's own retry policy, or the endpoint's."""
        plan = self._plans.handlers.get(message.type)
        policy = plan.retry if plan is not None and plan.retry is not None else self._rules.retry
        clock, chance = self._surroundings.clock, self._surroundings.chance
        return judge(policy, failure, attempts=attempts, history=history, now=clock.now(), chance=chance.fraction())

    async def _run(self, plan: HandlerPlan, body: object, resources: Resources, *, context: Context, limit: TimeLimit) -> None:
        """Make what the handler asks for, run it, and clean up: all of it inside the attempt and its time."""
        made: dict[Any, object] = {**self._made, Context: context}
        with limit:
            if plan.providers:
                await _call_with_providers(plan, body, made, resources)
                return
            try:
                await _call(plan, body, made, resources)
            except _NO_PORTS_ANSWER as error:
                raise _blame(plan, error) from error

    def _timed_out(self, plan: HandlerPlan) -> HandlerFailed:
        seconds = plan.timeout or self._rules.timeout
        return _failed(FailureKind.TIMEOUT, f"handler {plan.function.name} took longer than {seconds:g} s")

    def _no_handler(self, type_: str) -> str:
        taken = ", ".join(self._types)
        if not type_:
            return f"the message has no type, and endpoint {self._rules.endpoint!r} takes several: {taken}"
        return f"no handler of endpoint {self._rules.endpoint!r} takes {type_!r}; it takes {taken}"


def _decode(plan: HandlerPlan, message: Message) -> object:
    try:
        return plan.codec.decode(message.body)
    except BodyError as error:
        raise _failed(FailureKind.REJECTED, str(error)) from error
    except Exception as error:  # a validator of the user's own class
        raise _blame(plan, error) from error


async def _call_with_providers(plan: HandlerPlan, body: object, made: dict[Any, object], resources: Resources) -> None:
    raised: BaseException | None = None
    async with AsyncExitStack() as stack:
        try:
            for provider in plan.providers:
                made[provider.kind] = await provider.open(stack, lambda kind: _find(kind, made, resources.get))
            await _call(plan, body, made, resources)
        except _NO_PORTS_ANSWER as error:
            raised = _blame(plan, error)
            raise raised from error
        except BaseException as error:
            raised = error
            raise
    if raised is not None:
        raise raised  # a provider's clean-up swallowed it; the handler failed all the same


async def _call(plan: HandlerPlan, body: object, made: Mapping[Any, object], resources: Resources) -> None:
    call = plan.function.call
    if plan.is_async:
        await call(body, **{name: _find(kind, made, resources.get) for name, kind in plan.arguments.items()})
        return

    def run(get: Callable[[type], object]) -> object:
        return call(body, **{name: _find(kind, made, get) for name, kind in plan.arguments.items()})

    left = await resources.run_sync(run)
    if inspect.isawaitable(left):  # such as a lambda or a decorator around an `async def`
        await left


def _find(kind: Any, made: Mapping[Any, object], get: Callable[[type], object]) -> object:
    return made[kind] if kind in made else get(kind)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _blame(plan: HandlerPlan, error: BaseException, reason: str = "") -> HandlerFailed:
    """Say what a handler's exception means."""
    match error:
        case RetryLater():
            if not math.isfinite(error.delay):
                return _failed(FailureKind.EXCEPTION, f"RetryLater needs a finite number of seconds, not {error.delay}")
            return _failed(FailureKind.LATER, _text(error), delay=min(max(error.delay, 0.0), LONGEST_DELAY))
        case Reject():
            return _failed(FailureKind.REJECTED, _text(error) or "rejected by its handler")
        case InvalidEffect():
            return _failed(FailureKind.REJECTED, _text(error), _trace(plan, error))
        case _:
            first_line = (_text(error).strip().splitlines() or [""])[0]  # all of it is in the traceback
            words = reason or f"{type(error).__name__}: {first_line}".removesuffix(": ")
            return _failed(FailureKind.EXCEPTION, words, _trace(plan, error))


def _failed(kind: FailureKind, reason: str, trace: str = "", *, delay: float = 0) -> HandlerFailed:
    return HandlerFailed(Failure(kind=kind, reason=_storable(reason[:REASON_LIMIT]), traceback=_storable(trace), delay=delay))


def _trace(plan: HandlerPlan, error: BaseException) -> str:
    """Give the traceback's end, beginning in the user's own function where it can be found."""
    code = getattr(inspect.unwrap(plan.function.call), "__code__", None)
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code is not code:
        start = start.tb_next
    lines = traceback.format_exception(type(error), error, start or error.__traceback__)
    return "".join(lines)[-TRACEBACK_LIMIT:]


def _text(error: BaseException) -> str:
    """Give an exception's text; one that cannot even say that must not end the worker."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's own `__str__`
        return f"(its text raised {type(broken).__name__})"


def _storable(text: str) -> str:
    """Replace what no store takes: lone surrogates and NUL."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()
