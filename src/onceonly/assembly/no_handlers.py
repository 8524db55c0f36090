"""What stands for handlers in a process that only finishes and cleans up for an endpoint."""

from collections.abc import Sequence
from typing import NoReturn

from onceonly.model.errors import SetupError
from onceonly.model.message import Delivery, Failure, Message
from onceonly.model.remote import Response
from onceonly.ports.store import Resources


class NoHandlers:
    """The handlers of a process that finishes and cleans up for an endpoint, and receives nothing. None of them runs."""

    def read(self, delivery: Delivery) -> NoReturn:
        raise _no_handlers()

    def batches(self, messages: Sequence[Message]) -> NoReturn:
        raise _no_handlers()

    def runs_alone(self, message: Message) -> NoReturn:
        raise _no_handlers()

    def needs_response(self, message: Message) -> NoReturn:
        raise _no_handlers()

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> NoReturn:
        raise _no_handlers()

    async def handle_batch(
        self,
        messages: Sequence[Message],
        resources: Resources,
        attempts: Sequence[str],
        responses: Sequence[Response | None],
    ) -> NoReturn:
        raise _no_handlers()

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> NoReturn:
        raise _no_handlers()


def _no_handlers() -> SetupError:
    return SetupError("this process only finishes and cleans up for the endpoint: it has no handlers")
