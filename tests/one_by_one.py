"""What handlers in tests inherit that take one message each."""

from collections.abc import Sequence

from onceonly.model.message import Message
from onceonly.model.record import Decision


class OneByOne:
    """Handlers without batches."""

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Put each message into a batch of its own."""
        return [(message,) for message in messages]

    def runs_alone(self, _message: Message) -> bool:
        """Let all messages share a unit."""
        return False

    async def handle_batch(self, *_: object) -> Sequence[Decision]:
        """Fail the test: nothing asks for it."""
        raise AssertionError("no handler takes batches")
