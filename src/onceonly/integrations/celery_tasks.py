"""Running one task in one transaction: its key, what it sends, its return value, and what its failure means."""

import inspect
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import cached_property
from time import monotonic, sleep
from typing import Any, NamedTuple, get_type_hints
from uuid import NAMESPACE_URL, uuid5

from celery import Celery
from celery.app.task import get_actual_ignore_result
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu.exceptions import EncodeError
from kombu.serialization import dumps, loads
from msgspec import Struct, json
from sqlalchemy.orm import Session

from onceonly.endpoint import Endpoint
from onceonly.endpoint.sender import OutsideSender
from onceonly.formats.annotations import annotations_of, signature_of
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.celery_carrier import app_of, name_of
from onceonly.integrations.celery_messages import (
    CARRIER,
    CONTENT_TYPE,
    PROTOCOL,
    CapturingProducer,
    check_task_id,
    refuse_producer,
)
from onceonly.integrations.celery_tracing import carried_context, in_trace
from onceonly.integrations.celery_transactions import TaskAttempt, TaskTransactions
from onceonly.integrations.session_transactions import RequestKey, RequestTransaction
from onceonly.model.destination import Carrier
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    InvalidEffect,
    RetryableError,
    SetupError,
    TransactionMisused,
    error_text,
)

_log = EventLogger(logging.getLogger("onceonly.transaction"))


class TaskOptions(NamedTuple):
    """What a task class was made for; see `ExactlyOnceTask.of`."""

    endpoint: Endpoint
    transactions: TaskTransactions
    wait: float | None
    retry_delay: float
    max_commit: timedelta


class StoredValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task returned, as its result backend would write it. `replaced`: it has put another task in its place."""

    content_type: str = ""
    content_encoding: str = ""
    data: str = ""
    replaced: bool = False


class Capture:
    """What collects the messages that Celery would publish, in one transaction."""

    def __init__(self, outgoing: OutsideSender, app: Celery | None, seed: str = "") -> None:
        self.is_open = True
        self.count = 0
        self.app = app
        self.headers: Mapping[str, str] = {}
        """Headers of tasks that do not have their own."""
        self._outgoing = outgoing
        self._seed = seed
        self._ids = 0

    def sends_in(self, tx: object) -> bool:
        """Return whether this transaction has the messages."""
        return self._outgoing is tx

    def add(self, body: bytes, name: str, task_id: str | None, app: Celery) -> None:
        """Write one message into the transaction. Raises InvalidEffect."""
        if not self.is_open:
            raise TransactionMisused(f"the transaction in which task {name} was to be sent has ended")
        options: dict[str, Any] = {}
        if task_id is not None:
            check_task_id(task_id, name)
            options["id"] = task_id
        to = Carrier(f"{CARRIER}:{name_of(app)}")
        self._outgoing.send(body, to=to, type=name, content_type=CONTENT_TYPE, **options)
        self.count += 1

    def producer(self, app: Celery, given: object) -> CapturingProducer:
        """Return what Celery publishes with. Raises TransactionMisused, SetupError."""
        if isinstance(given, CapturingProducer):
            return given
        if given is not None:
            raise refuse_producer("a task")
        if self.app is not None and app is not self.app:
            raise TransactionMisused(
                f"a task of the Celery application {name_of(app)!r} cannot be sent in a transaction of a task of "
                f"{name_of(self.app)!r}: send it from a task of its own application, or publish an event for it"
            )
        if app.conf.task_always_eager:
            raise TransactionMisused(
                "task_always_eager would run the task inside the open transaction: make its class ExactlyOnceTask, so that it "
                "runs after the commit, or turn task_always_eager off"
            )
        if app.conf.task_protocol != PROTOCOL:
            raise SetupError(f"task_protocol must be {PROTOCOL}, not {app.conf.task_protocol}: remove the setting")
        app_of(name_of(app))  # one name, one application
        return CapturingProducer(app, _Adding(self, app))

    def next_id(self) -> str | None:
        """Return the id of the next task: the same in each run of the same work. None where no key is known."""
        if not self._seed:
            return None
        self._ids += 1
        return str(uuid5(NAMESPACE_URL, f"onceonly:celery:{self._seed}:{self._ids}"))


class _Adding(NamedTuple):
    capture: Capture
    app: Celery

    @property
    def headers(self) -> Mapping[str, str]:
        return self.capture.headers

    def add(self, body: bytes, name: str, task_id: str | None) -> None:
        self.capture.add(body, name, task_id, self.app)


class RetryCapture(Capture):
    """What collects the retry of a task. It is stored when the transaction of the task is undone."""

    def __init__(self, app: Celery) -> None:
        super().__init__(_Nowhere(), app)
        self.messages: list[tuple[bytes, str, str | None]] = []

    def add(self, body: bytes, name: str, task_id: str | None, app: Celery) -> None:
        """Keep the message."""
        self.messages.append((body, name, task_id))


class _Nowhere(OutsideSender):
    def _capture(self, body: object, to: object, options: object) -> None:
        raise NotImplementedError


CAPTURE: ContextVar[Capture | None] = ContextVar("onceonly_celery_capture", default=None)
"""What collects the messages of this thread or greenlet."""
UNIT: "ContextVar[TaskUnit | None]" = ContextVar("onceonly_celery_unit", default=None)
"""The task that runs in this thread or greenlet."""


@contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Collect what Celery publishes in a block."""
    token = CAPTURE.set(capture)
    try:
        yield
    finally:
        CAPTURE.reset(token)


