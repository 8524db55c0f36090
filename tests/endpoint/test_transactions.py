"""`transaction` and `transact`: what they refuse, what the forms of the algorithm do when somebody else wins, and the kit."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import ConflictError, Endpoint, Off, SetupError, Transaction, testing
from onceonly.adapters.memory.store import MemoryStore, Notebook
from onceonly.adapters.memory.transactions import MemoryTransactions
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.transaction import TransactionPorts, TransactionResult, begin, complete, enclosed, transact
from onceonly.endpoint.host import host_of
from onceonly.endpoint.transactions import asked
from onceonly.errors import InvalidEffect, InvalidKey, KeyReused, TransactionMisused
from onceonly.formats.bodies import encode_answer, request_fingerprint
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.identity import hash_of
from onceonly.model.record import Record
from onceonly.model.transaction import LONGEST_KEY, BlockDecision, IdempotencyEntry, TransactionAttempt, scoped_key
from onceonly.ports.store import Resources
from onceonly.ports.transactions import OpenTransaction
from tests.endpoint.harness import STILL, endpoint


@dataclass
class Order:
    """A command."""

    id: str


@dataclass
class Placed:
    """An event."""

    id: str


@pytest.fixture
async def shop() -> AsyncIterator[Endpoint]:
    """Make an endpoint in memory, and open it."""
    shop = shop_on_memory()
    async with shop.opened():
        yield shop


def shop_on_memory(**settings: Any) -> Endpoint:
    """Make an endpoint with a handler that writes and publishes."""
    shop = endpoint(**settings)

    @shop.handler
    async def place(order: Order, notebook: Notebook) -> None:
        notebook.write("order", order.id)

    return shop


async def test_a_transaction_is_of_no_use_before_its_block(shop: Endpoint) -> None:
    """Each use says so."""
    tx = shop.transaction()
    for use in uses(tx):
        with pytest.raises(TransactionMisused, match="not open yet"):
            use()


async def test_a_transaction_is_of_no_use_after_its_block(shop: Endpoint) -> None:
    """Committed or failed."""
    async with shop.transaction() as tx:
        tx.answer = "kept"
    failed = shop.transaction()
    with pytest.raises(ZeroDivisionError):
        await fail_in(failed)
    for use in (*uses(tx), *uses(failed)):
        with pytest.raises(TransactionMisused, match="has ended"):
            use()
    assert tx.answer == "kept"


async def test_a_transaction_serves_one_block(shop: Endpoint) -> None:
    """Neither a second one nor one inside of it."""
    tx = shop.transaction()
    async with tx:
        with pytest.raises(TransactionMisused, match="is already open"):
            await tx.__aenter__()
        tx.get(Notebook).write("a", 1)
    with pytest.raises(TransactionMisused, match="has ended"):
        await tx.__aenter__()


async def test_a_transaction_belongs_to_the_task_that_entered_it(shop: Endpoint) -> None:
    """Two tasks at once would mix their statements on one connection."""

    async def use(how: Callable[[], object]) -> None:
        with pytest.raises(TransactionMisused, match="only in the task that opened it"):
            how()

    async with shop.transaction() as tx:
        await asyncio.gather(*(asyncio.create_task(use(how)) for how in uses(tx)))
        for how in uses(tx):
            with pytest.raises(TransactionMisused, match="only in the task that opened it"):
                await asyncio.to_thread(how)


@pytest.mark.parametrize(
    ("key", "words"),
    [("", "it must have 1 to 255"), ("é" * 128, "has 256"), ("\ud800", "UTF-8"), (7, "must be a string, not int")],
)
async def test_a_key_that_cannot_serve_is_refused(shop: Endpoint, key: Any, words: str) -> None:
    """Before anything is opened; the longest that can is taken."""
    with pytest.raises(InvalidKey, match=words):
        shop.transaction(idempotency_key=key)
    async with shop.transaction(idempotency_key="é" * 127 + "x") as tx:
        assert not tx.is_known


@pytest.mark.parametrize("limit", [timedelta(), timedelta(microseconds=999), timedelta(hours=2), 30])
def test_a_limit_that_cannot_serve_is_refused(limit: Any) -> None:
    """Zero, an eternity, a bare number."""
    with pytest.raises(TransactionMisused, match="max_commit"):
        shop_on_memory().transaction(max_commit=limit)


def test_a_request_that_cannot_be_told_from_others_is_refused() -> None:
    """Something without a form that can be compared."""
    with pytest.raises(TransactionMisused, match="request="):
        shop_on_memory().transaction(idempotency_key="k", request=object())


async def test_an_answer_that_cannot_be_kept_is_refused(shop: Endpoint) -> None:
    """At once, and the block fails with it."""

    async def answer(_tx: Transaction) -> object:
        return object()

    with pytest.raises(InvalidEffect, match="the answer cannot be stored"):
        await shop.transact(answer, idempotency_key="k")
    assert await shop.transact(returning("ok"), idempotency_key="k") == "ok"


def test_requests_are_the_same_by_what_they_say() -> None:
    """Whatever the order of their keys; bytes and JSON never are."""
    assert request_fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == request_fingerprint({"b": {"d": 3, "c": 2}, "a": 1})
    others = [None, b"", "", b"[1]", [1], {}, "null", b"null", Order("1"), Order("2")]
    assert len({request_fingerprint(other) for other in others}) == len(others)
    assert request_fingerprint(bytearray(b"x")) == request_fingerprint(memoryview(b"x")) == request_fingerprint(b"x")


async def test_a_key_in_another_scope_is_another_key(shop: Endpoint) -> None:
    """Nor is it a key without a scope that spells the stored text; the same scope and key with another request is refused."""

    async def which(scope: str | None, key: str = "k", request: object = None) -> Any:
        async def once(_tx: Transaction) -> str:
            runs.append(scope)
            return f"answer {len(runs)}"

        return await shop.transact(once, idempotency_key=key, request=request, scope=scope)

    runs: list[str | None] = []
    answers = [await which(scope) for scope in ("ann", "bob", None, "ann", "bob", None)]
    assert answers == ["answer 1", "answer 2", "answer 3"] * 2
    with pytest.raises(InvalidKey):
        await which(None, scoped_key("ann", "k"))
    with pytest.raises(KeyReused):
        await which("ann", request="other")
    wrong: Any
    for wrong in ("", 7, "\ud800"):
        with pytest.raises(TransactionMisused):
            await which(wrong)


def test_without_a_scope_what_is_stored_is_as_before() -> None:
    """Keys and fingerprints that the previous version wrote are found."""
    without = asked("k", [1], timedelta(seconds=1), retention=None)
    assert (without.key, without.fingerprint) == ("k", hash_of(b"request", b"\x01", b"[1]"))
    scoped = asked("k", [1], timedelta(seconds=1), scope="ann", retention=None)
    assert len(scoped.key) == LONGEST_KEY + 1
    assert scoped.fingerprint != without.fingerprint


async def test_the_first_answer_is_what_every_retry_gets(shop: Endpoint) -> None:
    """JSON has one kind of list, from the first time on."""
    answers = [await shop.transact(returning({"at": (1, {"id": "A"})}), idempotency_key="k") for _ in range(2)]
    assert answers == [{"at": [1, {"id": "A"}]}] * 2


def test_none_is_no_answer() -> None:
    """It is stored as nothing."""
    assert encode_answer(None) is None


async def test_off_keeps_no_record_so_it_has_no_transactions(tmp_path: Path) -> None:
    """A crash would lose what they send; so it is where the endpoint is open, and where it is not."""
    shop = endpoint(store=f"sqlite:///{tmp_path}/shop.db", deduplication=Off())

    @shop.handler
    async def place(order: Order) -> None:
        """Do nothing."""

    with pytest.raises(SetupError, match=r"Off\(\), which stores no records"):
        await fail_in(shop.transaction())
    async with shop.opened():
        with pytest.raises(SetupError, match=r"Off\(\), which stores no records"):
            await fail_in(shop.transaction())


async def test_a_store_without_a_session_says_so(shop: Endpoint) -> None:
    """Memory has a notebook."""
    async with shop.transaction() as tx:
        with pytest.raises(SetupError, match="not a SQL database"):
            _ = tx.sql
        with pytest.raises(LookupError):
            tx.get(AsyncSession)


async def test_the_kit_runs_the_transactions_of_an_endpoint() -> None:
    """On the store of the test, with what is sent on its tape; the endpoint handles what it sent itself."""
    shop = shop_on_memory()

    async def place(tx: Transaction) -> str:
        tx.get(Notebook).write("asked", "A")
        tx.send(Order("A"), to="shop")
        tx.publish(Placed("A"), delay=5)
        return "placed"

    async with testing.run(shop) as t:
        answers = [await shop.transact(place, idempotency_key="k") for _ in range(2)]
        assert (answers, t.sent) == (["placed"] * 2, [Order("A"), Placed("A")])
        await t.restart()
        assert await shop.transact(place, idempotency_key="k") == "placed"
        await t.settle()
        assert await shop.transact(place, idempotency_key="k") == "placed"
        assert t.store.notes() == (("asked", "A"), ("order", "A"))
        assert await t.store.undispatched(1 << 52, 10) == ()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _tx: 5, r"needs an async function, but .*<lambda> returned an int: define it with `async def`"),
        (lambda: None, r"cannot call .*<lambda> with the transaction as its only argument: .* takes 0 positional arguments"),
        ("place", "needs an async function, not a str: pass the function itself"),
    ],
)
async def test_what_transact_cannot_run_is_named(shop: Endpoint, function: Any, words: str) -> None:
    """Nothing is committed under the key, which can be used again."""
    with pytest.raises(TransactionMisused, match=words):
        await shop.transact(function, idempotency_key="k")
    assert await shop.transact(returning("ok"), idempotency_key="k") == "ok"


async def test_a_coroutine_is_no_function(shop: Endpoint) -> None:
    """It is closed, so Python does not warn of it."""
    with pytest.raises(TransactionMisused, match="not a coroutine: pass the function itself, uncalled"):
        await shop.transact(returning("ok")(None))


async def test_a_type_error_of_the_function_itself_is_passed_on(shop: Endpoint) -> None:
    """It is not about how it was called."""

    def place(_tx: Transaction) -> None:
        raise TypeError("its own")

    with pytest.raises(TypeError, match="its own"):
        await shop.transact(place, idempotency_key="k")  # type: ignore[arg-type]


# What follows is the algorithm on a store whose transactions conflict at the commit instead of waiting for a key.


async def test_who_loses_at_the_commit_gets_the_answer_of_who_won() -> None:
    """Nothing of the loser's is there."""
    ports, store = optimistic()
    inner = await begin(opening("one"), ports)

    async def block(opened: OpenTransaction) -> BlockDecision:
        notebook(opened.resources).write("two", 2)
        assert not isinstance(inner, IdempotencyEntry)
        await complete(opening("one"), inner, BlockDecision((), b"first"), ports)
        return BlockDecision((), b"second")

    assert await transact(opening("two"), block, ports) == TransactionResult(answer=b"first", is_known=True)
    assert store.notes() == ()


