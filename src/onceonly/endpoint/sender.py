"""Senders: what has `send` and `publish` in a unit or a transaction. Nothing is sent before the commit."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Unpack
from uuid import uuid4

from onceonly.endpoint.message_builder import (
    OUTSIDE_OPTIONS,
    MessageBuilder,
    Origin,
    OutsideSendOptions,
    SendOptions,
    check_options,
    command,
)
from onceonly.model.destination import Destination
from onceonly.model.errors import InvalidEffect
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.environment import Clock

if TYPE_CHECKING:  # imports adapters
    from onceonly.assembly import EnlistedTransaction


class Sender(ABC):
    """Something with `send` and `publish`. Nothing is sent before the commit."""

    def send(self, message: object, *, to: str | Destination, **options: Unpack[SendOptions]) -> None:
        """Send a command when the surrounding work is committed.

        * `to`: the name of an endpoint, or a destination that is not one, such as `Queue("Sales")`. The transport must have its
          kind. Its name is used as it is, and nothing is created: a message to a missing one becomes a dead letter.
        * `type`: the name of the message type. Default: that of the class.
        * `delay` (a timedelta, or a number of seconds from now) or `at` (an aware datetime) delays it.
        * `headers`: names and texts that the message carries, 16 KiB at most. See docs/reference/messages.md for the names.
        * `expires`: a timedelta from now, or an aware datetime. If the message is not handled before, it becomes a dead letter.
        * `key`: the message's group or partition, for brokers that have one. Others only deliver it.
        * `content_type`: the media type of the body. Default: application/json, and application/octet-stream for bytes.

        Raises InvalidEffect for a message that cannot be sent: too large, without a type, with a value that would not read back
        equal, or with invalid options. Raises it also for an invalid name, for a destination that the transport does not have,
        and after the end of the surrounding work.
        """
        self._capture(message, command(to), options)

    def publish(self, event: object, **options: Unpack[SendOptions]) -> None:
        """Publish an event when the surrounding work is committed. Options and errors as in `send`.

        It goes to its subscribers, or to the destination that the endpoint's `events` has for its type.
        """
        self._capture(event, "", options)

    @abstractmethod
    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        """Make the message and have it committed with all else. Raises TypeError for an unknown option."""


class OutsideSender(Sender):
    """Sends messages outside of handlers, where the caller may know the message's id."""

    def send(self, message: object, *, to: str | Destination, **options: Unpack[OutsideSendOptions]) -> None:
        """Send a command to an endpoint or another destination when the surrounding work is committed.

        * `id`: 1 to 255 bytes. Receivers handle one message of this endpoint with this id, however often it is sent. The same
          id with another body becomes a dead letter. Default: a new id.
        * `to`, `type`, `delay`, `at`, `headers`, `expires`, `key`, `content_type`, and errors: as in `Context.send`.
        """
        self._capture(message, command(to), options)

    def publish(self, event: object, **options: Unpack[OutsideSendOptions]) -> None:
        """Publish an event when the surrounding work is committed. Options and errors as in `send`.

        It goes to its subscribers, or to the destination that the endpoint's `events` has for its type.
        """
        self._capture(event, "", options)


class Outgoing(OutsideSender):
    """Sends messages in one open transaction of one session. Valid until it is committed, rolled back or closed."""

    def __init__(self, enlisted: "EnlistedTransaction", builder: MessageBuilder, clock: Clock) -> None:
        self._endpoint = builder.endpoint
        self._enlisted = enlisted
        self._builder = builder
        self._clock = clock
        self._attempt = uuid4().hex
        self._written = 0

    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        """Write one record for one message, so that a savepoint takes back exactly what was published within it."""
        check_options(options, OUTSIDE_OPTIONS)
        if self._enlisted.is_over:
            raise InvalidEffect("the transaction of this session has ended: call enlist(session) again in the next transaction")
        # an id of this record alone: that of a message would meet the claim which its own receiver makes
        attempt = Identity(self._endpoint, f"{self._attempt}.{self._written}")
        now = self._clock.now()
        cause = (("replyto", self._endpoint if to else ""),)
        send = self._builder.build(body, to, options, Origin(attempt, 0), now=now, cause=cause)
        self._enlisted.write(Record(attempt, (send,)), now)
        self._written += 1
