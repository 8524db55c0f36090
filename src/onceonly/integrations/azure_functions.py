"""For Azure Functions: decorators of functions whose messages, ticks and requests are handled once, and a blueprint.

Each decorator is the innermost one, below the trigger's. What it returns is a coroutine function, so the Python worker runs it
in its event loop, where the endpoint is opened by the first invocation. The body of a `def` function runs in a thread.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from time import monotonic
from typing import Any

from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.annotations import annotations_of, signature_of
from onceonly.model.errors import ConflictError, DriverMissing, RetryableError, SetupError
from onceonly.model.hosted import HostedMessage, HostedOutcome

try:
    from azure.functions import Blueprint, EventHubEvent, HttpRequest, HttpResponse
    from azure.functions.timer import TimerRequest

    from onceonly.integrations.azure_messages import hosted_messages, trigger_messages
    from onceonly.integrations.azure_requests import AsyncServer, ThreadServer
except ModuleNotFoundError as missing:
    raise DriverMissing("azure-functions is not installed: pip install 'onceonly[azure-functions]'") from missing

from onceonly.integrations.kept_endpoints import kept
from onceonly.integrations.request_rules import RequestRules, is_final
from onceonly.integrations.session_requests import SessionRules
from onceonly.integrations.session_transactions import (
    RequestKey,
    RequestTransaction,
    SessionRequest,
    Sessions,
    check_sessions,
    session_of_request,
)
from onceonly.runtime.environment import LIVE

__all__ = [
    "NotSettled",
    "Principal",
    "RequestTransaction",
    "Sessions",
    "close",
    "handled_by",
    "idempotent",
    "maintenance",
    "once_per_tick",
]

LONGEST_WAIT_SECONDS = 30.0
"""Seconds for which an invocation waits, before the host delivers its messages again at once."""
REPEATS_SECONDS = 240.0
"""Seconds for which an invocation repeats what the host does not: less than the shortest default of `functionTimeout`."""
EARLY_SECONDS = 1.0
"""How much earlier than planned a timer of the host may fire."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_Function = Callable[..., Any]
Principal = Callable[[HttpRequest], str | None]
"""Returns the principal of a request, or the scope of its key."""


class NotSettled(RetryableError):
    """Messages of an invocation must be delivered again. Raised to the host, which returns all messages of the invocation.

    `outcomes` are those of all messages, in order.
    """

    def __init__(self, outcomes: Sequence[HostedOutcome]) -> None:
        again = [outcome for outcome in outcomes if not outcome.is_settled]
        reasons = "; ".join(sorted({outcome.reason for outcome in again if outcome.reason}))
        super().__init__(f"{len(again)} of {len(outcomes)} messages must be delivered again: {reasons or 'no reason given'}")
        self.outcomes = tuple(outcomes)


def handled_by(
    endpoint: Endpoint,
    *,
    source: str = "",
    remaining: float | None = None,
    longest_wait: float = LONGEST_WAIT_SECONDS,
) -> Callable[[_Function], Callable[..., Awaitable[None]]]:
    """Have the endpoint's handlers handle a trigger's messages: `@handled_by(shop)` below `@app.queue_trigger(...)`.

    For messages of Service Bus, Storage queues and Event Hubs, one or many. The function's body runs first, in a thread if it
    is a `def`. If it returns a `HostedMessage` or a list of these, they are handled instead of what the trigger gave. If a
    message must be delivered again, the function raises NotSettled, and the host abandons all messages of the invocation. Those
    that were handled are known then, and only settled.

    * `source`: the source of messages without a CloudEvents source. Default: the endpoint's name. Set it if ids repeat between
      the queues of an endpoint.
    * `remaining`: seconds that an invocation may take. Set it to a little less than `functionTimeout` of host.json.
    * `longest_wait`: seconds that a failed message waits in its invocation until its next delivery is due. The host delivers
      it at once, so without a wait it uses up its deliveries.

    The host does not deliver events of an event hub again, so an invocation repeats them itself, for `remaining` or 240
    seconds. Raises SetupError for what is not a function.
    """
    keeping = kept(endpoint)

    def decorate(function: _Function) -> Callable[..., Awaitable[None]]:
        @_as_seen_by_the_host(function, hidden=())
        async def serve(*arguments: Any, **values: Any) -> None:
            given = trigger_messages([*arguments, *values.values()])
            replaced = _replacement(await _call(function, *arguments, **values))
            messages = hosted_messages(given, source) if replaced is None else replaced
            hosted = await keeping.hosted()
            handle = partial(hosted.handle, remaining=remaining)
            if given and isinstance(given[0], EventHubEvent):
                await _repeat_until_settled(handle, messages, REPEATS_SECONDS if remaining is None else remaining)
                return
            outcomes = await handle(messages)
            if waits := _waits(outcomes):
                await asyncio.sleep(min(*waits, longest_wait))
                raise NotSettled(outcomes)

        return serve

    return decorate


