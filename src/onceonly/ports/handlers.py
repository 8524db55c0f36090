"""Handlers: the user's code, as the algorithms see it."""

from collections.abc import Sequence
from typing import Protocol

from onceonly.model.message import Delivery, Failure, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.model.retry import RetryDecision
from onceonly.ports.store import Resources


class Handlers(Protocol):
    """The handlers of one endpoint. To the algorithm a run is one call: nothing inside it is visible before commit."""

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Return the message a delivery brings, or why it is none of this endpoint's. Pure."""

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Group the new messages of a unit by runs of handlers, in the order of these runs. Pure.

        A message is in a batch of one, unless its handler takes several messages at once.
        """

    def runs_alone(self, message: Message) -> bool:
        """Return whether the handler of this message needs a unit of one: it was registered so, or has raised ALONE before."""

    def needs_response(self, message: Message) -> bool:
        """Return whether another service is asked for something before this message is handled. Pure."""

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Run the handler. Raises HandlerFailed when it failed, BudgetExceeded when the batch has used its time.

        `attempt` begins the names of all artifacts that it makes; without one it can make none. `response` is the one that the
        message follows up, if it does.

        May be non-deterministic; the result of exactly one run is kept.
        """

    async def handle_batch(
        self,
        messages: Sequence[Message],
        resources: Resources,
        attempts: Sequence[str],
        responses: Sequence[Response | None],
    ) -> Sequence[Decision]:
        """Run the handler of a batch of several messages, or of a part of it; returns a decision for each message.

        `attempts` and `responses` are as of `handle`, one for each message. Raises as `handle`. A HandlerFailed whose
        `by_message` names messages says which of them failed; otherwise any of them may be the cause.
        """

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Decide what happens to a message that failed; `attempts` and `history` are those before this failure."""