async def test_who_loses_at_the_commit_with_another_request_is_told() -> None:
    """The fingerprint is compared at this read of the key as well."""
    ports, _ = optimistic()
    late = await begin(opening("two", b"other"), ports)
    assert not isinstance(late, IdempotencyEntry)
    await transact(opening("one"), deciding(b"first"), ports)
    with pytest.raises(KeyReused):
        await complete(opening("two", b"other"), late, BlockDecision(), ports)


async def test_a_conflict_without_a_winner_is_told_as_not_done() -> None:
    """The block itself lost a race, and there is no key, or nothing under it."""

    async def lose(_opened: OpenTransaction) -> BlockDecision:
        raise ConflictError("a serialization failure")

    ports, _ = optimistic()
    for key in ("k", ""):
        with pytest.raises(ConflictError, match=r"nothing was committed.*a serialization failure"):
            await transact(opening("one", key=key), lose, ports)
    assert (await transact(opening("two"), deciding(b"done"), ports)).answer == b"done"


async def test_the_block_that_lost_does_not_pass_its_own_answer_off_as_the_kept_one(shop: Endpoint) -> None:
    """It may have returned that already; so the `async with` form says ConflictError, and the next attempt gets the answer."""
    async with host_of(shop).opened() as ports:
        assert ports.transactions is not None
        rival = TransactionPorts(Optimistic(ports.transactions), ports.admission)
        with host_of(shop).bind(ports._replace(transactions=rival.transactions)):
            with pytest.raises(ConflictError, match="committed first: retry"):
                await _win_inside(shop)
            async with shop.transaction(idempotency_key="k") as tx:
                assert (tx.is_known, tx.answer) == (True, "of the winner")


