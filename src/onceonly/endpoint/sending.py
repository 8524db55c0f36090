"""Sending and publishing from inside a unit or a transaction: what every way out of one has in common."""

from abc import ABC, abstractmethod
from datetime import datetime

from onceonly.endpoint.message_builder import Delay, SendOptions, command


class Sending(ABC):
    """Something with `send` and `publish`. Nothing is sent before the commit."""

    def send(
        self,
        message: object,
        *,
        to: str,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> None:
        """Send a command to one endpoint when the surrounding work is committed.

        `delay` (a timedelta, or a number of seconds from now) or `at` (an aware datetime) delays it. Raises InvalidEffect for
        a message that cannot be sent: too large, not serializable, without a type, or to an invalid name. Raises
        InvalidEffect also after the end of the surrounding work.
        """
        self._capture(message, SendOptions(command(to), type, delay, at))

    def publish(
        self,
        event: object,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        delay: Delay | None = None,
        at: datetime | None = None,
    ) -> None:
        """Publish an event to its subscribers when the surrounding work is committed. Raises InvalidEffect as `send` does."""
        self._capture(event, SendOptions("", type, delay, at))

    @abstractmethod
    def _capture(self, body: object, wish: SendOptions) -> None:
        """Make the message and have it committed with all else."""
