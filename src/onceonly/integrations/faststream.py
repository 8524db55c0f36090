"""For FastStream: `ExactlyOnceMiddleware`, a middleware of a broker, and `lifespan`, which sends what handlers published."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self

from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.endpoint import Endpoint, Transaction
from onceonly.endpoint.other_writes import HandlerName, watching
from onceonly.formats.identity import IdentityField, IdentityHeader, rule_problem
from onceonly.integrations.faststream_messages import capture, outgoing_of, reply_of, say_again, stored_reply
from onceonly.integrations.faststream_subscribers import key_of, name_of, problems_of, scope_of, set_problems
from onceonly.model.errors import (
    CommitRefused,
    DriverMissing,
    InvalidEffect,
    InvalidKey,
    OnceOnlyError,
    SetupError,
    TransactionMisused,
)
from onceonly.systems import Family

try:
    from faststream import BaseMiddleware, Context, Depends, Response
    from faststream.exceptions import IgnoredException, NackMessage
    from faststream.message import StreamMessage
    from faststream.response.publish_type import PublishType
except ModuleNotFoundError as missing:
    raise DriverMissing(
        "faststream is not installed: pip install 'onceonly[faststream]', and the extra of your broker, such as"
        " 'faststream[rabbit]'"
    ) from missing

__all__ = ["ExactlyOnceMiddleware", "KeyRule", "Session", "Tx", "lifespan", "session", "transaction"]

KeyRule = IdentityHeader | IdentityField | Callable[[StreamMessage[Any]], str]
"""How messages are identified. A callable receives FastStream's message and returns its key."""

_LASTING = (InvalidKey, InvalidEffect, TransactionMisused, CommitRefused)
"""What a message fails with each time it is delivered: a dead letter exchange may have it."""

_Call = Callable[[Any], Awaitable[Any]]
_APP = Context("app")


async def transaction() -> Transaction:
    """Return the transaction of the message that is being handled: `Depends(transaction)`. Raises TransactionMisused."""
    unit = _CURRENT.get()
    if unit is None or unit.tx is None:
        raise TransactionMisused(
            "no transaction is open here: use it in a subscriber of a broker that has the ExactlyOnceMiddleware"
        )
    return unit.tx


async def session() -> AsyncSession:
    """Return the SQLAlchemy session of the message's transaction: `Depends(session)`.

    Its changes are committed with the messages that the subscriber publishes. Raises TransactionMisused. Raises SetupError if
    the store is not a SQL database.
    """
    return (await transaction()).sql


Tx = Annotated[Transaction, Depends(transaction)]
"""The annotation that injects the transaction into a subscriber or a dependency: `async def place(order: Order, tx: Tx)`."""
Session = Annotated[AsyncSession, Depends(session)]
"""The annotation that injects the transaction's session: `async def place(order: Order, session: Session)`."""


def lifespan(*endpoints: Endpoint) -> Callable[..., AbstractAsyncContextManager[None]]:
    """Return the lifespan of an application whose brokers use these endpoints: `FastStream(broker, lifespan=lifespan(shop))`.

    It sends what subscribers published, and what other processes left, as `Endpoint.sending` does. At the start it checks all
    subscribers of FastStream's application. Raises SetupError for one that cannot be exactly-once. Those of a router of FastAPI
    are checked at their first message.
    """

    @asynccontextmanager
    async def around(app: Any = _APP) -> AsyncIterator[None]:
        for broker in getattr(app, "brokers", ()):  # FastAPI has none: its routers have
            _check([each for each in broker.subscribers if _ours(each)])
        async with AsyncExitStack() as stack:
            for endpoint in endpoints:
                await stack.enter_async_context(endpoint.sending())
            yield

    return around


