"""The carrier of Celery's messages: kombu, in a thread of its own, with publisher confirms where the broker has them."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from celery import _state
from kombu import Producer

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.integrations.celery_messages import CARRIER, StoredTask, read_stored
from onceonly.model.destination import Carrier, read_destination
from onceonly.model.errors import SetupError, error_text
from onceonly.model.message import TRACE_CONTEXT, TRACE_PARENT, Send
from onceonly.ports.transport import Answer
from onceonly.systems.carriers import register_carrier

CONFIRM_SECONDS = 10.0
"""Seconds to wait for the confirmation of a batch."""
_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED = LoggedKeys()


def app_of(name: str) -> Any:
    """Return the Celery application of this process with this name. Raises SetupError if there is none, or there are two."""
    found = [app for app in _state._get_active_apps() if name_of(app) == name]  # noqa: SLF001 - there is no other list
    if len(found) == 1:
        return found[0]
    if not found:
        raise SetupError(f"this process has no Celery application {name!r}: import the module that defines it")
    raise SetupError(f"this process has {len(found)} Celery applications named {name!r}: give each another name")


def name_of(app: Any) -> str:
    """Return the name of an application, under which its messages are stored."""
    return app.main or "celery"


class _Carried(NamedTuple):
    number: int
    task: StoredTask
    task_id: str


class CeleryCarrier:
    """Sends the stored messages of Celery applications. Blocking calls run in one thread, which owns the connections."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send these; see the port."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="onceonly celery")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._send, sends)

    async def close(self) -> None:
        """Close the connections."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    def _send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        answers = [Answer.UNKNOWN] * len(sends)
        places: dict[str, list[_Carried]] = {}
        for index, send in enumerate(sends):
            to = read_destination(send.to)
            try:
                task = _with_trace(read_stored(send.message.body), send)
            except ValueError as error:
                answers[index] = Answer.REFUSED
                _report(send.to, error)
                continue
            places.setdefault(to.place if isinstance(to, Carrier) else "", []).append(_Carried(index, task, send.message.id))
        for name, tasks in places.items():
            try:
                link = self._links.get(name) or self._links.setdefault(name, _Link(app_of(name)))
            except SetupError as error:
                for each in tasks:
                    answers[each.number] = Answer.REFUSED
                _report(name, error)
                continue
            for index, answer in link.send(tasks):
                answers[index] = answer
        return tuple(answers)

    def _close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


class _Link:
    """The connection to the broker of one application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self._producer: Any = None
        self._confirms: _Confirms | None = None

    def send(self, tasks: Sequence[_Carried]) -> Iterator[tuple[int, Answer]]:
        """Send a batch. What is not confirmed is unknown."""
        was_open = self._producer is not None
        answered, is_away = self._attempt(tasks)
        if is_away and was_open:  # a connection that was idle for long may have been closed
            answered, is_away = self._attempt(tasks)
        if not answered and not is_away and len(tasks) > 1:
            # the broker has closed the channel, which ends the whole batch: find the message that is the reason
            for each in tasks:
                answered |= self._attempt([each])[0]
        for each in tasks:
            yield each.number, answered.get(each.number, Answer.UNKNOWN)

    def close(self) -> None:
        """Close the connection. The next batch opens another one."""
        connection, self._connection, self._producer, self._confirms = self._connection, None, None, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _attempt(self, tasks: Sequence[_Carried]) -> tuple[dict[int, Answer], bool]:
        """Return the answers, and whether the broker is away. Without answers and not away, it refuses one of several."""
        try:
            return self._send_batch(tasks), False
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it
            lost = (OSError, *(() if self._connection is None else self._connection.connection_errors))
            is_away = isinstance(error, lost)
            self.close()
            _report(name_of(self._app), error)
            return {} if is_away or len(tasks) > 1 else {tasks[0].number: Answer.REFUSED}, is_away

    def _send_batch(self, tasks: Sequence[_Carried]) -> dict[int, Answer]:
        producer, confirms = self._open()
        answered: dict[int, Answer] = {}
        for each in tasks:
            _publish(producer, each.task, mandatory=confirms is not None)
            if confirms is None:  # the call returns when the server has answered
                answered[each.number] = Answer.TAKEN
            else:
                confirms.sent(each)
        if confirms is not None:
            answered = confirms.wait(self._connection)
        return answered

    def _open(self) -> "tuple[Any, _Confirms | None]":
        if self._producer is None:
            connection = self._app.connection_for_write()
            options = dict(connection.transport_options or {})
            options.pop("confirm_publish", None)  # it waits for each message
            connection.transport_options = options
            self._connection = connection
            connection.connect()
            channel = connection.channel()
            if connection.transport.driver_type == "amqp" and hasattr(channel, "confirm_select"):
                self._confirms = _Confirms(channel)
            self._producer = Producer(channel, auto_declare=False)
        return self._producer, self._confirms


