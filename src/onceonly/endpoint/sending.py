"""Sending and publishing from inside a unit or a transaction: what every way out of one has in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime

from onceonly.endpoint.message_builder import Delay, Expiry, SendOptions, command


class Sending(ABC):
    """Something with `send` and `publish`. Nothing is sent before the commit."""

    def send(  # noqa: PLR0913 - one for each option
        self,
        message: object,
        *,
        to: str,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Expiry | None = None,
        key: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Send a command to one endpoint when the surrounding work is committed.

        * `delay` (a timedelta, or a number of seconds from now) or `at` (an aware datetime) delays it.
        * `headers`: names and texts that the message carries, 16 KiB at most. See docs/messages.md for the names.
        * `expires`: a timedelta from now, or an aware datetime. If the message is not handled before, it becomes a dead letter.
        * `key`: the message's group or partition, for brokers that have one. Others only deliver it.
        * `content_type`: the media type of a body that is bytes. Default: application/octet-stream.

        Raises InvalidEffect for a message that cannot be sent: too large, without a type, with a value that would not read back
        equal, with invalid options, or to an invalid name. Raises InvalidEffect also after the end of the surrounding work.
        """
        self._capture(message, SendOptions(command(to), type, delay, at, headers, expires, key, None, content_type))

    def publish(  # noqa: PLR0913 - one for each option
        self,
        event: object,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Expiry | None = None,
        key: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Publish an event to its subscribers when the surrounding work is committed. Options and errors as in `send`."""
        self._capture(event, SendOptions("", type, delay, at, headers, expires, key, None, content_type))

    @abstractmethod
    def _capture(self, body: object, wish: SendOptions) -> None:
        """Make the message and have it committed with all else."""


class SendingOutside(Sending):
    """Sends messages outside of handlers, where the caller may know the message's id."""

    def send(  # noqa: PLR0913 - one for each option
        self,
        message: object,
        *,
        to: str,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Expiry | None = None,
        key: str | None = None,
        id: str | None = None,  # noqa: A002 - the CloudEvents name
        content_type: str | None = None,
    ) -> None:
        """Send a command to one endpoint when the surrounding work is committed.

        * `delay` (a timedelta, or a number of seconds from now) or `at` (an aware datetime) delays it.
        * `headers`: names and texts that the message carries, 16 KiB at most. See docs/messages.md for the names.
        * `expires`: a timedelta from now, or an aware datetime. If the message is not handled before, it becomes a dead letter.
        * `key`: the message's group or partition, for brokers that have one.
        * `id`: 1 to 255 bytes. Receivers handle one message of this endpoint with this id, however often it is sent. The same
          id with another body becomes a dead letter. Default: a new id.
        * `content_type`: the media type of a body that is bytes. Default: application/octet-stream.

        Raises InvalidEffect for a message that cannot be sent: too large, without a type, with a value that would not read back
        equal, with invalid options, or to an invalid name. Raises InvalidEffect also after the end of the surrounding work.
        """
        self._capture(message, SendOptions(command(to), type, delay, at, headers, expires, key, id, content_type))

    def publish(  # noqa: PLR0913 - one for each option
        self,
        event: object,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
        headers: Mapping[str, str] | None = None,
        expires: Expiry | None = None,
        key: str | None = None,
        id: str | None = None,  # noqa: A002 - the CloudEvents name
        content_type: str | None = None,
    ) -> None:
        """Publish an event to its subscribers when the surrounding work is committed. Options and errors as in `send`."""
        self._capture(event, SendOptions("", type, delay, at, headers, expires, key, id, content_type))