class ExactlyOnceMiddleware:
    """Makes the subscribers of a broker exactly-once: `RabbitBroker(url, middlewares=[ExactlyOnceMiddleware(shop, key=...)])`.

    Each message is handled in one transaction of the endpoint. `session` and `transaction` are in FastStream's context:
    `session: AsyncSession = Context()`. What the subscriber publishes, with `@broker.publisher` or `broker.publish`, is
    committed with its changes, and the endpoint's transport sends it after the commit. Then FastStream acknowledges the
    message. A message that was handled before is acknowledged. Neither its handler nor its publishers run, but what the first
    run committed is sent if it was not.

    * `key`: how messages are identified: `IdentityHeader("x-order-key")`, `IdentityField("order_id")`, or a function of
      FastStream's message. It must be the same in each copy of a message, and unique among the messages of a subscriber.
      Default: the message's id. This one changes when a producer repeats itself. If a subscriber has several handlers with
      filters, each handler has its own keys, by its name.
    * `fingerprint`: returns what of a message must be equal in its copies, as bytes or text. Default: the body.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `wait`: seconds to wait for another copy that is being handled. Default: as for any lock.
    * `retry_delay`: seconds to hold a failed message before it is returned to the broker. RabbitMQ delivers it again at once.

    A handler that raises changes nothing and sends nothing. The policy of its subscriber must then return the message to the
    broker: `ack_policy=AckPolicy.NACK_ON_ERROR`. FastStream's default loses it. A subscriber that can lose messages, or that
    takes batches, is refused: SetupError at the start with `lifespan`, otherwise at its first message.

    Raises SetupError for a `key` that is not a rule.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        key: KeyRule | None = None,
        fingerprint: Callable[[StreamMessage[Any]], bytes | str] | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
        retry_delay: float = 1.0,
    ) -> None:
        if rule_problem(key) is not None:
            raise SetupError('key= must be IdentityHeader("name"), IdentityField("name") or a function of the message')
        self._options = _Options(endpoint, key, fingerprint, max_commit, wait, retry_delay)

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """Return the middleware of one message, or of one that is published. FastStream calls it."""
        return _MessageTransaction(msg, context=context, options=self._options)


@dataclass
class _Options:
    """The options of a middleware, and the subscribers that were checked."""

    endpoint: Endpoint
    key: KeyRule | None
    fingerprint: Callable[[StreamMessage[Any]], bytes | str] | None
    max_commit: timedelta | None
    wait: float | None
    retry_delay: float
    checked: set[int] = field(default_factory=set)
    names: dict[str, HandlerName] = field(default_factory=dict)

    def name(self, call: Any) -> HandlerName:
        """Return the name of the handler that is called: the same object each time."""
        function = _innermost(call).__self__._original_call  # noqa: SLF001 - has no public name
        path = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        return self.names.setdefault(path, HandlerName(self.endpoint.name, path))

    def rejects(self, subscriber: Any) -> bool:
        """Return whether a subscriber rejects what fails, to a dead letter exchange."""
        return id(subscriber) in self.checked and subscriber.ack_policy.name == "REJECT_ON_ERROR"

    def transaction(self, subscriber: Any, handler: Any, message: StreamMessage[Any]) -> Transaction:
        """Return the transaction of a message that a handler of a subscriber received. Raises SetupError, InvalidKey."""
        if id(subscriber) not in self.checked:
            _check([subscriber], together=False)
            self.checked.add(id(subscriber))
        scope = scope_of(subscriber, handler)
        return self.endpoint.transaction(
            idempotency_key=key_of(message, self.key, scope),
            request=message.body if self.fingerprint is None else self.fingerprint(message),
            scope=scope,
            max_commit=self.max_commit,
            wait=self.wait,
        )


def _check(subscribers: list[Any], *, together: bool = True) -> None:
    """Raise SetupError for subscribers that cannot be exactly-once, alone or together. It names them all."""
    problems = [problem for each in subscribers for problem in (*_twice(each), *problems_of(each))]
    if together and not problems:
        problems = list(set_problems(subscribers))
    if problems:
        raise SetupError("ExactlyOnceMiddleware: " + "; ".join(problems))


def _ours(subscriber: Any) -> int:
    return sum(isinstance(each, ExactlyOnceMiddleware) for each in subscriber._broker_middlewares)  # noqa: SLF001 - has no public name


def _twice(subscriber: Any) -> Iterator[str]:
    if (count := _ours(subscriber)) > 1:
        yield (
            f"{name_of(subscriber)} has {count} ExactlyOnceMiddlewares, of its broker and its routers, and a message is handled"
            " in one transaction. Leave it one"
        )


class _MessageTransaction(BaseMiddleware[Any, Any]):
    """One message: opens in `consume_scope`, collects in `publish_scope`, commits in `__aexit__`.

    FastStream enters its ack middleware before this one and leaves it after it. Publishers run between the handler and
    `__aexit__`. `broker.publish` inside a handler makes an instance of its own: it finds this one in the context.
    """

    def __init__(self, msg: Any, /, *, context: Any, options: _Options) -> None:
        super().__init__(msg, context=context)
        self.tx: Transaction | None = None
        self.is_over = False
        self._task: asyncio.Task[Any] | None = None
        self.ending: asyncio.Event | None = None
        self._options = options
        self._message: StreamMessage[Any] | None = None
        self._failure: BaseException | None = None
        self._misuse: TransactionMisused | None = None
        self._token: Token[_MessageTransaction | None] | None = None
        self._later: list[Callable[[], Awaitable[Any]]] = []
        self._scope = ExitStack()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        await super().__aenter__()
        return self

    async def consume_scope(self, call_next: _Call, msg: StreamMessage[Any]) -> Any:
        handler = _innermost(call_next)
        if not _is_handler(handler):  # a reply to a request, or a message that the application asks for itself
            return await call_next(msg)
        self._message = msg
        try:
            self._check_task()
            self._token = _CURRENT.set(self)
            opened = self._options.transaction(self.context.get_local("handler_"), handler.__self__, msg)
            self.tx = await opened.__aenter__()
            if self.tx.is_known:
                return reply_of(self.tx.answer, Response)
            self._scope.enter_context(_unsettled(msg))
            self._scope.enter_context(self.context.scope("transaction", self.tx))
            if self._options.endpoint.settings.places.store.family is Family.SQL:
                self._scope.enter_context(self.context.scope("session", self.tx.sql))
            with watching(self._options.name(call_next)):
                return await call_next(msg)
        except BaseException as error:
            self._failure = error
            raise

    async def publish_scope(self, call_next: _Call, cmd: Any) -> Any:
        unit = _CURRENT.get()
        if unit is None or unit.is_over or cmd.publish_type is PublishType.REQUEST:
            return await call_next(cmd)
        if unit.ending is not None:  # this is a task that the handler left: the others find the unit open, or over
            await unit.ending.wait()
            unit.check_done()
            return await call_next(cmd)
        return await unit.publish(call_next, cmd)

    def check_done(self) -> None:
        """Raise TransactionMisused if the message was not handled."""
        if self._failure is not None:
            raise TransactionMisused(
                "the transaction of this task's message was undone, so what the task publishes is not sent"
            ) from self._failure

    def _check_task(self) -> None:
        """Refuse a task in which the publishers and the commit do not run. Raises TransactionMisused."""
        if asyncio.current_task() is not self._task:
            raise TransactionMisused(
                "a middleware before the ExactlyOnceMiddleware runs the handler in another task, where a transaction cannot be"
                " committed with what the publishers publish: use asyncio.timeout instead of asyncio.wait_for"
            )

    async def publish(self, call_next: _Call, cmd: Any) -> Any:
        """Put what is published into the transaction. A reply is sent after the commit, and stored for copies."""
        if asyncio.current_task() is not self._task:
            self._misuse = TransactionMisused(
                "a transaction can be used only in the task that opened it: publish in the handler itself, without"
                " asyncio.gather, wait_for or create_task, or in a task after the message is handled"
            )
            raise self._misuse
        if self._failure is not None:  # a middleware outside of this one caught it, and publishes something instead
            raise self._failure
        if self.tx is None:
            raise TransactionMisused("this message's transaction is not open")
        is_reply = cmd.publish_type is PublishType.REPLY
        if self.tx.is_known and is_reply:
            say_again(self.tx.answer, cmd)
            return await call_next(cmd)
        if self.tx.is_known:
            return None
        producer = getattr(_innermost(call_next), "__self__", None)
        if is_reply:
            self.tx.answer = await stored_reply(cmd, producer)
            self._later.append(partial(call_next, cmd))
        elif type(producer).__module__.endswith(".testing"):  # FastStream's TestBroker: its fakes and mocks receive it
            list(outgoing_of(cmd))  # refuses what the real broker's would
            self._later.append(partial(call_next, cmd))
        else:
            await _with_innermost(call_next, partial(capture, self.tx, producer))(cmd)
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> bool | None:
        if self._message is None:
            if _is_failure(error):  # it was not parsed, or no filter is for it: the broker would deliver it again at once
                await asyncio.sleep(self._options.retry_delay)
            return False
        if self._token is not None:
            _CURRENT.reset(self._token)
        self._scope.close()
        # What another task could not publish fails the unit, whoever caught that error: otherwise it would be lost.
        self._failure = error = self._failure or error or self._misuse
        try:
            await self._end(error)
        except OnceOnlyError as failed:
            # not done, or perhaps done: whatever a policy or another middleware makes of this, the broker keeps the message
            await self._return(failed)
            raise
        if isinstance(error, OnceOnlyError):
            await self._return(error)
        elif _is_failure(error):
            await asyncio.sleep(self._options.retry_delay)
        if error is not None and kind is None:
            raise error  # caught outside of this middleware, after the handler's work was undone
        return False

    async def _end(self, error: BaseException | None) -> None:
        """Commit or roll back; then send what does not go through the endpoint."""
        self.ending = asyncio.Event()
        try:
            if self.tx is not None:
                await self.tx.__aexit__(
                    None if error is None else type(error), error, None if error is None else error.__traceback__
                )
        except BaseException as failed:
            self._failure = failed
            raise
        finally:
            self.is_over = True
            self.ending.set()
        if error is None:
            for each in self._later:
                await each()

    async def _return(self, error: OnceOnlyError) -> None:
        """Keep the message in the broker, or in its dead letter exchange if that is the subscriber's policy."""
        await asyncio.sleep(self._options.retry_delay)
        if self._message is None:
            return
        with suppress(Exception):  # on a closed connection, which returns the message as well
            if isinstance(error, _LASTING) and self._options.rejects(self.context.get_local("handler_")):
                await self._message.reject()
            else:
                await self._message.nack()


