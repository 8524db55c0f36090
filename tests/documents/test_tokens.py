"""Tokens on documents, beyond what every token store promises: what they cost, how they fail, and their one direction."""

import random
from collections.abc import Hashable
from typing import Any

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown, RetryableError, UpgradeRequired
from onceonly.model.identity import Identity
from onceonly.model.token import Owner, Token
from onceonly.ports.documents import Change, Documents
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.store_subject import LATER
from tests.documents.fakes import ContestedDocuments, RecordingDocuments

OWNER = Owner("shop", "order/17", Identity("till", "m1"))
A, B = Token("a", "mail"), Token("b", "mail")


def opened(documents: Documents) -> DocumentTokens:
    """Open them, as a process of its own would."""
    return DocumentTokens(documents, clock=ManualClock())


async def test_each_step_of_a_token_costs_one_call() -> None:
    """As long as nobody else writes it: prepared and activated by one process, found and removed by another."""
    documents = RecordingDocuments()
    sender, receiver = opened(documents), opened(documents)
    await sender.prepare(dict.fromkeys([A, B], OWNER))
    await sender.activate([A, B])
    assert await receiver.live([A, B]) == {A, B}
    await receiver.remove([A, B])
    assert documents.calls == ["save", "save", "load", "save"]
    assert await documents.keys("") == ()


async def test_a_process_that_knows_nothing_looks_first() -> None:
    """A relay, for instance."""
    documents = RecordingDocuments()
    await opened(documents).prepare(dict.fromkeys([A, B], OWNER))
    await opened(documents).activate([A])
    await opened(documents).discard([A, B])
    await opened(documents).remove([A, B])
    assert documents.calls == ["save", *["load", "save"] * 3]


async def test_a_wrong_memory_costs_a_look_and_nothing_else() -> None:
    """What somebody else did in between is respected."""
    documents = RecordingDocuments()
    sender = opened(documents)
    await sender.prepare(dict.fromkeys([A, B], OWNER))
    await opened(documents).activate([A])
    await opened(documents).remove([B])
    documents.calls.clear()
    await sender.discard([A, B])
    assert documents.calls == ["save", "load"]
    assert await opened(documents).live([A, B]) == {A}


async def test_what_is_remembered_is_bounded() -> None:
    """The token that was seen the longest time ago is looked up again."""
    documents = RecordingDocuments()
    tokens = opened(documents)
    await tokens.prepare(dict.fromkeys([A], OWNER))
    await tokens.prepare(dict.fromkeys([Token(f"t{number}", "mail") for number in range(10_000)], OWNER))
    await tokens.activate([A])
    assert documents.calls == ["save", "save", "load", "save"]


async def test_prepared_tokens_are_found_behind_many_live_ones() -> None:
    """However many pages of keys that takes."""
    documents = RecordingDocuments()
    tokens = opened(documents)
    many = [Token(f"a{number:04}", "mail") for number in range(1_500)]
    await tokens.prepare(dict.fromkeys([*many, Token("b", "mail")], OWNER))
    await tokens.activate(many)
    assert [each.token.id for each in await tokens.prepared(LATER, 10)] == ["b"]
    assert documents.calls.count("keys") == 3


async def test_losing_every_time_ends_in_failed() -> None:
    """Nothing was written, and the token is what it was."""
    documents = ContestedDocuments()
    await opened(documents).prepare(dict.fromkeys([A], OWNER))
    for call in (opened(documents).activate, opened(documents).discard, opened(documents).remove):
        with pytest.raises(CommitFailed, match="gave up after 20 attempts"):
            await call([A])
    assert [each.token for each in await opened(documents).prepared(LATER, 10)] == [A]


async def test_a_used_id_names_itself() -> None:
    """It is a ConflictError, which says which token."""
    documents = RecordingDocuments()
    await opened(documents).prepare(dict.fromkeys([A], OWNER))
    with pytest.raises(ConflictError, match="token/mail/a"):
        await opened(documents).prepare(dict.fromkeys([A], OWNER))


async def test_a_token_of_a_newer_version_says_so() -> None:
    """Rather than being taken for one that is not live."""
    documents = RecordingDocuments()
    await documents.inner.save([Change(key="token/mail/a", body=b'{"state":"lent"}')])
    with pytest.raises(UpgradeRequired, match="upgrade"):
        await opened(documents).live([A])


async def test_nothing_is_asked_about_nothing() -> None:
    """No call for an empty list."""
    documents = RecordingDocuments()
    tokens = opened(documents)
    await tokens.prepare(dict.fromkeys([], OWNER))
    await tokens.activate([])
    await tokens.live([])
    await tokens.remove([])
    await tokens.discard([])
    assert documents.calls == []


CALLS = ("prepare", "activate", "live", "remove", "discard")