def once_per_tick(
    endpoint: Endpoint,
    sessions: Sessions | None = None,
    *,
    name: str | None = None,
    max_commit: timedelta | None = None,
    wait: float = 2.0,
) -> Callable[[_Function], Callable[..., Awaitable[None]]]:
    """Run a function once for each tick of a timer: `@once_per_tick(shop)` below `@app.timer_trigger(...)`.

    The function receives the open transaction as `tx`, next to its other parameters. All of it is committed after the function
    returned, with the planned instant of the tick as the key. A tick that runs twice is known then, and only finishes its
    dispatch. An exception rolls it back: add `@app.retry(...)`, because the host does not repeat a tick without it.
    Failures of the store and the broker are repeated for 240 seconds.

    * `sessions`: for a `def`, which gets a `RequestTransaction`: a `sessionmaker` of the endpoint's database. An `async def`
      gets a `Transaction`, and no `sessions`.
    * `name`: what distinguishes the timers of an endpoint. Default: the function's name.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `wait`: seconds to wait for another run of the same tick, before it is tried again.

    A run that is not a planned tick, by `run_on_startup` or by hand, has a key of its own. A timer without a schedule monitor,
    such as one that fires more than once a minute without `use_monitor`, raises SetupError. Raises SetupError for a function
    without a parameter `tx`, and for `sessions` that do not fit; TransactionMisused for durations that no transaction can have.
    """
    keeping = kept(endpoint)
    endpoint.transaction(max_commit=max_commit, wait=wait)  # checks the durations

    def decorate(function: _Function) -> Callable[..., Awaitable[None]]:
        _check_transactional(function, sessions)
        scope = f"timer {name or function.__name__}"

        async def once(key: str, call: _Function) -> None:
            opened = endpoint.transaction(
                idempotency_key=key, scope=scope, max_commit=max_commit, wait=wait, until_dispatched=True
            )
            async with opened as tx:
                if not tx.is_known:
                    await call(tx=tx)

        async def once_in_session(key: str, call: _Function) -> None:
            asked = RequestKey(key, scope, None, wait)
            attempt = await asyncio.to_thread(_in_session, endpoint, sessions, asked, max_commit=max_commit, call=call)
            if attempt.entry is not None and not await attempt.entry.dispatch():
                raise RetryableError("this tick is committed, but not all of its messages are dispatched")

        @_as_seen_by_the_host(function, hidden=("tx",))
        async def serve(*arguments: Any, **values: Any) -> None:
            key, call = _key_of_tick([*arguments, *values.values()]), partial(function, *arguments, **values)

            async def run() -> None:
                await keeping.opened()
                await (once if sessions is None else once_in_session)(key, call)

            await _repeat_failures(run)

        return serve

    return decorate


def by_authorization(request: HttpRequest) -> str | None:
    """Distinguish clients by the header `Authorization`, of which only a hash is stored."""
    found = request.headers.get("authorization")
    return None if found is None else str(found)


