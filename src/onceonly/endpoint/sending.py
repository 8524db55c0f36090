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
        """Send a command to one endpoint, once the work around it is committed.

        `delay` (a timedelta, or seconds, from now) or `at` (an aware datetime) puts it off. Raises InvalidEffect when it can
        never be sent (too large, not serializable, without a type, to an impossible name), and when that work is over.
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
        """Publish an event to whoever subscribes, once the work around it is committed. Raises InvalidEffect as `send` does."""
        self._capture(event, SendOptions("", type, delay, at))

    @abstractmethod
    def _capture(self, body: object, wish: SendOptions) -> None:
        """Make the message and have it committed with all else."""
