"""Batches: what a handler knows that takes several messages at once, and how it sets single ones of them aside."""

from collections.abc import Mapping, Sequence
from typing import overload

from onceonly.endpoint.context import Context, close
from onceonly.endpoint.failures import blame
from onceonly.endpoint.signatures import Function
from onceonly.model.errors import HandlerFailed, Reject, RetryLater
from onceonly.model.identity import Identity
from onceonly.model.message import Failure, Message


class BatchContext(Sequence[Context]):
    """A batch handler's view of its batch: the `Context` of each message, in the order of the handler's list.

        for order, context in zip(orders, batch):
            context.publish(OrderPlaced(order.order_id))

    What a context sends belongs to its message, and is sent once like what another handler sends. Valid until the handler
    ends.
    """

    def __init__(self, contexts: Sequence[Context], bodies: Sequence[object]) -> None:
        """Serve the messages of these contexts, whose bodies the handler gets."""
        self._contexts = tuple(contexts)
        self._bodies = tuple(bodies)
        self._set_aside: dict[int, Reject | RetryLater] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    @overload
    def __getitem__(self, index: int) -> Context: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Context]: ...
    def __getitem__(self, index: int | slice) -> Context | Sequence[Context]:
        return self._contexts[index]

    def reject(self, message: object, reason: str) -> None:
        """Make one message a dead letter with this reason. `message` is an item of the handler's list, or its context.

        When the handler ends, its work is undone as a whole, and it runs again without the messages that were set aside. So
        nothing that it did for them is kept. It may end at once: what it does after this is undone as well.

        Raises ValueError for a message that is not in the batch, and for a value that is in the list more than once.
        """
        self._set_aside[self._index(message)] = Reject(reason)

    def retry_later(self, message: object, delay: float, reason: str = "") -> None:
        """Handle one message again after `delay` seconds, without counting a failure. Otherwise like `reject`."""
        self._set_aside[self._index(message)] = RetryLater(delay, reason)

    def _index(self, message: object) -> int:
        known = self._contexts if isinstance(message, Context) else self._bodies
        found = [index for index, each in enumerate(known) if each is message]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(f"{message!r} is {len(found)} messages of the batch: pass the Context of one")
        raise ValueError(f"{message!r} is not a message of this batch: pass an item of the handler's list, or its Context")

    def _failures(self, function: Function) -> Mapping[Identity, Failure]:
        return {
            self._contexts[index].message.identity: blame(function, error).failure for index, error in self._set_aside.items()
        }

    def _close(self) -> None:
        for context in self._contexts:
            close(context)


def group(messages: Sequence[Message], batched: frozenset[str]) -> Sequence[Sequence[Message]]:
    """Group messages by runs of handlers: all of one of the `batched` types together, at the place of the first of them."""
    runs: list[list[Message]] = []
    by_type: dict[str, list[Message]] = {}
    for message in messages:
        if message.type in by_type:
            by_type[message.type].append(message)
            continue
        runs.append([message])
        if message.type in batched:
            by_type[message.type] = runs[-1]
    return runs


def failed_in_batch(failures: Mapping[Identity, Failure]) -> HandlerFailed:
    """Make the error of a batch in which these messages failed, and must be left out when it runs again."""
    return HandlerFailed(next(iter(failures.values())), by_message=failures)


def set_aside(batch: BatchContext, function: Function) -> Mapping[Identity, Failure]:
    return batch._failures(function)  # noqa: SLF001 - for this library, not for handlers


def close_batch(batch: BatchContext) -> None:
    """Refuse sends with the contexts of a batch from now on."""
    batch._close()  # noqa: SLF001 - for this library, not for handlers
