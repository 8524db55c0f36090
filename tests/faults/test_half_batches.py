"""The process dies, or a call fails, at every call of the documents: never is a part of a handler's documents there alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from onceonly import Context, DedupStore, Endpoint, History, Retry, Tokens, testing
from onceonly.adapters.memory.documents import DocumentsWorld, MemoryDocuments, save_together
from onceonly.formats.documents import decode_entity
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.message import Message
from onceonly.runtime.observe.crash import ProcessCrash
from onceonly.testing import EndpointRun

MOST_CALLS = 60
"""More calls than the messages of the tests make."""
DEDUPLICATIONS = (
    pytest.param(History(), id="history"),
    pytest.param(DedupStore("dynamodb://eu-west-1/done"), id="dedup-store", marks=pytest.mark.slow),
    pytest.param(Tokens("dynamodb://eu-west-1/tokens", subscribers={"Moved": []}), id="tokens", marks=pytest.mark.slow),
)


@dataclass
class Deposit:
    """A message about one account."""

    account_id: str
    amount: int


@dataclass
class Moved:
    """An event."""

    account_id: str
    balance: int


@dataclass
class Account:
    """An entity, which has what its documents must have as well."""

    account_id: str
    balance: int = 0
    deposits: int = 0


def bank(deduplication: Any) -> Endpoint:
    """Make an endpoint that writes, replaces and deletes documents with each change of an account."""
    made = Endpoint(
        "bank",
        store="memory://never-opened",
        transport="memory://never-opened",
        deduplication=deduplication,
        retry=Retry(immediate=5, delayed=0),
    )

    @made.handler(entity=Account, key="account_id", partition_key="account_id")
    async def deposit(order: Deposit, account: Account, context: Context) -> None:
        total = await context.documents.get("total") or {"balance": 0}
        account.balance += order.amount
        account.deposits += 1
        context.documents.put("total", {"balance": total["balance"] + order.amount})
        context.documents.put(f"receipt-{account.deposits}", {"balance": account.balance}, collection="receipts")
        context.documents.put("last", {"deposit": account.deposits})
        await context.documents.delete(f"receipt-{account.deposits - 1}", collection="receipts")
        context.publish(Moved(account.account_id, account.balance))

    return made


class Tripwire:
    """Counts the calls of all documents in memory, and lets something happen at one of them. Finds halves after each.

    `at` is the number of the call, and `side` when it happens: before the call is applied, or after it.
    """

    def __init__(self, at: int, side: str, error: Callable[[], BaseException]) -> None:
        self.calls: list[str] = []
        self.halves: list[str] = []
        self._at, self._side, self._error = at, side, error

    async def perform(
        self, documents: MemoryDocuments, inner: Callable[..., Any], point: str, arguments: tuple[Any, ...], **options: Any
    ) -> Any:
        """Make one call."""
        self.calls.append(point)
        is_it = len(self.calls) - 1 == self._at
        if is_it and self._side == "before":
            raise self._error()
        answer = await inner(documents, point, *arguments, **options)
        self._look(documents)
        if is_it:
            raise self._error()
        return answer

    def _look(self, documents: MemoryDocuments) -> None:
        """Compare the account with the documents next to it, as they are at this moment."""
        world: DocumentsWorld = documents._driver.part(documents.place)  # type: ignore[attr-defined]
        states = [decode_entity(each.key, each.body).state for each in world.written if "/Account/" in each.key]
        account = msgspec.json.decode(states[0]) if states and states[0] else {"balance": 0, "deposits": 0}
        there = {each.address.key[0]: msgspec.json.decode(each.body) for each in world.application if each.body is not None}
        if there != expected(account["balance"], account["deposits"]):
            self.halves.append(f"after call {len(self.calls)} the account is {account}, the documents are {there}")


def expected(balance: int, deposits: int) -> dict[str, dict[str, int]]:
    """Return the documents next to an account."""
    if not deposits:
        return {}
    receipt = f"receipt-{deposits}"
    return {"total": {"balance": balance}, receipt: {"balance": balance}, "last": {"deposit": deposits}}


class Ending(NamedTuple):
    """What happens at a call: before it, or after it. `name` is for the test's id."""

    name: str
    side: str
    error: Callable[[], BaseException]


ENDINGS = (
    Ending("dies-before", "before", lambda: ProcessCrash("before a call")),
    Ending("dies-after", "after", lambda: ProcessCrash("after a call")),
    Ending("fails", "before", lambda: CommitFailed("the request was lost")),
    Ending("unknown-before", "before", lambda: OutcomeUnknown("no answer")),
    Ending("unknown-after", "after", lambda: OutcomeUnknown("no answer")),
)


async def deposits_under(tripwire: Tripwire, deduplication: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver two deposits, copies included, and check that each happened once."""
    inner = MemoryDocuments._perform

    async def perform(self: MemoryDocuments, point: str, *arguments: Any, **options: Any) -> Any:
        return await tripwire.perform(self, inner, point, arguments, **options)

    async with testing.run(bank(deduplication), raise_failures=False) as t:
        messages = [await t._with_live_token(t.message(Deposit("a", amount))) for amount in (5, 2)]
        with monkeypatch.context() as patched:
            patched.setattr(MemoryDocuments, "_perform", perform)
            for message in messages:
                await _until_handled(t, message)
        assert tripwire.halves == []
        assert await t.entity(Account, "a", partition=("a",)) == Account("a", 7, 2)
        assert await t.document("total", partition=("a",)) == {"balance": 7}
        assert await t.document("last", partition=("a",)) == {"deposit": 2}
        assert await t.document("receipt-1", collection="receipts", partition=("a",)) is None
        assert await t.document("receipt-2", collection="receipts", partition=("a",)) == {"balance": 7}
        assert [each.read(Moved) for each in t.sent] == [Moved("a", 5), Moved("a", 7)]
        assert t.dead_letters == ()


async def _until_handled(t: EndpointRun, message: Message) -> None:
    """Deliver two copies of one message. What is put off comes again until nothing is left."""
    await t.deliver(message, copies=2)
    for _ in range(3):
        t.clock.advance(3600)
        await t.settle()


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
@pytest.mark.parametrize("deduplication", DEDUPLICATIONS)
async def test_no_half_is_seen_whatever_ends_a_call(
    deduplication: Any, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every call in turn; then the redelivery completes it once."""
    at, calls = 0, [""]
    while at < len(calls):
        tripwire = Tripwire(at, ending.side, ending.error)
        await deposits_under(tripwire, deduplication, monkeypatch)
        at, calls = at + 1, tripwire.calls
        assert at < MOST_CALLS
    assert calls.count("save_together") == 2
    assert calls.count("read") >= 4


async def test_a_half_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail: documents that are written one after the other."""

    async def in_turn(self: MemoryDocuments, change: Any, writes: Any) -> Any:
        (version,) = await self.save([change])
        for number, write in enumerate(writes):
            own = msgspec.structs.replace(change, key=f"aside/{change.key}/{number}/{version}", expected="")
            await self._perform("save_together", save_together, (own, (write,)))
        return version

    monkeypatch.setattr(MemoryDocuments, "save_together", in_turn)
    tripwire = Tripwire(MOST_CALLS, "after", AssertionError)
    with pytest.raises(AssertionError):
        await deposits_under(tripwire, History(), monkeypatch)
    assert tripwire.halves
