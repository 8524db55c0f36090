"""What handlers in tests inherit that take one message each."""

from collections.abc import Sequence

from onceonly.model.message import Message
from onceonly.model.record import Decision
from onceonly.model.remote import requested


class OneByOne:
    """Handlers without batches."""

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Put each message into a batch of its own."""
        return [(message,) for message in messages]

    def runs_alone(self, _message: Message) -> bool:
        """Let all messages share a unit."""
        return False

    def needs_response(self, message: Message) -> bool:
        """Return whether the message follows a request up."""
        return bool(requested(message))

    async def handle_batch(self, *_: object) -> Sequence[Decision]:
        """Fail the test: nothing asks for it."""
        raise AssertionError("no handler takes batches")
