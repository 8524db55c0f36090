"""Endpoint: a named consumer with one input queue, its handlers, and its own deduplication scope."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onceonly.config.deduplication import ControlMessages, Deduplication, History
from onceonly.config.endpoint import MAX_COMMIT, Settings
from onceonly.config.worker import WorkerSettings
from onceonly.endpoint.registration import RegisteredHandler, RegisteredProvider, Registrations
from onceonly.endpoint.signatures import Function, callers_frame, is_function
from onceonly.formats.identity import IdentityRule
from onceonly.model.errors import InvalidHandler
from onceonly.model.peer import Peer
from onceonly.model.retry import Retry
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE, Environment

if TYPE_CHECKING:  # what opens and runs an endpoint is imported when it is opened
    from onceonly.endpoint.entities import KeyRule
    from onceonly.endpoint.host import Host
    from onceonly.endpoint.http_app import HttpApp, Principal
    from onceonly.endpoint.outgoing import Outgoing
    from onceonly.endpoint.transactions import Transaction
    from onceonly.ports.bundle import Ports
    from onceonly.runtime.background import Background
    from onceonly.runtime.observe.observer import Observer
    from onceonly.runtime.processes.counters import CounterRow

_Function = TypeVar("_Function", bound=Callable[..., Any])
Lifespan = Callable[["Endpoint"], AbstractAsyncContextManager[object]]


class Endpoint:
    """Handlers whose effects happen exactly once; see `Settings` for what the arguments mean.

    `lifespan` is an async context manager factory, called with the endpoint: entered before the providers and the worker
    start, left after they stopped. Raises SetupError that lists everything that is wrong with the settings.
    """

    def __init__(  # noqa: PLR0913 - one place names all settings of an endpoint
        self,
        name: str,
        *,
        store: object,
        transport: str,
        metadata: object = None,
        isolation: str | None = None,
        deduplication: Deduplication = History(),  # noqa: B008 - immutable
        blobs: str | None = None,
        peers: Sequence[Peer | str] = (),
        identity: IdentityRule | None = None,
        retry: Retry = Retry(),  # noqa: B008 - immutable
        timeout: float = 30.0,
        relay_after: float = 10.0,
        max_commit: timedelta = MAX_COMMIT,
        manual_retry: timedelta = timedelta(),
        janitor: bool = True,
        janitor_interval: timedelta | None = None,
        health: str | None = None,
        control: ControlMessages = ControlMessages(),  # noqa: B008 - immutable
        lifespan: Lifespan | None = None,
        dead_letters: object = None,
        worker: WorkerSettings = WorkerSettings(),  # noqa: B008 - immutable
    ) -> None:
        self.settings = Settings(
            name=name,
            store=store,
            transport=transport,
            metadata=metadata,
            isolation=isolation,
            deduplication=deduplication,
            blobs=blobs,
            peers=peers,
            identity=identity,
            retry=retry,
            timeout=timeout,
            relay_after=relay_after,
            max_commit=max_commit,
            manual_retry=manual_retry,
            janitor=janitor,
            janitor_interval=janitor_interval,
            health=health,
            control=control,
            dead_letters=dead_letters,
            worker=worker,
        )
        self._lifespan = lifespan
        self._registered = Registrations()

    def __repr__(self) -> str:
        return f"<Endpoint {self.name}>"

    @property
    def name(self) -> str:
        """The endpoint's name, which is also its input queue's."""
        return self.settings.name

    @overload
    def handler(self, function: _Function, /) -> _Function: ...
    @overload
    def handler(
        self, *, type: str | None = ..., retry: Retry | None = ..., timeout: float | None = ...
    ) -> Callable[[_Function], _Function]: ...
    @overload
    def handler(
        self,
        *,
        entity: type[Any],
        key: "KeyRule",
        type: str | None = ...,
        retry: Retry | None = ...,
        timeout: float | None = ...,
    ) -> Callable[[_Function], _Function]: ...
    def handler(
        self,
        function: Any = None,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        retry: Retry | None = None,
        timeout: float | None = None,
        entity: Any = None,
        key: Any = None,
    ) -> Any:
        """Register a handler; usable with and without arguments. Gives the function back unchanged.

        The first parameter's class decides which messages it takes, `type` under which name they travel; the others are
        injected by annotation. `retry` and `timeout` (seconds, `async def` handlers only) override the endpoint's.

        With `entity` it works on one entity of that class for each message: the one whose key is in the message's field
        `key`, or what `key` makes of the message (a str, an int, a UUID or an enum of these). A parameter annotated
        `Account` gets it as the store has it, else a fresh one: all defaults, and the key in the field of that name if there
        is one. Annotated `Account | None` it gets None instead. It is changed in place, or another one is returned, or
        `Deleted()`.
        Raises InvalidHandler for what is no function; all else about it is judged at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._registered.handlers.append(
                RegisteredHandler(self._function(function, frame), type, retry, timeout, entity, key)
            )
            return function

        return register if function is None else register(function)

    @overload
    def provide(self, factory: _Function, /) -> _Function: ...
    @overload
    def provide(self, *, scope: str = ...) -> Callable[[_Function], _Function]: ...
    def provide(self, factory: Any = None, *, scope: str = "process") -> Any:
        """Register a factory of what handlers ask for by its return annotation; gives it back unchanged.

        A function, a coroutine function, or a generator of either kind that yields once and cleans up afterwards. What it
        made lives from start to stop, or for one message with `scope="message"`; it may ask for what others make.
        """
        frame = callers_frame()

        def register(factory: _Function) -> _Function:
            self._registered.providers.append(RegisteredProvider(self._function(factory, frame), scope))
            return factory

        return register if factory is None else register(factory)

    def enlist(self, session: object) -> "Outgoing":
        """Send messages inside the open transaction of a SQLAlchemy `AsyncSession` or `Session` that the caller owns.

        They are committed and rolled back with it, by savepoint too. After the commit this endpoint dispatches them at once
        if it runs in this process; if not, the relay of any process where it runs does, `relay_after` later. A body may have
        256 KiB, where the endpoint runs what its transport takes. Raises SetupError: for a session of another database than
        the store, one that is in AUTOCOMMIT or belongs to a handler, and with a store that is no SQL database.
        """
        return self._host.enlist(session)

    @overload
    def responder(self, function: _Function, /) -> _Function: ...
    @overload
    def responder(self, *, type: str | None = ..., timeout: float | None = ...) -> Callable[[_Function], _Function]: ...
    def responder(
        self,
        function: Any = None,
        *,
        type: str | None = None,  # noqa: A002 - as of a handler
        timeout: float | None = None,
    ) -> Any:
        """Register what executes one operation for other services, once for each request; gives the function back unchanged.

        The first parameter's class decides how the request's body is read, and its name, or `type`, is the operation's; the
        others are injected as into a handler. What it changes and sends is committed together with what it returns: an
        object that a body may be (200), None (204), or a `Response`. `Reject` is an answer, too: 422 with the reason. After
        any other exception nothing has happened, and the caller asks again.
        Raises InvalidHandler for what is no function; all else about it is judged at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._registered.responders.append(RegisteredHandler(self._function(function, frame), type, None, timeout))
            return function

        return register if function is None else register(function)

    def http_app(self, *, principal: "Principal | None" = None) -> "HttpApp":
        """Give the ASGI application that serves the responders, by the protocol of docs/http.md.

        Its server's lifespan opens the endpoint; mounted in another application, that has to: `async with shop.running():`.
        `principal` tells from the connection's scope who calls, "" for anybody; None is refused with 401. What one principal
        has asked for no other can have executed, read or delete.
        """
        from onceonly.endpoint.http_app import HttpApp  # noqa: PLC0415 - where one is served

        return HttpApp(self, principal=principal)

    def transaction(
        self,
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
    ) -> "Transaction":
        """Open a transaction outside of any handler, such as in a web request: `async with shop.transaction() as tx:`.

        The block's work with `tx.sql` and what it sends with `tx.send` and `tx.publish` are committed together at its end, or
        not at all. What was sent is dispatched at once, by this process, and if that dies by any where the endpoint runs.

        With a client's `idempotency_key` (1 to 255 bytes) the first committed answer, `tx.answer`, is kept and given to every
        retry, also after a commit of which nobody knows whether it happened: `if tx.is_known: return tx.answer` comes first in
        the block. `request` is what was asked, bytes or something that can be written as JSON; the same key with another
        request raises KeyReused. A second attempt waits for one that is under way, as long as for any lock, or for `wait`
        seconds; then it raises ConflictError.

        `scope` names the space of the key, such as a tenant: the same key in another scope, or without one, is another key.

        The commit happens within `max_commit` of the beginning, or not at all: that raises CommitFailed. It is the endpoint's
        unless given, an hour at most, and less than the retention. Opened in a process that has not opened the endpoint it
        makes a connection of its own; enter `shop.running()` or `shop.opened()` around many. Raises InvalidKey,
        TransactionMisused; `Transaction` says what its block raises.
        """
        from onceonly.endpoint.transactions import Transaction, asked  # noqa: PLC0415 - when one is opened

        settings = self.settings
        limit = settings.max_commit if max_commit is None else max_commit
        wanted = asked(idempotency_key, request, limit, scope=scope, wait=wait, retention=settings.retention)
        return Transaction(wanted, self._host.means)

    async def transact(
        self,
        function: "Callable[[Transaction], Awaitable[Any]]",
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
    ) -> Any:
        """Run `function(tx)` in a transaction, and give its answer; with a key once, and every retry gets that answer.

        The answer is what it returns, else `tx.answer`: bytes, or what JSON has. Otherwise as `transaction`. Raises what the
        function raises, KeyReused, and, with nothing done, ConflictError (try again), CommitRefused, CommitFailed;
        OutcomeUnknown when only a retry with the same key can tell.
        """
        opened = self.transaction(
            idempotency_key=idempotency_key, request=request, scope=scope, max_commit=max_commit, wait=wait
        )
        return await opened.run(function)

    def topology(self) -> Topology:
        """Give the input queue and the types it subscribes to. Raises InvalidHandler."""
        return self._host.topology()

    @asynccontextmanager
    async def opened(
        self,
        *,
        settings: Settings | None = None,
        environment: Environment = LIVE,
        observer: "Observer | None" = None,
    ) -> "AsyncIterator[Ports]":
        """Open everything but the worker: lifespan, providers, adapters. Gives the ports, enclosed by `observer`.

        `settings` override the endpoint's own. Raises InvalidHandler and other SetupErrors before anything is received, and
        RetryableError when a server is away.
        """
        async with self._host.opened(settings=settings, environment=environment, observer=observer) as ports:
            yield ports

    async def run(
        self,
        stop: asyncio.Event,
        *,
        settings: Settings | None = None,
        environment: Environment = LIVE,
        observer: "Observer | None" = None,
        counters: "CounterRow | None" = None,
        ready: asyncio.Event | None = None,
    ) -> None:
        """Work until `stop` is set; then finish what is in flight and close everything. Raises SetupError.

        A server that is away at start is waited for. Sets `ready` once it is receiving, or has found that it has to wait.
        """
        await self._host.run(
            stop, settings=settings, environment=environment, observer=observer, counters=counters, ready=ready
        )

    @asynccontextmanager
    async def running(
        self,
        *,
        settings: Settings | None = None,
        environment: Environment = LIVE,
        observer: "Observer | None" = None,
        counters: "CounterRow | None" = None,
    ) -> "AsyncIterator[Background]":
        """Run the worker beside the block, such as in another application's lifespan; the exit stops it gracefully.

        A server that is away at start holds nobody up: the block begins, and the worker keeps trying beside it. A wrong
        set-up is raised here when it shows at start; what ends the worker later is raised at the exit. The application goes
        on meanwhile: `failure` of what is given here says that the worker has ended, for the application's own probe.
        """
        from onceonly.runtime.background import in_background  # noqa: PLC0415 - when it runs

        def run(stop: asyncio.Event, ready: asyncio.Event) -> Coroutine[Any, Any, None]:
            return self.run(stop, settings=settings, environment=environment, observer=observer, counters=counters, ready=ready)

        async with in_background(run, name=f"onceonly {self.name}") as background:
            yield background

    @asynccontextmanager
    async def sending(
        self, *, settings: Settings | None = None, environment: Environment = LIVE, observer: "Observer | None" = None
    ) -> AsyncIterator[None]:
        """Send what transactions of this process commit, beside the block, and what others left; receive nothing.

        Otherwise as `running`: for an application whose messages are handled elsewhere. Without handlers it has no queue.
        """
        async with self._host.sending(settings=settings, environment=environment, observer=observer):
            yield

    @cached_property
    def _host(self) -> "Host":
        from onceonly.endpoint.host import Host  # noqa: PLC0415 - when it is opened, or asked about its handlers

        return Host(self, self._registered, self._lifespan)

    def _function(self, function: Callable[..., Any], frame: FrameType | None) -> Function:
        if not is_function(function):
            raise InvalidHandler(f"endpoint {self.name!r}: {function!r} is no function; register functions and methods")
        return Function(function, frame)
