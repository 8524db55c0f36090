"""Endpoint: a named consumer with one input queue, its handlers, and its own deduplication scope."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from onceonly.config.endpoint import Settings, takes
from onceonly.endpoint.signatures import (
    Function,
    RegisteredHandler,
    RegisteredProvider,
    Registrations,
    callers_frame,
    is_function,
)
from onceonly.model.errors import InvalidHandler
from onceonly.model.retry import Retry
from onceonly.ports.transport import Topology

if TYPE_CHECKING:  # what opens and runs an endpoint is imported when it is opened
    from onceonly.endpoint.enlisted_key import EnlistedKey
    from onceonly.endpoint.entities import KeyRule
    from onceonly.endpoint.host import Host
    from onceonly.endpoint.hosted import Hosted
    from onceonly.endpoint.http_app import HttpApp, Principal
    from onceonly.endpoint.partitions import PartitionRule
    from onceonly.endpoint.sender import Outgoing
    from onceonly.endpoint.transactions import Transaction
    from onceonly.model.maintenance_journal import MaintenanceReport
    from onceonly.runtime.background import Background
    from onceonly.sql.store.enlisted_keys import AsyncSessions, SyncSessions

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Endpoint:
    """A named consumer with one input queue. The effects of its handlers happen exactly once.

    Where it works:

    * `store`: a URL, an `AsyncEngine` or an `async_sessionmaker`.
    * `transport`: a URL. An endpoint without one has no queue: a host hands its messages over, with `hosted()`. It sends
      nothing, except to carriers, such as tasks to the broker of Celery.
    * `metadata`: a SQLAlchemy `MetaData`, whose tables are created at start in an embedded database.
    * `isolation`: the isolation level of units in a SQL store, such as "SERIALIZABLE". Default: the URL's, else the database's.
    * `deduplication`: how messages that were handled are recognized.
    * `dead_letters`: another place for dead letters than the store. `blobs`: the URL of the place for blobs.
    * `projections`: caches, search indexes and other places that handlers write to after their commit, by name: a mapping to
      URLs of documents, or to objects of your own with the methods of `onceonly.ports.projections.Projection`.
    * `peers`: URLs of the services that handlers send HTTP requests to, or a `Peer` for each.
    * `control`: how control messages finish transactions. On a document store they always do, on a SQL store if this is set.

    How messages are handled:

    * `identity`: how messages of other senders are identified, if not by their CloudEvents source and id.
    * `format`: how messages look on the wire, in both directions, such as `PlainJson()`. Default: CloudEvents, which are read
      with every format. A destination can have another one: `Queue("Sales", format=...)`.
    * `retry`: when a failed message is retried. `timeout`: seconds for each handler.
    * `max_hops`: the longest chain of handlers in which each sends the next message. The message after that is a dead letter.
      None: no limit, such as for a handler that sends itself the next tick of a timer.
    * `carry_headers`: names of headers, such as "tenant". What a handler sends has them with the values of its own message,
      unless the handler gives others.
    * `events`: where events go that other programs take, by type: a mapping from type to destination, such as
      `{"OrderPlaced": Exchange("orders")}`, or a function `type -> destination | None`. Others go to their subscribers.
    * `receives_from`: where the host of the endpoint receives, with `hosted()`: a `Queue`, a `Subject` or a `Stream` of the
      transport. What is sent to the endpoint itself goes there, such as messages of `onceonly dead retry`. A worker is refused.
    * `worker`: sizes of batches, and concurrency.
    * `unknown_types_wait`: seconds for which a message of a type that no handler of a process takes waits for a process that
      takes it, such as a newer one. It waits longer while such a process is live. 0: it is a dead letter at once.
    * `relay_after`: the age in seconds at which the relay sends the messages of a record.
    * `max_commit`: the longest duration of a transaction outside of handlers.
    * `manual_retry`: for how long after it was given up a person may retry a message, with its copies still recognized.

    How it runs:

    * `janitor`: whether workers, hosts and `onceonly relay` delete expired data. If not, run `onceonly janitor`, or call
      `maintain` from a timer. `janitor_interval`: how often.
    * `presence`: whether each process reports every 10 seconds to a SQL store that it runs, for `onceonly status`.
    * `health`: "HOST:PORT", where `onceonly run` serves `/live` and `/ready`.
    * `telemetry`: traces, such as `OpenTelemetry()` of `onceonly.telemetry`.
    * `journal`: a journal of what happens to messages, in a SQL store, such as `Journal()`. Default: none.
    * `lifespan`: a factory of an async context manager. It is called with the endpoint, entered before providers and worker
      start, and left after they stopped.

    Raises SetupError, which lists all settings that are wrong.
    """

    @takes(Settings)
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
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
        self,
        *,
        type: str | None = ...,
        retry: Retry | None = ...,
        timeout: float | None = ...,
        batch: bool = ...,
        own_transaction: bool = ...,
        isolation: str | None = ...,
        partition_key: "PartitionRule | None" = ...,
    ) -> Callable[[_Function], _Function]: ...
    @overload
    def handler(
        self,
        *,
        entity: type[Any],
        key: "KeyRule",
        partition_key: "PartitionRule | None" = ...,
        type: str | None = ...,
        retry: Retry | None = ...,
        timeout: float | None = ...,
        own_transaction: bool = ...,
        isolation: str | None = ...,
    ) -> Callable[[_Function], _Function]: ...
    def handler(  # noqa: PLR0913 - one for each option
        self,
        function: Any = None,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        retry: Retry | None = None,
        timeout: float | None = None,
        batch: bool = False,
        entity: Any = None,
        key: Any = None,
        own_transaction: bool = False,
        isolation: str | None = None,
        partition_key: Any = None,
    ) -> Any:
        """Register a handler. Usable with and without arguments. Returns the function unchanged.

        The class of the first parameter selects the messages. `type` is the name of the message type. The other parameters
        are injected by their annotations. `retry` and `timeout` (seconds) override the endpoint's. A `def`
        handler has a time limit only if it runs in a thread (`WorkerSettings.def_handlers`).

        With `batch`, the handler takes a list of messages, such as `list[PlaceOrder]`, on a SQL store: those of its type that a
        worker has received together, at most `WorkerSettings.batch_size`. `BatchContext` has the context of each. Every message
        keeps its own effects, retries and dead letter: when a batch fails, its work is undone, and its messages run again by
        halves, until only those that fail have failed. `timeout` is for the whole batch.

        With `own_transaction`, on a SQL store, each message gets a database transaction of its own. Other messages share one.
        Set it for what the text of a statement does not show, such as a function on the server that changes a setting, or
        `now()` in a unique key. `isolation` is the level of these transactions, such as "SERIALIZABLE", and implies
        `own_transaction`.

        With `entity`, each message changes one entity of that class. `key` is the message's field that has the entity's key,
        or a function that returns the key for a message: a str, an int, a UUID or an enum of these.

        A parameter annotated `Account` receives the stored entity, or a new one: all defaults, and the key in the field of
        that name if there is one. A parameter annotated `Account | None` receives None instead of a new one. Change the
        entity in place, or return another one, or `Deleted()`.

        With `partition_key`, what is stored for a message is in one partition of the document service: its entity, its record,
        and what the handler writes with `context.documents`. It is a field of the message, or a function of it; several, in
        order, for a hierarchical key. Without `entity`, each message has a small document of its own there. A service without
        partitions ignores it.

        Raises InvalidHandler if this is not a function. Everything else about it is checked at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._registered.handlers.append(
                RegisteredHandler(
                    self._function(self._as_handler(function), frame),
                    type,
                    retry,
                    timeout,
                    entity,
                    key,
                    batch,
                    own_transaction,
                    isolation,
                    partition_key,
                )
            )
            return function

        return register if function is None else register(function)

    @overload
    def provide(self, factory: _Function, /) -> _Function: ...
    @overload
    def provide(self, *, scope: str = ...) -> Callable[[_Function], _Function]: ...
    def provide(self, factory: Any = None, *, scope: str = "process") -> Any:
        """Register a factory for the type of its return annotation, which handlers can ask for. Returns it unchanged.

        A factory is a function, a coroutine function, or a generator of either kind that yields once and cleans up
        afterwards. Its result exists from start to stop, or for one message with `scope="message"`. Parameters of a factory
        are injected from other factories.
        """
        frame = callers_frame()

        def register(factory: _Function) -> _Function:
            self._registered.providers.append(RegisteredProvider(self._function(factory, frame), scope))
            return factory

        return register if factory is None else register(factory)

    def middleware(self, function: _Function, /) -> _Function:
        """Register a function that runs around every handler and responder. Returns it unchanged.

        It is `async def`, and its first two parameters are the `Context` and `call_next`. `await call_next()` runs the next
        middleware, and at last the handler, and returns what the handler returned. The first one registered is the outermost.
        The other parameters are injected by their annotations, as for an `async def` handler: the same session, for example.

        It runs inside the handler's unit and time-out. What it changes and sends is committed with the handler's work. Its
        exception fails the message like one of the handler. An exception of the handler that it catches still fails the
        message. If it does not call `call_next`, the handler does not run, and the message counts as handled. What it returns
        is ignored.

        Raises InvalidHandler if this is not a function. Everything else about it is checked at start.
        """
        self._registered.middleware.append(self._function(function, callers_frame()))
        return function

    @overload
    def enlist(self, session: object, *, key: None = None) -> "Outgoing": ...
    @overload
    def enlist(
        self,
        session: "SyncSessions",
        *,
        key: str,
        request: object = ...,
        scope: str | None = ...,
        wait: float | None = ...,
        max_commit: timedelta | None = ...,
    ) -> "EnlistedKey": ...
    @overload
    def enlist(
        self,
        session: "AsyncSessions",
        *,
        key: str,
        request: object = ...,
        scope: str | None = ...,
        wait: float | None = ...,
        max_commit: timedelta | None = ...,
    ) -> "Awaitable[EnlistedKey]": ...
    def enlist(
        self,
        session: object,
        *,
        key: str | None = None,
        request: object = None,
        scope: str | None = None,
        wait: float | None = None,
        max_commit: timedelta | None = None,
    ) -> Any:
        """Send messages inside the open transaction of a SQLAlchemy `AsyncSession` or `Session` that the caller owns.

        The messages are committed and rolled back with the transaction, also by savepoint. After the commit, this endpoint
        dispatches them at once if it runs in this process. Otherwise the relay of any process that runs it dispatches them
        after `relay_after`. A body may have 256 KiB, or what the transport accepts if the endpoint runs in this process.

        With a `key` of 1 to 255 bytes, the transaction also takes the key. It may be a client's, or the id of a message. Write
        `entry = shop.enlist(session, key=...)`, and for an asynchronous session `entry = await shop.enlist(...)`.
        Check `entry.is_known` first: the key was committed before, and `entry.answer` is the stored answer. Otherwise do the
        work, set `entry.answer`, and commit the session as usual. `request`, `scope`, `wait` and `max_commit` are those of
        `transaction`. A commit later than `max_commit` after this call raises CommitFailed at the session's commit.

        Another transaction that has taken the key is waited for, by default as long as the session waits for any lock.

        Raises SetupError for a session of another database than the store, in AUTOCOMMIT, or of a handler, and for a store
        that is not a SQL database. With a key, raises ConflictError if another attempt has it, also one that the isolation
        level does not let this transaction see: roll back, and call again. Raises KeyReused, InvalidKey, TransactionMisused.
        """
        if key is None:
            return self._host.enlist(session)
        from onceonly.endpoint.transactions import asked  # noqa: PLC0415 - when one is opened

        limit = self.settings.max_commit if max_commit is None else max_commit
        wanted = asked(key, request, limit, scope=scope, wait=wait, retention=self.settings.retention)
        return self._host.enlist_key(session, wanted)

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
        """Register a function that executes one operation for other services. Returns the function unchanged.

        Each request is executed once. The class of the first parameter is that of the request's body. Its name, or `type`, is
        the name of the operation. The other parameters are injected as for a handler.

        The function's changes and messages are committed with its result: an object that a body may be (200), None (204), or
        a `Response`. `Reject` is an answer as well: 422 with the reason. After any other exception nothing has happened, and
        the caller retries.

        Raises InvalidHandler if this is not a function. Everything else about it is checked at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._registered.responders.append(RegisteredHandler(self._function(function, frame), type, None, timeout))
            return function

        return register if function is None else register(function)

    def http_app(self, *, principal: "Principal | None" = None) -> "HttpApp":
        """Return the ASGI application that serves the responders, with the protocol of docs/explanation/http.md.

        Its own lifespan opens the endpoint. If you mount it in another application, open the endpoint there: `async with
        shop.running():`. `principal` returns the caller of a connection's scope: "" for an anonymous one, or None to refuse
        the request with 401. A principal cannot execute, read or delete the requests of another one.
        """
        from onceonly.endpoint.http_app import HttpApp  # noqa: PLC0415 - where one is served

        return HttpApp(self._host, principal=principal)

    def transaction(
        self,
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
        until_dispatched: bool = False,
    ) -> "Transaction":
        """Open a transaction outside of any handler, such as in a web request: `async with shop.transaction() as tx:`.

        The changes made with `tx.sql` and the messages of `tx.send` and `tx.publish` are committed together at the end of the
        block, or not at all. This process dispatches the messages at once. If it dies, any process that runs the endpoint
        dispatches them.

        With a client's `idempotency_key` (1 to 255 bytes), the first committed answer, `tx.answer`, is stored and returned to
        every retry. This includes retries after a commit whose outcome is unknown. Start the block with `if tx.is_known:
        return tx.answer`. `request` is the content of the request: bytes, or a value that can be written as JSON. The same
        key with another request raises KeyReused. A second attempt waits for one that is under way, by default as long as for
        any lock, or for `wait` seconds. Then it raises ConflictError.

        `scope` is the space of the key, such as a tenant. The same key in another scope, or without one, is another key.

        A known key whose messages are not dispatched yet dispatches them: no other process may be left that does. With
        `until_dispatched`, which needs a key, the block's beginning and its end raise DispatchPending until that is done. Use
        it where something is acknowledged after the block, such as a broker's delivery. Without it, a failed dispatch is
        logged and left to a relay, and `tx.is_dispatched` is false.

        A commit later than `max_commit` after the beginning raises CommitFailed and changes nothing. The default is the
        endpoint's `max_commit`. The limit is one hour, and less than the retention.

        In a process that has not opened the endpoint, each transaction opens its own connection. Enter `shop.running()` or
        `shop.opened()` around many transactions. Raises InvalidKey, TransactionMisused. `Transaction` documents what its
        block raises.
        """
        from onceonly.endpoint.transactions import Transaction, asked  # noqa: PLC0415 - when one is opened

        settings = self.settings
        limit = settings.max_commit if max_commit is None else max_commit
        wanted = asked(
            idempotency_key,
            request,
            limit,
            scope=scope,
            wait=wait,
            retention=settings.retention,
        )
        return Transaction(wanted.until_dispatched(until_dispatched), self._host.transaction_context)

    async def transact(  # noqa: PLR0913 - one for each option
        self,
        function: "Callable[[Transaction], Awaitable[Any]]",
        *,
        idempotency_key: str | None = None,
        request: object = None,
        scope: str | None = None,
        max_commit: timedelta | None = None,
        wait: float | None = None,
        until_dispatched: bool = False,
    ) -> Any:
        """Run `function(tx)` in a transaction and return its answer. With a key, every retry returns the first answer.

        The answer is the function's result, or else `tx.answer`: bytes or a JSON value. All arguments are those of
        `transaction`. Raises what the function raises, and KeyReused. Raises ConflictError (retry it), CommitRefused or
        CommitFailed if nothing happened. Raises OutcomeUnknown if only a retry with the same key can find the outcome.
        """
        opened = self.transaction(
            idempotency_key=idempotency_key,
            request=request,
            scope=scope,
            max_commit=max_commit,
            wait=wait,
            until_dispatched=until_dispatched,
        )
        return await opened.run(function)

    def topology(self) -> Topology:
        """Return the input queue and the event types that it subscribes to. Raises InvalidHandler."""
        return self._host.topology()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open lifespan, providers, store and transport for a block, without a worker.

        Transactions and `http_app` use what is open. Raises InvalidHandler and other SetupErrors, and RetryableError if a
        server does not answer.
        """
        async with self._host.opened():
            yield

    async def run(self, stop: asyncio.Event, *, ready: asyncio.Event | None = None) -> None:
        """Handle messages until `stop` is set. Then finish the messages in progress and close everything. Raises SetupError.

        Waits for a server that does not answer at start. Sets `ready` when it receives messages, or waits for a server.
        """
        await self._host.run(stop, ready=ready)

    def running(self) -> "AbstractAsyncContextManager[Background]":
        """Run a worker in the background of a block, for example in the lifespan of a web application. The exit stops it.

        Failures and outages are logged by the loggers `onceonly.*`.

        The block begins even if a server does not answer: the worker retries. Raises SetupError at the start for settings that
        are wrong. An error that ends the worker later is raised at the exit. The `failure` of the `Background` reports it
        before, for a health check of the application.
        """
        from onceonly.runtime.observe.logs import Logs  # noqa: PLC0415 - when it runs

        return self._host.running(observer=Logs())

    def sending(self) -> AbstractAsyncContextManager[None]:
        """Send messages of committed transactions in the background of a block, and handle none.

        It sends those of this process, and those that other processes left. Otherwise as `running`. For applications whose
        messages are handled elsewhere. An endpoint without handlers has no queue.
        """
        from onceonly.runtime.observe.logs import Logs  # noqa: PLC0415 - when it runs

        return self._host.sending(observer=Logs())

    def hosted(self) -> "AbstractAsyncContextManager[Hosted]":
        """Open the endpoint for messages that a host receives and acknowledges: `async with shop.hosted() as hosted:`.

        The host hands messages over with `hosted.handle(...)` and acknowledges those whose outcome is settled. No queue of the
        endpoint is declared. `transport` is used to send, and may be left out if nothing is sent. While the block is open,
        transactions of this process use what is open, and due maintenance is done after calls, unless `janitor` is False.

        Raises InvalidHandler and other SetupErrors, also if the endpoint is hosted in this process already, and RetryableError
        if a server does not answer.
        """
        from onceonly.runtime.observe.logs import Logs  # noqa: PLC0415 - when it is opened

        return self._host.hosted(observer=Logs())

    async def maintain(self, *, remaining: float = 60.0) -> "MaintenanceReport":
        """Do the maintenance that is due, and return what was done. For a timer, such as cron or a scheduled function.

        It takes at most `remaining` seconds. Each task may take half of the time that is left, so that none keeps the others
        from being done. What there was no time for stays due. It does what workers leave to others with `janitor=False`, too.
        While the endpoint is open in this event loop, what is open is used. Otherwise store and transport are opened: no queue
        is declared, and lifespan and providers are not used.

        Call it at least as often as `janitor_interval`. If this is the only maintenance, set that to the interval of the timer.
        Raises SetupError; RetryableError if a server does not answer. Errors of single tasks are in the report.
        """
        return await self._host.maintain(remaining)

    @cached_property
    def _host(self) -> "Host":
        from onceonly.endpoint.host import Host  # noqa: PLC0415 - when it is opened, or asked about its handlers

        return Host(self.settings, self._registered, self)

    def _as_handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is called instead of a handler. Endpoints of integrations override this."""
        return function

    def _function(self, function: Callable[..., Any], frame: FrameType | None) -> Function:
        if not is_function(function):
            raise InvalidHandler(f"endpoint {self.name!r}: {function!r} is not a function: register a function or a method")
        return Function(function, frame)