async def test_after_an_unknown_commit_nothing_else_is_done() -> None:
    """No read of the key, no dispatch, nothing discarded: only the client's next attempt finds out."""
    calls: list[str] = []

    class Silent:
        """A transaction whose commit is not answered."""

        def __init__(self, inner: OpenTransaction) -> None:
            self.resources, self.unit, self.load = inner.resources, inner.unit, inner.load
            self._inner = inner

        async def commit(self, record: Record | None, answer: bytes | None) -> None:
            await self._inner.commit(record, answer)
            raise OutcomeUnknown("no answer")

        def abandon(self) -> None:
            self._inner.abandon()

    class Listening(MemoryTransactions):
        """Notes what is asked of it."""

        async def open(self, opening: TransactionAttempt) -> Any:
            calls.append("open")
            found = await super().open(opening)
            return found if isinstance(found, IdempotencyEntry) else Silent(found)

        async def entry(self, key: str) -> IdempotencyEntry | None:
            calls.append("entry")
            return await super().entry(key)

    ports = TransactionPorts(Listening(Live(), "shop"), StoreAdmission())
    with pytest.raises(OutcomeUnknown):
        await transact(opening("one"), deciding(b"first"), ports)
    assert calls == ["open"]
    assert await transact(opening("two"), deciding(b"second"), ports) == TransactionResult(answer=b"first", is_known=True)


