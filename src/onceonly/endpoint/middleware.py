"""Middleware: users' functions around every handler, inside its unit, its task and its time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onceonly.endpoint.batch import BatchContext
from onceonly.endpoint.context import Context
from onceonly.endpoint.signatures import Function
from onceonly.model.errors import InvalidHandler

CallNext = Callable[[], Awaitable[object]]
"""Runs the next middleware, or the handler. Returns what the handler returned."""


class MiddlewarePlan(NamedTuple):
    """How to run one middleware. `arguments` maps its parameters, but the first two, to the types that fill them."""

    function: Function
    arguments: Mapping[str, Any]
    is_for_batches: bool = False
    """Whether it accepts the BatchContext of a batch handler."""


class _Layer:
    """One middleware around what is inside it, for one message."""

    def __init__(self, name: str, inner: CallNext) -> None:
        self._name = name
        self._inner = inner
        self._error: BaseException | None = None
        self._is_begun = self._is_ended = self._is_over = False

    def call_next(self) -> Awaitable[object]:
        """Run what is inside, once. A call that is not awaited counts: forgetting that must not skip a handler."""
        if self._is_over:
            raise InvalidHandler(f"middleware {self._name} called call_next after it had returned")
        if self._is_begun:
            raise InvalidHandler(
                f"middleware {self._name} called call_next twice, and a handler runs once in a unit: raise RetryLater to retry"
            )
        self._is_begun = True
        return self._call_inner()

    async def _call_inner(self) -> object:
        if self._is_over:
            raise InvalidHandler(f"middleware {self._name} returned before its call_next() had begun")
        try:
            return await self._inner()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._is_ended = True

    async def run(self, call: Callable[[CallNext], Awaitable[object]]) -> None:
        """Run the middleware. An error that it caught still counts: the work of a handler that failed is never kept."""
        try:
            await call(self.call_next)
        finally:
            self._is_over = True
        if self._is_begun and not self._is_ended:
            raise InvalidHandler(f"middleware {self._name} returned before its call_next() had ended: await it")
        if self._error is not None:
            raise self._error


async def through(
    layers: Sequence[MiddlewarePlan], context: Context | BatchContext, find: Callable[[Any], object], handler: CallNext
) -> object:
    """Run a handler inside these, the first one outermost. Returns what the handler returned, None if it did not run."""
    left: object = None

    async def run_handler() -> object:
        nonlocal left
        left = await handler()
        return left

    def around(layer: MiddlewarePlan, inner: CallNext) -> CallNext:
        async def run() -> object:
            arguments = {name: find(kind) for name, kind in layer.arguments.items()}
            call = layer.function.call
            await _Layer(layer.function.name, inner).run(lambda call_next: call(context, call_next, **arguments))
            return left

        return run

    whole: CallNext = run_handler
    for layer in reversed(layers):
        whole = around(layer, whole)
    return await whole()