def idempotent(  # noqa: PLR0913 - one parameter for each option
    endpoint: Endpoint,
    sessions: Sessions | None = None,
    *,
    key_required: bool = True,
    principal: Principal = by_authorization,
    scope: Principal | None = None,
    max_body: int = 1 << 20,
    wait: float = 2.0,
    max_commit: timedelta | None = None,
    fingerprint: Callable[[HttpRequest, bytes], bytes | str] | None = None,
    store_if: Callable[[int], bool] = is_final,
) -> Callable[[_Function], Callable[..., Awaitable[HttpResponse]]]:
    """Make an HTTP function handle each request once: `@idempotent(shop)` below `@app.route(...)`.

    The function receives the open transaction as `tx`. Its response is committed with the transaction before it is sent, and
    returned to every retry with the same `Idempotency-Key`. An exception rolls the transaction back. It returns a
    `func.HttpResponse` or a text.

    * `sessions`: for a `def`, which gets a `RequestTransaction`: a `sessionmaker` of the endpoint's database. An `async def`
      gets a `Transaction`, and no `sessions`.
    * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
    * `principal`: returns the principal of a request, such as a user. The key of another principal is refused.
    * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
    * `max_body`: bytes of a request's body.
    * `wait`: seconds to wait for another request with the same key.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `fingerprint`: returns bytes or text of a request and its body. It replaces the comparison of query and body.
    * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key is
      free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

    Messages of a `def` without a key are sent by the timer of `maintenance`. Raises TransactionMisused for durations that no
    transaction can have, and SetupError for a function without a parameter `tx`, and for `sessions` that do not fit.
    """
    keeping = kept(endpoint)
    options: dict[str, Any] = {
        "endpoint": endpoint,
        "key_required": key_required,
        "principal": principal,
        "scope": scope,
        "max_body": max_body,
        "wait": wait,
        "max_commit": max_commit,
        "fingerprint": fingerprint,
        "store_if": store_if,
    }
    server: AsyncServer | ThreadServer
    if sessions is None:
        server = AsyncServer(rules=RequestRules[HttpRequest](**options))
    else:
        server = ThreadServer(SessionRules[HttpRequest](**options, sessions=sessions))

    def decorate(function: _Function) -> Callable[..., Awaitable[HttpResponse]]:
        _check_transactional(function, sessions)

        @_as_seen_by_the_host(function, hidden=("tx",))
        async def serve(*arguments: Any, **values: Any) -> HttpResponse:
            request = next((each for each in (*arguments, *values.values()) if isinstance(each, HttpRequest)), None)
            if request is None:
                raise TypeError("idempotent is for HTTP triggers: put it below @app.route, with a func.HttpRequest")

            def respond(tx: Any) -> Any:
                return function(*arguments, **values, tx=tx)

            await keeping.opened()
            return await server.serve(request, respond)

        return serve

    return decorate


def maintenance(endpoint: Endpoint, *, schedule: str = "0 * * * * *", remaining: float = 60.0) -> Blueprint:
    """Return a blueprint with a timer that maintains the endpoint: `app.register_functions(maintenance(shop))`.

    It sends what is committed and was not sent for `relay_after`, as `onceonly relay` does, and deletes what is expired.
    `schedule` is an NCRONTAB expression, `remaining` the seconds that a run may take. The function's name is `onceonly_` with
    the endpoint's name. It raises RetryableError if a task failed, so that the host shows it.
    """
    keeping, blueprint = kept(endpoint), Blueprint()  # type: ignore[no-untyped-call]

    @blueprint.function_name(f"onceonly_{endpoint.name}".replace("-", "_").replace(".", "_"))
    @blueprint.timer_trigger(arg_name="timer", schedule=schedule)
    async def maintain(timer: TimerRequest) -> None:  # noqa: ARG001 - the trigger's name for it
        began = monotonic()
        await keeping.opened()
        async with asyncio.timeout(remaining / 2):
            await host_of(endpoint).send_old()
        report = await endpoint.maintain(remaining=max(1.0, remaining - (monotonic() - began)))
        if report.troubles:
            raise RetryableError(f"maintenance of endpoint {endpoint.name!r}: {'; '.join(report.troubles)}")

    return blueprint


async def close(endpoint: Endpoint) -> None:
    """Close the endpoint, if an invocation has opened it. For tests; the next invocation opens it again."""
    await kept(endpoint).close()


def _as_seen_by_the_host(function: _Function, hidden: Sequence[str]) -> Callable[[_Function], Callable[..., Awaitable[Any]]]:
    """Give a function the name and the parameters of another, except those that the host has no binding for."""
    if not inspect.isroutine(function):
        raise SetupError(
            f"{function!r} is not a function: put the decorator of onceonly below those of the app, next to the function"
        )

    def decorate(serve: _Function) -> Callable[..., Awaitable[Any]]:
        made = wraps(function)(serve)
        signature = signature_of(function)
        shown = [each for name, each in signature.parameters.items() if name not in hidden]
        vars(made)["__signature__"] = signature.replace(parameters=shown)
        made.__annotations__ = {name: each for name, each in annotations_of(function).items() if name not in hidden}
        return made

    return decorate