async def test_what_is_not_answered_before_the_commit_has_failed() -> None:
    """The store, and whatever else is asked until then: nothing of it is ever visible, so the client may be told so."""

    class Away(MemoryTransactions):
        """Answers nobody."""

        async def open(self, opening: TransactionAttempt) -> Any:
            raise OutcomeUnknown("no answer")

    class NotPreparing(StoreAdmission):
        """Cannot say whether it has prepared anything."""

        async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
            raise OutcomeUnknown("no answer")

    driver = Live()
    for transactions, admission in (
        (Away(driver, "shop"), StoreAdmission()),
        (MemoryTransactions(driver, "shop"), NotPreparing()),
    ):
        with pytest.raises(CommitFailed, match="nothing was committed: no answer"):
            await transact(opening("one"), deciding(b"first"), TransactionPorts(transactions, admission))
    assert await MemoryTransactions(driver, "shop").entry("k") is None


async def test_who_waits_for_a_key_may_say_for_how_long(shop: Endpoint) -> None:
    """Then it is a ConflictError, and nothing happened; who has waited in vain may ask again."""
    async with shop.transaction(idempotency_key="k") as first:
        with pytest.raises(ConflictError, match=r"nothing was committed, so the call can be repeated: .* more than 20 ms"):
            await shop.transact(returning("second"), idempotency_key="k", wait=0.02)
        first.answer = "first"
    assert await shop.transact(returning("third"), idempotency_key="k", wait=0.02) == "first"


@pytest.mark.parametrize("wait", [0, -1.0, 90_000.0])
def test_a_wait_that_cannot_serve_is_refused(wait: float) -> None:
    """None at all, and more than a day."""
    with pytest.raises(TransactionMisused, match="wait must be a number of seconds above 0, at most a day"):
        shop_on_memory().transaction(idempotency_key="k", wait=wait)