def install() -> None:
    """Make Celery's applications ask for a transaction before they publish. Where none is open nothing changes.

    All ways in which Celery publishes tasks get their producer here: tasks, canvas, `send_task` and `retry`.
    """
    original = Celery.producer_or_acquire
    if getattr(original, "is_onceonly", False):
        return

    def producer_or_acquire(self: Celery, producer: Any = None) -> AbstractContextManager[Any]:
        capture = CAPTURE.get()
        if capture is None:
            found: AbstractContextManager[Any] = original(self, producer)
            return found
        return nullcontext(capture.producer(self, producer))

    producer_or_acquire.is_onceonly = True  # type: ignore[attr-defined]
    producer_or_acquire.__doc__ = original.__doc__
    Celery.producer_or_acquire = producer_or_acquire


class TaskUnit:
    """One run of one task, with its open transaction."""

    def __init__(self, task: Any, options: TaskOptions, attempt: TaskAttempt, capture: Capture) -> None:
        self.task = task
        self.request = task.request
        self.attempt = attempt
        self.capture = capture
        self.retries = RetryCapture(task.app)
        self.replaced: Ignore | None = None
        self.is_committing = False
        self.later: list[Callable[[], object]] = []
        self._options = options
        self._trace = carried_context(self.request)
        if options.endpoint.settings.telemetry is None:  # the context of its caller is passed on as it is
            self._trace, self.capture.headers = {}, self._trace

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enclose the function of the task, and what follows it."""
        token = UNIT.set(self)
        try:
            with capturing(self.capture), in_trace(self._trace):
                yield
        finally:
            UNIT.reset(token)
            self.capture.is_open = False

    def capture_next(self, value: object) -> None:
        """Put what Celery would send after the function into the transaction: callbacks, and the next task of the chain."""
        request, app = self.request, self.task.app
        options = {
            "parent_id": request.id,
            "root_id": request.root_id or request.id,
            "priority": (request.delivery_info or {}).get("priority") if app.conf.task_inherit_parent_priority else None,
        }
        for each in request.callbacks or ():
            app.signature(each).apply_async((value,), **options)
        if request.chain:
            app.signature(request.chain[-1]).apply_async((value,), chain=request.chain[:-1], **options)


def forget_next(request: Any) -> None:
    """Keep Celery from sending what was committed: now, or by an earlier run."""
    request.callbacks = request.chain = None


def perform(task: Any, options: TaskOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a task in a transaction, and return its value, or that of its first run. Raises what the task raises.

    What the database could not do now has the broker deliver the task again: raises Reject. Celery does not count it.
    """
    units: list[TaskUnit] = []
    until = monotonic() + options.max_commit.total_seconds()
    try:
        value = _attempt(task, options, args, kwargs, units=units)
    except (RetryableError, ConflictError) as error:
        if isinstance(error, CommitRefused) or task.request.is_eager:
            raise
        if isinstance(error, CommitFailed) and monotonic() > until:  # it would be so in each run
            raise TransactionMisused(
                f"task {task.name} took longer than max_commit={options.max_commit}, so nothing was committed: make it "
                "shorter, or send its parts as tasks of their own"
            ) from error
        raise _again(task, options, error) from error
    except SoftTimeLimitExceeded as error:  # a signal, which comes at any moment
        if any(not unit.is_committing for unit in units):  # within the task
            raise
        raise _again(task, options, error) from error
    for unit in units:
        for each in unit.later:
            each()
        if unit.replaced is not None:
            raise unit.replaced
    return value


