"""The remote execution: executes a request of another service once, on the receiving side (protocols, section 6).

    PUT r      keep the request, unless r was deleted, or its deadline is over
    POST r     the response first, then the request; commit business state + response + record; dispatch; only then answer
    DELETE r   a tombstone and no request, in one write; then no response

PUT is repeated by proxies and clients at will, so it is the tombstone that ends a request, for as long as a PUT may still come.
POST may come as often as it likes: while there is a response that is the answer, and without a request nothing is executed. The
response is looked for first: the other way round, both may be deleted in between, and it would be executed again. Whoever is
answered asks no more, so the answer comes after the dispatch.
"""

from collections.abc import Awaitable, Callable, Sequence

from onceonly.algorithms.relay import relay
from onceonly.model.errors import ConflictError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.remote import Request
from onceonly.model.transaction import BlockDecision, IdempotencyEntry, TransactionAttempt, attempt_unit
from onceonly.ports.bundle import FinishingPorts, Ports
from onceonly.ports.remote import RemoteRequests
from onceonly.ports.store import Resources

Execution = Callable[[Request, Resources], Awaitable[BlockDecision]]
"""The user's work on a request: opaque; the result of exactly one run is kept."""


async def keep(key: str, request: Request, requests: RemoteRequests, *, deadline: int, now: int) -> bool:
    """Do what a PUT asks for; False when it comes too late, or after a DELETE. Raises CommitFailed, OutcomeUnknown."""
    return deadline > now and await requests.put(key, request, deadline)


async def execute(opening: TransactionAttempt, execution: Execution, requests: RemoteRequests, ports: Ports) -> bytes | None:
    """Do what a POST asks for; gives the response, whose messages are dispatched, or None if the request does not exist.

    Raises what the execution raises, ConflictError, CommitRefused, CommitFailed, OutcomeUnknown: the caller is to ask again.
    """
    opened = await requests.open(opening)  # the response first: this fences everything below
    if isinstance(opened, IdempotencyEntry):
        if ports.pending is not None:
            await _dispatch(await ports.pending.find([Identity(opening.endpoint, opened.attempt)]), ports)
        return opened.answer
    records: tuple[Record, ...] = ()
    try:
        request = await opened.request()  # only now: an earlier answer may be stale
        if request is None:
            opened.abandon()
            return None
        decided = await execution(request, opened.resources)
        if decided.effects:
            records = await ports.admission.prepare(
                [Record(opening.identity, decided.effects, unit=attempt_unit(opening.max_commit))]
            )
        await opened.commit(next(iter(records), None), decided.answer)
    except ConflictError:
        opened.abandon()
        await ports.admission.discard(records)  # definite: nothing of this attempt happened
        raise
    except BaseException:
        opened.abandon()  # and never compensate: after OutcomeUnknown the commit may have happened
        raise
    # Crash here, "after-commit": 1 committed, 2 not answered, 3 POST comes again, 4 the response is there, 5 it is dispatched.
    await _dispatch(records, ports)
    return decided.answer


async def bury(key: str, requests: RemoteRequests, *, until: int) -> None:
    """Do what a DELETE asks for, of a request that there is or not. Raises CommitFailed, OutcomeUnknown."""
    await requests.bury(key, until)
    # Crash here, "after-bury": 1 no request, 2 the response is there, 3 a POST is given it, 4 DELETE comes again.
    await requests.remove(key)


async def _dispatch(records: Sequence[Record], ports: FinishingPorts) -> None:
    """Dispatch what was committed with a response, before it is returned: no caller asks again then.

    Raises CommitFailed, OutcomeUnknown.
    """
    if records and len((await relay(records, ports)).finished) < len(records):
        raise OutcomeUnknown("executed, but the broker has not stored all its messages yet")