async def test_a_transaction_that_is_over_cannot_be_committed() -> None:
    """Neither twice, nor after it was given up, nor too late."""
    driver = Live()
    clock = STILL.clock
    transactions = MemoryTransactions(driver, "shop", clock=clock)
    for ended in range(2):
        opened = await transactions.open(opening(f"a{ended}", key=f"k{ended}"))
        assert not isinstance(opened, IdempotencyEntry)
        if ended:
            opened.abandon()
        else:
            await opened.commit(None, None)
        with pytest.raises(CommitFailed, match="has already been committed or abandoned"):
            await opened.commit(None, b"again")
    assert (await transactions.entry("k0"), await transactions.entry("k1")) == (IdempotencyEntry("a0", b"same"), None)


async def test_an_exception_gives_the_transaction_up() -> None:
    """`enclosed` does it, whatever the caller does then."""
    ports, store = optimistic()
    opened = await begin(opening("one"), ports)
    assert not isinstance(opened, IdempotencyEntry)
    with pytest.raises(ZeroDivisionError):
        async with enclosed(opened):
            notebook(opened.resources).write("a", 1 // 0)
    with pytest.raises(CommitFailed):
        await opened.commit(None, None)
    assert store.notes() == ()


class Optimistic:
    """Transactions that open without looking at keys, once: the first `open` never waits and finds nothing."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.entry = inner.entry

    async def open(self, opening: TransactionAttempt) -> Any:
        """Open, and let a rival commit the same key before this one is entered."""
        if await self._inner.entry(opening.key) is None and opening.key == "k":
            mine = await self._inner.open(_keyless(opening))
            rival = await self._inner.open(opening)
            await rival.commit(None, encode_answer("of the winner"))
            return Losing(mine)
        return await self._inner.open(opening)


class Losing:
    """An open transaction whose commit finds the key there."""

    def __init__(self, inner: OpenTransaction) -> None:
        self.resources, self.unit, self.load = inner.resources, inner.unit, inner.load
        self.abandon = inner.abandon

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Lose."""
        raise ConflictError("the key is there")


def _keyless(opening: TransactionAttempt) -> TransactionAttempt:
    return TransactionAttempt(endpoint=opening.endpoint, attempt=opening.attempt, max_commit=opening.max_commit)


def opening(attempt: str, asked: bytes = b"same", *, key: str = "k") -> TransactionAttempt:
    """Make an attempt of the endpoint `shop`."""
    return TransactionAttempt(endpoint="shop", attempt=attempt, max_commit=1000, key=key, fingerprint=asked)


def optimistic() -> tuple[TransactionPorts, MemoryStore]:
    """Make transactions that do not wait, and the store they belong to."""
    driver = Live()
    return TransactionPorts(MemoryTransactions(driver, "shop", blocking=False), StoreAdmission()), MemoryStore(driver, "shop")


def deciding(answer: bytes) -> Any:
    """Make a block that decides at once."""

    async def block(_opened: OpenTransaction) -> BlockDecision:
        return BlockDecision((), answer)

    return block


def returning(answer: object) -> Any:
    """Make a function for `transact` that returns this."""

    async def function(_tx: Transaction) -> object:
        return answer

    return function


def notebook(resources: Resources) -> Notebook:
    """Return the memory store's resource."""
    found = resources.get(Notebook)
    assert isinstance(found, Notebook)
    return found


def uses(tx: Transaction) -> list[Callable[[], object]]:
    """Return everything a block does with a transaction."""
    return [
        lambda: tx.get(Notebook),
        lambda: tx.send(Order("A"), to="shop"),
        lambda: tx.publish(Placed("A")),
        lambda: setattr(tx, "answer", 1),
        lambda: tx.sql,
    ]


async def fail_in(tx: Transaction) -> None:
    """Fail in its block."""
    async with tx:
        raise ZeroDivisionError


async def _win_inside(shop: Endpoint) -> str:
    async with shop.transaction(idempotency_key="k") as tx:
        tx.answer = "of the loser"
        return str(tx.answer)