class _Confirms:
    """The confirmations of one channel of AMQP 0-9-1, which come in any order, for several messages at once."""

    def __init__(self, channel: Any) -> None:
        self._tag = 0
        self._open: dict[int, _Carried] = {}
        self._answers: dict[int, Answer] = {}
        self._returned: set[str] = set()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._acked)
        channel.events["basic_nack"].add(self._nacked)
        channel.events["basic_return"].add(self._was_returned)

    def sent(self, carried: _Carried) -> None:
        """Note that this message was published."""
        self._tag += 1
        self._open[self._tag] = carried

    def wait(self, connection: Any) -> dict[int, Answer]:
        """Return the answers of a batch. What is not confirmed in time is not among them. Raises what a lost connection is."""
        until = monotonic() + CONFIRM_SECONDS
        while self._open and (left := until - monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=left)
        if self._open:
            raise TimeoutError(f"the broker has not confirmed {len(self._open)} messages within {CONFIRM_SECONDS:g} seconds")
        answers, self._answers = self._answers, {}
        self._returned.clear()
        return answers

    def _acked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - as amqp calls it
        self._settle(tag, multiple=multiple, answer=Answer.TAKEN)

    def _nacked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - the same
        self._settle(tag, multiple=multiple, answer=Answer.UNKNOWN)

    def _was_returned(self, _error: Any, _exchange: str, _routing_key: str, message: Any) -> None:
        """Note a message without a queue. The broker confirms it afterwards."""
        self._returned.add(str(message.properties.get("correlation_id")))

    def _settle(self, tag: int, *, multiple: bool, answer: Answer) -> None:
        for each in [one for one in self._open if one == tag or (multiple and one <= tag)]:
            carried = self._open.pop(each)
            is_lost = carried.task.properties.get("correlation_id") in self._returned
            self._answers[carried.number] = Answer.REFUSED if is_lost else answer


def _publish(producer: Any, task: StoredTask, *, mandatory: bool) -> None:
    is_event = "task" not in task.headers
    producer.publish(
        task.body,
        exchange=task.exchange,
        routing_key=task.routing_key,
        content_type=task.content_type,
        content_encoding=task.content_encoding,
        headers=dict(task.headers),
        priority=task.priority,
        delivery_mode=task.delivery_mode,
        declare=task.entities,
        mandatory=mandatory and not is_event,
        **task.properties,
    )


def _with_trace(task: StoredTask, send: Send) -> StoredTask:
    """Give a message the trace context in which it was stored, unless an instrumentation of Celery has written its own."""
    context = {name: value for name, value in send.message.extensions if name in TRACE_CONTEXT and value}
    if context and TRACE_PARENT not in task.headers:
        task.headers.update(context)
    return task


def _report(where: str, error: Exception) -> None:
    if _LOGGED.add(where, error_text(error)):
        _log.warning("carrier cannot send messages", extra={"carrier": CARRIER, "place": where, "reason": error_text(error)})


register_carrier(CARRIER, CeleryCarrier)
