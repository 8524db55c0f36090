"""An endpoint whose store is a database of Django's, and whose messages are part of Django's transactions."""

import atexit
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial, wraps
from typing import Any, NoReturn, Unpack
from weakref import WeakKeyDictionary, WeakSet

import msgspec
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from onceonly.assembly import check_enlisting
from onceonly.config.endpoint import Settings
from onceonly.config.worker import WorkerSettings
from onceonly.endpoint import Endpoint, EnlistedKey, Outgoing
from onceonly.endpoint.host import HandlerUnits, Host, host_of
from onceonly.endpoint.message_builder import OutsideSendOptions, SendOptions
from onceonly.endpoint.sender import OutsideSender
from onceonly.endpoint.transactions import asked
from onceonly.integrations.django.configuration import configuration, is_test, store_url
from onceonly.integrations.django.search_path import place_within
from onceonly.integrations.django.task_registration import register_tasks
from onceonly.integrations.django.transactions import AtomicKey, AtomicRecords, OpenKey, check_atomic, keys_of
from onceonly.integrations.django.unit_resources import NO_RESOURCE
from onceonly.integrations.django.units import open_units
from onceonly.integrations.sending_thread import sending_of, stop_sending
from onceonly.model.destination import Destination
from onceonly.model.errors import InvalidHandler, SetupError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.sql.database import place_of
from onceonly.sql.urls import DatabaseAddress
from onceonly.systems import Offer

HANDLERS_AT_ONCE = 4
"""Messages that a worker process handles at once on a database server, each on a connection of its own."""
STOP_SECONDS = 2.0
"""Seconds that the end of a process waits for messages that were just committed. Other processes send what is left."""
ENDPOINTS: "WeakSet[DjangoEndpoint]" = WeakSet()
"""All endpoints of this process."""
CAPTURES: "WeakKeyDictionary[DjangoEndpoint, list[Callable[..., None]]]" = WeakKeyDictionary()
"""What tests have called with each message; see `captured`."""