class Unsteady:
    """A driver whose writes are lost, unanswered, late, or made twice; an insert is never made twice."""

    def __init__(self, inner: Live, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng
        self._late: list[PortOperation] = []

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Carry it out in some way."""
        if operation.point != "save" or self._rng.random() < 0.5:
            return await self._inner.perform(operation, patience)
        form = self._rng.choice(("lost", "unanswered", "late", "twice"))
        if form == "late" or (form == "twice" and all(change.expected for change in operation.arguments[0])):
            self._late.append(operation)
        if form in {"unanswered", "twice"}:
            answers = await self._inner.perform(operation, patience)
            if form == "twice":
                return answers
        raise OutcomeUnknown(f"the answer of a write is missing: {form}")

    async def land(self) -> None:
        """Let one late write land."""
        if self._late:
            await self._inner.perform(self._late.pop(self._rng.randrange(len(self._late))))

    def at_once(self, operation: PortOperation) -> Any:
        """Carry it out."""
        return self._inner.at_once(operation)

    def token(self) -> Hashable:
        """Return a name."""
        return self._inner.token()


class History:
    """Some processes that work on the same tokens over an unsteady wire, and one that looks on."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a history that can be repeated
        self.driver = Unsteady(Live(), self.rng)
        self.processes = [opened(MemoryDocuments(self.driver)) for _ in range(3)]
        self.watcher = opened(MemoryDocuments(self.driver._inner))
        self.tokens = [Token(f"t{number}", "mail") for number in range(6)]
        self.ready: list[Token] = []
        self.removed: set[Token] = set()
        self.reached = dict.fromkeys(self.tokens, 0)
        self.steps: set[tuple[int, int]] = set()

    async def run(self) -> None:
        """Take some steps; after each, no token may have gone back."""
        fresh = list(self.tokens)
        for _ in range(120):
            process, call = (
                self.rng.choice(self.processes),
                self.rng.choice(CALLS),
            )
            if call == "prepare":
                await self._prepare(process, fresh)
            elif self.ready:
                await self._write(process, call, self.rng.sample(self.ready, self.rng.randint(1, len(self.ready))))
            await self.driver.land()
            await self._look()

    async def _prepare(self, process: DocumentTokens, fresh: list[Token]) -> None:
        if fresh:
            token = fresh.pop()
            try:
                await process.prepare(dict.fromkeys([token], OWNER))
            except OutcomeUnknown:
                return  # its unit is given up: nobody will ever activate it
            self.ready.append(token)

    async def _write(self, process: DocumentTokens, call: str, tokens: list[Token]) -> None:
        try:
            await getattr(process, call)(tokens)
        except RetryableError:
            return
        if call == "remove":
            self.removed.update(tokens)

    async def _look(self) -> None:
        live = await self.watcher.live(self.tokens)
        prepared = {each.token for each in await self.watcher.prepared(LATER, 100)}
        for token in self.tokens:
            state = 2 if token in live else 1 if token in prepared else 3 if self.reached[token] else 0
            assert state >= self.reached[token], f"{token} went back from {self.reached[token]} to {state}"
            self.steps.add((self.reached[token], state))
            self.reached[token] = state
        assert not live & self.removed


@pytest.mark.parametrize("seed", range(40))
async def test_a_token_never_goes_back(seed: int) -> None:
    """Prepared, live, gone: whatever is lost, late or made twice, and whoever remembers what."""
    await History(seed).run()


async def test_the_histories_take_every_step() -> None:
    """Else they would prove nothing: to prepared, to live, and to gone from either."""
    steps: set[tuple[int, int]] = set()
    removed: set[Token] = set()
    for seed in range(20):
        history = History(seed)
        await history.run()
        steps |= history.steps
        removed |= history.removed
    assert removed
    assert {(0, 1), (1, 2), (1, 3), (2, 3)} <= steps


async def test_tokens_from_outside_are_live_at_once_and_added_once() -> None:
    """One call; again, it changes nothing."""
    documents = RecordingDocuments()
    await opened(documents).add([A, B])
    assert documents.calls == ["save"]
    before = await documents.load(await documents.keys(""))
    await opened(documents).add([A, B])
    assert await documents.load(await documents.keys("")) == before
    assert await opened(documents).live([A, B]) == {A, B}


async def test_a_census_counts_the_tokens_of_one_endpoint_up_to_a_limit() -> None:
    """And says when there are more."""
    tokens = opened(MemoryDocuments(Live()))
    await tokens.prepare(dict.fromkeys([A], OWNER))
    await tokens.add([B, Token("c", "mail"), Token("d", "mailer")])
    assert await tokens.census("mail", 3) == (1, 2, False)
    assert await tokens.census("mail", 2) == (1, 1, True)
    assert await tokens.census("nobody", 2) == (0, 0, False)