def _attempt(task: Any, options: TaskOptions, args: tuple[Any, ...], kwargs: dict[str, Any], *, units: "list[TaskUnit]") -> Any:
    """Do what `perform` does, once. Adds the unit of a new key to the list."""
    key = _key_of(task, args, kwargs)
    check_chord(task, task.request.chord)
    try:
        with options.transactions.attempt(options.max_commit) as attempt:
            opened = attempt.open(key._replace(wait=options.wait))
            if isinstance(opened, bytes):
                if attempt.entry is not None and not attempt.entry.is_dispatched:
                    options.transactions.start_sending()  # a relay of this process finds what the first run has left
                return _known(task, opened)
            capture = Capture(opened, task.app, f"{key.scope}:{key.key}")
            units.append(unit := TaskUnit(task, options, attempt, capture))
            return _run(unit, args, kwargs)
    finally:
        for each in units:
            if each.retries.messages:
                _store_retry(each, options)


def _run(unit: TaskUnit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value: Any = None
    with unit.attempt.work(), unit.entered():
        try:
            value = unit.task.run(*args, **kwargs)
        except Ignore as ignored:
            if unit.replaced is not ignored:
                raise
            answer = json.encode(StoredValue(replaced=True))
        else:
            unit.capture_next(value)
            answer = _encoded(unit.task, value)
    if unit.capture.count:
        unit._options.transactions.start_sending()  # noqa: SLF001 - of this module
    unit.is_committing = True
    unit.attempt.commit(answer)
    # Crash here, "after-commit": 1 committed, 2 not acknowledged, 3 delivered again, 4 the key is known.
    forget_next(unit.request)
    unit.retries.messages.clear()  # the task has caught its own Retry
    return value


def _known(task: Any, answer: bytes) -> Any:
    """Return the value of the first run, which has sent everything else."""
    if task.request.chord and is_chord_claimed(task):
        raise ConflictError("another process is about to start the body of this task's chord, or has died there")
    forget_next(task.request)
    stored = json.decode(answer, type=StoredValue) if answer else StoredValue()
    if stored.replaced:
        raise Ignore("replaced by another task in an earlier run")
    if not stored.content_type:
        return None
    data: Any = b64decode(stored.data)
    if stored.content_encoding == "utf-8":
        data = data.decode()
    return loads(data, stored.content_type, stored.content_encoding, accept=[stored.content_type])


def _encoded(task: Any, value: object) -> bytes:
    """Return what is stored of a value: nothing if no result is kept. Raises InvalidEffect."""
    backend, request = task.backend, task.request
    is_kept = request.is_eager or request.chord or not get_actual_ignore_result(task, request)
    if not is_kept or (isinstance(backend, DisabledBackend) and not request.is_eager):
        return b""
    try:
        kind, encoding, data = dumps(backend.prepare_value(value), serializer=task.app.conf.result_serializer)
    except (EncodeError, TypeError) as error:
        raise InvalidEffect(
            f"the return value of task {task.name} cannot be serialized: {error}. Return a value that the result_serializer "
            "writes, or set ignore_result=True"
        ) from error
    raw = data.encode() if isinstance(data, str) else bytes(data)
    return json.encode(StoredValue(content_type=kind, content_encoding=encoding, data=b64encode(raw).decode()))


def _key_of(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RequestKey:
    """Return the key of a run: the task's id, or what its `key` returns for the arguments. Raises SetupError, InvalidEffect."""
    request = task.request
    nesting = request.get("replaced_task_nesting") or 0
    scope = f"{task.name}#{nesting}" if nesting else task.name
    if task.key is None:
        check_task_id(request.id, task.name)
        return RequestKey(request.id, scope, None, 0.0)
    named = task._arguments.named(args, kwargs)  # noqa: SLF001 - of the class that belongs to this module
    key = task.key(**named)
    if not isinstance(key, str) or not key.strip():
        raise InvalidEffect(f"the key of task {task.name} must be text that is not blank, not {key!r:.100}: return str(...)")
    asked = dumps(named, serializer=task.app.conf.task_serializer)[2]
    return RequestKey(key, scope, asked, 0.0)


def _store_retry(unit: TaskUnit, options: TaskOptions) -> None:
    """Store the retry of a task whose transaction was undone. It is sent as all else, also if its process dies."""
    options.transactions.start_sending()
    with options.transactions.attempt(options.max_commit) as attempt:
        tx = attempt.open(None)
        if isinstance(tx, bytes):  # pragma: no cover - there is no key
            raise TransactionMisused("a retry has no key")
        capture = Capture(tx, unit.task.app)
        for body, name, task_id in unit.retries.messages:
            capture.add(body, name, task_id, unit.task.app)
        attempt.commit(b"")


def _again(task: Any, options: TaskOptions, error: Exception) -> Reject:
    """Return what has the broker deliver a task again. It is held first: a broker delivers again at once."""
    fields = {"endpoint": options.endpoint.name, "task": task.name, "message_id": str(task.request.id)}
    _log.warning("task not committed, delivered again", extra={**fields, "reason": error_text(error)})
    sleep(options.retry_delay)
    return Reject(error_text(error), requeue=True)


def check_chord(task: Any, chord: object) -> None:
    """Refuse a part of a chord that the result backend would count twice. Raises SetupError."""
    if not chord:
        return
    backend = task.backend
    if isinstance(backend, DisabledBackend):
        raise SetupError(f"task {task.name} is part of a chord, which needs a result backend: set result_backend")
    if getattr(backend, "implements_incr", False) and not hasattr(backend, "_chord_part_return_script"):
        raise SetupError(
            f"task {task.name} is part of a chord, and the result backend {type(backend).__name__} counts a part again when it "
            "is delivered again, so the body could start too early: use Redis or a database as result_backend"
        )


def is_chord_claimed(task: Any) -> bool:
    """Return whether a process has begun to start the body of a chord, and has not ended that.

    If that process has died, its claim expires. Until then the backend lets no other one start the body. Raises ConflictError
    if the backend does not answer.
    """
    backend, group = task.backend, task.request.group
    if not group or not hasattr(backend, "_chord_part_return_script"):
        return False
    try:
        claim = backend.client.get(backend.get_key_for_group(group, ".c"))
    except Exception as error:  # an outage, whatever the driver calls it: without the answer the body could be lost
        raise ConflictError(f"the result backend does not report whether a chord was started: {error_text(error)}") from error
    return claim is not None and claim != b"done"


_INJECTED = (Session, RequestTransaction)


def injected_parameters(function: Callable[..., Any]) -> Mapping[str, type]:
    """Return the parameters of a function that receive the session or the transaction, by their annotations."""
    found: dict[str, type] = {}
    for name, hint in _hints(function):
        if name != "return" and isinstance(hint, type):
            kind = next((each for each in _INJECTED if issubclass(hint, each)), None)
            found |= {} if kind is None else {name: kind}
    return found


def _hints(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Return annotations as types. One whose name is known to type checkers only does not hide the others."""
    for name, annotation in annotations_of(function).items():
        alone = type("alone", (), {"__annotations__": {name: annotation}})
        with suppress(NameError, TypeError, AttributeError, SyntaxError):
            yield from get_type_hints(alone, globalns=getattr(function, "__globals__", {})).items()


def injecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls the function with what the open transaction injects, and flushes that.

    The flush is inside, so that what the database refuses is an exception of the task, for `autoretry_for` as well.
    """
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise SetupError(f"task {function.__qualname__} must be a plain `def`: its transaction is synchronous")
    parameters: dict[str, tuple[int, type]] | None = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal parameters
        unit = UNIT.get()
        if unit is None:
            return function(*args, **kwargs)
        if parameters is None:
            positions = list(signature_of(function).parameters)
            parameters = {name: (positions.index(name), kind) for name, kind in injected_parameters(function).items()}
        for name, (position, kind) in parameters.items():
            if name not in kwargs and position >= len(args):
                kwargs[name] = unit.attempt.injected(kind)
        value = function(*args, **kwargs)
        unit.attempt.flush()
        return value

    run.__name__, run.__qualname__ = function.__name__, function.__qualname__
    run.__doc__, run.__module__ = function.__doc__, function.__module__
    run.__wrapped__ = function  # type: ignore[attr-defined]
    return run


class TaskArguments:
    """The arguments of a task, without those that are injected. Annotations are read when the first call is made."""

    def __init__(self, function: Callable[..., Any], *, is_bound: bool) -> None:
        self._function = function
        self._is_bound = is_bound

    @cached_property
    def _signature(self) -> inspect.Signature:
        injected = injected_parameters(self._function)
        parameters = list(signature_of(self._function).parameters.values())[1 if self._is_bound else 0 :]
        return inspect.Signature([each for each in parameters if each.name not in injected])

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Check the arguments of a call before it is sent, as Celery does. Raises TypeError."""
        self._signature.bind(*args, **kwargs)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by their names, with defaults. Raises TypeError."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for each in self._signature.parameters.values():
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                named |= named.pop(each.name)
        return named


def sender_of(given: object) -> OutsideSender:
    """Return what sends messages in a transaction. Raises SetupError for what is none."""
    if not isinstance(given, OutsideSender):
        raise SetupError(
            "the first argument must be what enlist(session) returns, or the transaction of a route or of "
            f"shop.transaction(), or an endpoint of Django inside of atomic(), not {type(given).__name__}"
        )
    return given