def _is_failure(error: BaseException | None) -> bool:
    """Return whether the broker may deliver a message again at once after this error."""
    if isinstance(error, NackMessage):
        return not error.extra_options  # such as a delay
    return isinstance(error, Exception) and not isinstance(error, IgnoredException)


_CURRENT: ContextVar[_MessageTransaction | None] = ContextVar("onceonly_faststream", default=None)
"""The message that this task is handling."""


def _innermost(call: Any) -> Any:
    """Return what the middlewares are around: FastStream nests them as partial functions."""
    while isinstance(call, partial):
        call = call.args[0]
    return call


def _with_innermost(call: Any, replacement: _Call) -> _Call:
    """Return the same middlewares around something else."""
    if not isinstance(call, partial):
        return replacement
    return partial(call.func, _with_innermost(call.args[0], replacement))


def _is_handler(call: Any) -> bool:
    """Return whether this calls an application's handler, and not what FastStream's TestBroker puts at a destination."""
    handler: Any = getattr(call, "__self__", None)
    return call.__name__ == "call_wrapped" and not handler._original_call.__module__.startswith("faststream.")  # noqa: SLF001 - has no public name


def _unsettled(message: StreamMessage[Any]) -> ExitStack:
    """Refuse to settle a message while its transaction is open: the ack follows the commit."""
    stack = ExitStack()
    for name in ("ack", "ack_sync", "nack", "reject"):
        if hasattr(message, name):
            setattr(message, name, _refuse_to_settle)
            stack.callback(delattr, message, name)
    return stack


async def _refuse_to_settle(*_: object, **__: object) -> None:
    raise TransactionMisused(
        "a message is acknowledged after its transaction is committed: raise NackMessage, RejectMessage or AckMessage of"
        " faststream.exceptions instead of calling ack(), nack() or reject()"
    )
