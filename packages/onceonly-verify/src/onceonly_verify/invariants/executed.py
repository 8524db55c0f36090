"""How the execution of a request ends must agree with its calls."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from onceonly.model.errors import ConflictError, OutcomeUnknown
from onceonly.model.record import Answer, Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly_verify.invariants.batch_log import Observed
from onceonly_verify.invariants.logged import WrongReportError


class OpenedUnit:
    """A unit of one attempt, and whether it has ended."""

    def __init__(self, opened: Any) -> None:
        self.is_over = self.is_committed = False
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        """Make every other call as it is."""
        return getattr(self._opened, name)

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        await self._opened.commit(record, answer)
        self.is_over = self.is_committed = True

    def abandon(self) -> None:
        self.is_over = True
        self._opened.abandon()


class ExecutionLog:
    """Notes the calls of one execution. It stands for the requests that it is about; `ports` are what the execution uses."""

    def __init__(self, key: str, requests: Any, ports: Ports) -> None:
        self._key, self._requests = key, requests
        self._opened: OpenedUnit | None = None
        self._sent: list[Answer] = []
        self._prepared: Sequence[Record] = ()
        self._is_discarded = False
        self.ports = ports._replace(
            transport=Observed(ports.transport, self._call, {"send": "send"}),
            admission=Observed(ports.admission, self._call, {"prepare": "prepare", "discard": "discard"}),
        )

    async def open(self, opening: TransactionAttempt) -> Any:
        """Open the unit, or read the response; see the port."""
        found = await self._requests.open(opening)
        if isinstance(found, IdempotencyEntry):
            return found
        self._opened = OpenedUnit(found)
        return self._opened

    async def _call(self, point: str, function: Callable[..., Awaitable[Any]], argument: Any) -> Any:
        self._is_discarded |= point == "discard"
        answer = await function(argument)
        if point == "send":
            self._sent += answer
        elif point == "prepare":
            self._prepared = answer
        return answer

    async def run(self, execution: Coroutine[Any, Any, bytes | None], driver: Any) -> bytes | None:
        """Execute. Raises WrongReportError, and what the execution raises."""
        try:
            response = await execution
        except OutcomeUnknown as error:
            self._is_ended()
            if not driver.has_failed and {*self._sent} <= {Answer.TAKEN}:
                raise WrongReportError(
                    f"wrong answer: request {self._key!r} was told that {error}, and no call failed"
                ) from error
            raise
        except ConflictError as error:
            self._is_ended()
            has_lost = self._opened is not None and not self._opened.is_committed
            if has_lost and any(record.issued for record in self._prepared) and not self._is_discarded:
                raise WrongReportError(f"leak: an execution of {self._key!r} has lost, and its tokens are left") from error
            raise
        except Exception:
            self._is_ended()
            raise
        self._is_ended()
        return response

    def _is_ended(self) -> None:
        if self._opened and not self._opened.is_over:
            raise WrongReportError(f"leak: the unit of request {self._key!r} is neither committed nor abandoned")
