"""The port of carriers: what sends the messages of another library, in that library's own form, to its own broker."""

from collections.abc import Sequence
from typing import Protocol

from onceonly.model.message import Send
from onceonly.ports.transport import Answer

__all__ = ["MessageCarrier"]


class MessageCarrier(Protocol):
    """Sends messages whose destination names it. Each open transport has one of its own, and closes it."""

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send messages. Return an answer for each, in order. It connects at its first call.

        TAKEN means that the broker has stored the message as durably as it can. REFUSED is a message that cannot be sent as it
        is. Everything else is UNKNOWN: the message is sent again, unchanged. The call is not atomic.
        """

    async def close(self) -> None:
        """Close what it has opened. It may be used again afterwards."""