class DjangoEndpoint(Endpoint, OutsideSender):
    """An endpoint whose store is a database of Django: `shop = Endpoint("shop", transport="amqp://...")` in a module.

    `send` and `publish` belong to the open `transaction.atomic()` block of that database: they are committed and rolled back
    with its rows, also by savepoint. After the commit, a thread of this process sends them.

    * `database`: the alias in DATABASES. Default: `ONCEONLY["DATABASE"]`, else "default".
    * `transport`: as of `onceonly.Endpoint`. Default: `ONCEONLY["TRANSPORT"]`.
    * `store`: a URL of the same database, for options that DATABASES cannot express. Default: made from DATABASES.
    * `worker`: as of `onceonly.Endpoint`. Default: `concurrency` is 4, and 1 on SQLite. Each message has a transaction of its
      own, so `batch_size` is always 1. Handlers always run in threads.

    A handler runs inside of `transaction.atomic()` in a thread. What it does with Django's ORM in that database, the claim of
    its message, and what it sends are committed together. An `async def` handler runs in an event loop of its own, in that
    thread. The asynchronous methods of the ORM work in the transaction.

    All other arguments are those of `onceonly.Endpoint`. Raises SetupError, and ImproperlyConfigured for wrong settings of
    Django.
    """

    def __init__(self, name: str, *, database: str | None = None, store: str | None = None, **options: Any) -> None:
        found = configuration()
        self.database = database or found.database
        self._store = store
        self._settings: Settings
        self._seen: tuple[object, ...] = ()
        options.setdefault("transport", found.transport)
        if options.get("isolation") is not None:
            raise SetupError(
                f"endpoint {name!r}: isolation= has no effect on Django's connection: set isolation_level in the OPTIONS of "
                f"database {self.database!r}"
            )
        url = store_url(self.database, store)
        options["worker"] = _worker_settings(options.get("worker"), connections[self.database].vendor)
        super().__init__(name, store=url, **options)
        ENDPOINTS.add(self)

    @property
    def settings(self) -> Any:
        """The settings, with the database that Django uses now."""
        own = connections[self.database].settings_dict
        seen = (id(own), own["NAME"], is_test())
        if seen != self._seen:
            url = store_url(self.database, self._store)
            if url != self._settings.store:
                self._settings = replace(self._settings, store=url)
            self._seen = seen
        return self._settings

    @settings.setter
    def settings(self, settings: Any) -> None:
        self._settings = settings

    @property
    def _host(self) -> Host:
        kept, settings = self.__dict__.get("_host"), self.settings
        if kept is None or kept.settings is not settings:
            add_task_handler(self)
            opening = partial(open_units, self.name, self.database, place_of_endpoint(self))
            units = HandlerUnits(opening, Offer(instead=NO_RESOURCE))
            kept = self.__dict__["_host"] = Host(settings, self._registered, self, units)
        found: Host = kept
        return found

    def responder(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refused: what other services have executed does not run on Django's connection. Raises InvalidHandler."""
        raise InvalidHandler(
            f"endpoint {self.name!r} cannot have responders: they do not run on Django's connection. Use an onceonly.Endpoint"
        )

    async def asend(self, message: object, *, to: str | Destination, **options: Unpack[OutsideSendOptions]) -> None:
        """Do what `send` does, in an `async def` view."""
        await sync_to_async(self.send)(message, to=to, **options)

    async def apublish(self, event: object, **options: Unpack[OutsideSendOptions]) -> None:
        """Do what `publish` does, in an `async def` view."""
        await sync_to_async(self.publish)(event, **options)

    @contextmanager
    def atomic(
        self,
        *,
        idempotency_key: str,
        request: object = None,
        scope: str | None = None,
        wait: float | None = None,
        max_commit: timedelta | None = None,
        durable: bool = False,
    ) -> Iterator[EnlistedKey]:
        """Open `transaction.atomic()` on the endpoint's database, and take a key in it: `with shop.atomic(...) as entry:`.

        Start the block with `if entry.is_known:`. If it is, the key was committed before, and `entry.answer` is the stored
        answer: leave the work out. Otherwise do the work, and set `entry.answer`. Rows, messages, key and answer are committed
        together. If the block is within another one, the key goes with its savepoint.

        `idempotency_key`, `request`, `scope`, `wait` and `max_commit` are those of `transaction`. `max_commit` is checked at
        the end of the block. `durable` is that of `transaction.atomic`.

        Raises ConflictError, KeyReused, InvalidKey, TransactionMisused, CommitFailed, and Django's errors.
        """
        with transaction.atomic(using=self.database, durable=durable):
            entry, key = take_key(self, idempotency_key, request, scope=scope, wait=wait, max_commit=max_commit)
            with using_key(self, entry, key):
                yield entry
            key.finish()

    def _as_handler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `def` function that awaits an `async def` one. Its calls of the ORM come back to the calling thread."""
        if not inspect.iscoroutinefunction(function):
            return function

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return async_to_sync(function)(*args, **kwargs)

        return run

    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        check_atomic(self.database, self.name)
        outgoing, records = self._outgoing()
        outgoing._capture(body, to, options)  # noqa: SLF001 - of the same base class
        for noted in CAPTURES.get(self, ()):
            noted(records.last, body, to, options)

    def _outgoing(self) -> tuple[Outgoing, AtomicRecords]:
        """Return what sends messages in the open block: under the innermost key of this endpoint, if it has one."""
        for each in reversed(keys_of(self.database)):
            if each.endpoint is self:
                return each.entry, each.key
        check_enlisting(self.settings)
        place = place_within(self.database, place_of_endpoint(self))
        records = AtomicRecords(self.database, self.name, place, partial(_send_soon, self))
        return host_of(self).outgoing(lambda _settings: records), records


def add_task_handler(endpoint: DjangoEndpoint) -> None:
    """Give an endpoint the handler of tasks if the settings name it in TASKS. Called before it is opened."""
    register_tasks(endpoint, endpoint.database, partial(place_of_endpoint, endpoint))


def take_key(
    endpoint: DjangoEndpoint,
    key: str,
    request: object,
    *,
    scope: str | None = None,
    wait: float | None = None,
    max_commit: timedelta | None = None,
) -> tuple[EnlistedKey, AtomicKey]:
    """Take a key in the open block of an endpoint's database. Errors are those of `Endpoint.atomic`."""
    settings, host = endpoint.settings, host_of(endpoint)
    check_enlisting(settings)
    limit = settings.max_commit if max_commit is None else max_commit
    wanted = asked(key, request, limit, scope=scope, wait=wait, retention=settings.retention)
    opening = host.opening_of(wanted)
    place = place_within(endpoint.database, place_of_endpoint(endpoint))
    taken = AtomicKey(endpoint.database, place, partial(_send_soon, endpoint), opening)
    taken.take(host.current_environment().clock.now())
    return host.outgoing_with_key(taken, opening.key), taken


@contextmanager
def using_key(endpoint: DjangoEndpoint, entry: EnlistedKey, key: AtomicKey) -> Iterator[None]:
    """Have the messages of a block belong to a key."""
    keys = keys_of(endpoint.database)
    keys.append(OpenKey(endpoint, entry, key))
    try:
        yield
    finally:
        keys.pop()


def place_of_endpoint(endpoint: DjangoEndpoint) -> DatabaseAddress:
    """Return where the tables of an endpoint are."""
    return _place_of(str(endpoint.settings.store))


@lru_cache(64)
def _place_of(url: str) -> DatabaseAddress:
    return place_of(url)


def _send_soon(endpoint: DjangoEndpoint, told: Sequence[Identity | Record]) -> None:
    """Have messages sent that were committed. Called by `on_commit`."""
    host, settings = host_of(endpoint), configuration()
    if endpoint.settings.sends and settings.sending_thread and not (host.is_open or is_test() or _has_greenlets()):
        sending_of(endpoint).start()
    host.notifier.notify(told)


def _worker_settings(given: WorkerSettings | None, vendor: str) -> WorkerSettings:
    settings = given or WorkerSettings()
    at_once = settings.concurrency or (1 if vendor == "sqlite" else HANDLERS_AT_ONCE)
    return msgspec.structs.replace(settings, batch_size=1, concurrency=at_once, def_handlers="thread")


def _has_greenlets() -> bool:
    """Return whether gevent or eventlet has replaced threads and sockets: then no event loop can run in a thread."""
    for name, is_patched in (("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")):
        module = sys.modules.get(name)
        if module is not None and getattr(module, is_patched)("socket"):
            return True
    return False


atexit.register(partial(stop_sending, STOP_SECONDS))