async def _call(function: _Function, *arguments: Any, **values: Any) -> Any:
    """Call the body of a function: a `def` in a thread, because it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **values)
    return await asyncio.to_thread(function, *arguments, **values)


def _replacement(returned: object) -> list[HostedMessage] | None:
    """Return the messages that the body of a function gives instead of the trigger's; None if it gives none."""
    if returned is None:
        return None
    found = [returned] if isinstance(returned, HostedMessage) else returned
    if not isinstance(found, list | tuple) or not all(isinstance(each, HostedMessage) for each in found):
        raise TypeError(
            f"a function with @handled_by returns None, a HostedMessage or a list of these, not {type(returned).__name__}: "
            "send messages with context.send or context.publish of a handler, because an output binding may repeat them"
        )
    return list(found)


def _waits(outcomes: Sequence[HostedOutcome]) -> list[float]:
    """Return in how many seconds each message that must be delivered again is due."""
    return [outcome.retry_after or 0.0 for outcome in outcomes if not outcome.is_settled]


async def _repeat_until_settled(
    handle: Callable[[Sequence[HostedMessage]], Awaitable[Sequence[HostedOutcome]]],
    messages: Sequence[HostedMessage],
    seconds: float,
) -> None:
    """Handle events again until each is settled, because the host does not. Raises NotSettled at the end of the time."""
    until = monotonic() + seconds
    while True:
        outcomes = await handle(messages)
        if not (waits := _waits(outcomes)):
            return
        if monotonic() + min(waits) >= until:
            raise NotSettled(outcomes)
        await asyncio.sleep(min(waits))
        left = [each for each, outcome in zip(messages, outcomes, strict=True) if not outcome.is_settled]
        messages = [
            HostedMessage(each.body, each.headers, each.id, each.deliveries + 1, each.queue, each.receipt) for each in left
        ]


async def _repeat_failures(run: Callable[[], Awaitable[None]]) -> None:
    """Repeat what failed without a fault of the application, for some time."""
    until, pause = monotonic() + REPEATS_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return await run()
        except (RetryableError, ConflictError):
            if monotonic() + pause >= until:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _key_of_tick(given: Sequence[object]) -> str:
    """Return the planned instant of a tick, as the host keeps it until the tick has run. Raises SetupError, TypeError."""
    timer = next((each for each in given if isinstance(each, TimerRequest)), None)
    if timer is None:
        raise TypeError("once_per_tick is for timer triggers: put it below @app.timer_trigger, with a func.TimerRequest")
    planned = timer.schedule_status.get("Next")
    if not planned:
        raise SetupError(
            "this timer has no planned instant, because the host keeps no schedule for it: set use_monitor=True, and let it "
            "fire at most once a minute"
        )
    try:
        instant = datetime.fromisoformat(str(planned)).astimezone(UTC)  # without an offset, it is local time
    except (ValueError, OverflowError):
        return str(planned)
    if not timer.past_due and instant.timestamp() - LIVE.clock.now() / 1000 > EARLY_SECONDS:
        return f"unplanned {LIVE.ids.new_id()}"
    return instant.isoformat()


def _check_transactional(function: _Function, sessions: Sessions | None) -> None:
    """Raise SetupError unless a function takes a transaction, of the kind that its options give it."""
    name = getattr(function, "__name__", repr(function))
    if inspect.isroutine(function) and "tx" not in signature_of(function).parameters:
        raise SetupError(f"{name} has no parameter tx, the transaction in which its work is done: add it")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and sessions is not None:
        raise SetupError(
            f"{name} is an `async def`, which gets a transaction of the endpoint: remove sessions=, or make it a `def`"
        )
    if not is_async and sessions is None:
        raise SetupError(
            f"{name} is a `def`, which works in a synchronous session: add a sessionmaker, or make it an `async def`"
        )
    if sessions is not None:
        check_sessions(sessions)


def _in_session(
    endpoint: Endpoint, sessions: Any, asked: RequestKey, *, max_commit: timedelta | None, call: _Function
) -> SessionRequest:
    """Run a `def` in a session of its own, and commit. Returns the attempt, whose messages are not dispatched yet."""
    with session_of_request(sessions) as session:
        attempt = SessionRequest(endpoint, session, max_commit)
        opened = attempt.open(asked)
        if not isinstance(opened, bytes):
            with attempt.work():
                call(tx=opened)
            attempt.commit(b"")
    return attempt
