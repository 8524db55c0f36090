"""Tokens, their sweeper and the document store together: step by step, in the orders that would lose or repeat a message."""

from typing import cast

import pytest

from onceonly.algorithms.admission import TokenAdmission, issue
from onceonly.algorithms.sweeper import sweep
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import CommitFailed, ConflictError, PermanentFailure
from onceonly.model.record import Record
from onceonly.model.token import TOKEN, Owner, PreparedToken, Token
from onceonly.ports.admission import TokenStore
from onceonly.ports.bundle import Ports
from onceonly.ports.documents import Change
from onceonly_conformance.samples import message
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests.documents.harness import ONE_EFFECT, ORDER, StoreHarness, about

LATER = 1 << 52


class Counter:
    """Fresh ids."""

    last = 0

    def new_id(self) -> str:
        """Count."""
        Counter.last += 1
        return f"t{Counter.last}"


class Tokens(StoreHarness):
    """A store that forgets, and tokens beside it."""

    def tokens(self) -> DocumentTokens:
        """Open the tokens, as a process of its own would."""
        return DocumentTokens(self.documents.inner, clock=self.clock)

    def admission(self) -> TokenAdmission:
        """Make the admission of a process."""
        return TokenAdmission(ENDPOINT, self.tokens(), {}, Counter())

    async def sweep(self, limit: int = 10, tokens: TokenStore | None = None) -> int:
        """Sweep once."""
        ports = Ports(ENDPOINT, self.store(None), self.store(None), None, *cast("list[None]", [None] * 5))  # type: ignore[arg-type]
        return await sweep(tokens or self.tokens(), LATER, limit, ports)


class Stalled(DocumentTokens):
    """Tokens as they were listed long ago."""

    def __init__(self, harness: Tokens, seen: tuple[PreparedToken, ...]) -> None:
        super().__init__(harness.documents.inner, clock=harness.clock)
        self._listed = seen

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List them."""
        return self._listed


async def test_an_attempt_that_stalls_before_its_commit_loses_to_the_sweeper() -> None:
    """Its tokens are gone: committed, its messages would be dropped by their receivers, and lost."""
    harness = Tokens()
    unit = await harness.store(None).begin([about()])
    (record,) = await harness.admission().prepare([Record(about().identity, ONE_EFFECT, unit=unit.key)])
    assert await harness.sweep() == 1
    with pytest.raises(ConflictError):
        await unit.commit([record])
    await harness.admission().discard([record])
    assert await harness.tokens().prepared(LATER, 10) == ()
    again = await harness.store(None).begin([about()])
    (second,) = await harness.admission().prepare([Record(about().identity, ONE_EFFECT, unit=again.key)])
    await again.commit([second])
    await harness.admission().activate([second])
    assert await harness.tokens().live(second.issued) == set(second.issued)


async def test_a_sweeper_that_stalls_before_the_fence_removes_nothing_that_was_committed() -> None:
    """It saw the token while it was prepared; now its owner's record confirms it, or has come and gone."""
    for forgotten in (False, True):
        harness = Tokens()
        unit = await harness.store(None).begin([about()])
        (record,) = await harness.admission().prepare([Record(about().identity, ONE_EFFECT, unit=unit.key)])
        seen = await harness.tokens().prepared(LATER, 10)
        await unit.commit([record])
        if forgotten:
            await harness.admission().activate([record])
            await harness.store(None).forget([record])

        await harness.sweep(tokens=Stalled(harness, seen))
        await harness.admission().activate([record])
        assert await harness.tokens().live(record.issued) == set(record.issued)


async def test_only_the_attempt_that_was_committed_keeps_its_tokens() -> None:
    """Another attempt at the same message left some; the record does not name them."""
    harness = Tokens()
    units = [await harness.store(None).begin([about()]) for _ in range(2)]
    first, second = [
        (await harness.admission().prepare([Record(about().identity, ONE_EFFECT, unit=unit.key)]))[0] for unit in units
    ]
    await units[0].commit([first])
    assert await harness.sweep() == 1
    assert [each.token for each in await harness.tokens().prepared(LATER, 10)] == list(first.issued)
    with pytest.raises(ConflictError):
        await units[1].commit([second])


async def test_a_swept_token_cannot_be_activated_by_a_late_owner() -> None:
    """Nor by one who remembers it."""
    harness = Tokens()
    admission = harness.admission()
    unit = await harness.store(None).begin([about()])
    (record,) = await admission.prepare([Record(about().identity, ONE_EFFECT, unit=unit.key)])
    await harness.sweep()
    await admission.activate([record])
    assert await harness.tokens().live(record.issued) == frozenset()


async def test_tokens_of_an_endpoint_that_is_away_do_not_stand_in_the_way() -> None:
    """However many it left, the others are swept."""
    harness = Tokens()
    owner = Owner(OTHER, "", message().identity)
    await harness.tokens().prepare(dict.fromkeys([Token(f"a{number}", "a") for number in range(30)], owner))
    await harness.tokens().prepare(dict.fromkeys([Token("b", "b")], Owner(ENDPOINT, f"entity/{ORDER}", about().identity)))
    assert await harness.sweep(limit=4) == 1
    assert {each.owner for each in await harness.tokens().prepared(LATER, 100)} == {owner}


async def test_an_unreadable_owner_does_not_stand_in_the_way() -> None:
    """Nor an attempt that is under way; what is left is found again."""
    harness = Tokens()
    await harness.documents.save([Change(key="entity/foreign", body=b"by hand")])
    await harness.tokens().prepare(dict.fromkeys([Token("a", "a")], Owner(ENDPOINT, "entity/foreign", about().identity)))
    await harness.tokens().prepare(dict.fromkeys([Token("b", "b")], Owner(ENDPOINT, f"entity/{ORDER}", about().identity)))
    assert (await harness.sweep(limit=1), await harness.sweep(limit=1)) == (1, 0)
    assert [each.token.id for each in await harness.tokens().prepared(LATER, 10)] == ["a"]


async def test_a_store_that_is_away_is_asked_for_one_page_only() -> None:
    """Each question may take as long as an outage lets it; and it is told, for nothing was swept."""
    harness = Tokens()
    await harness.tokens().prepare(
        dict.fromkeys([Token(f"t{n}", "a") for n in range(9)], Owner(ENDPOINT, "entity/x", about().identity))
    )
    harness.documents.spoils = dict.fromkeys(range(100), CommitFailed("away"))
    with pytest.raises(CommitFailed, match="away"):
        await harness.sweep(limit=3)
    assert harness.documents.calls == ["load"] * 3


async def test_a_token_that_nobody_can_read_does_not_stand_in_the_way() -> None:
    """Somebody else wrote it; it is told of where there is nothing else."""
    harness = Tokens()
    await harness.documents.inner.save([Change(key="token/a/0", body=b"by hand")])
    await harness.tokens().prepare(dict.fromkeys([Token("b", "b")], Owner(ENDPOINT, f"entity/{ORDER}", about().identity)))
    assert await harness.sweep() == 1
    with pytest.raises(PermanentFailure, match="document 'token/a/0' is not a readable token"):
        await harness.sweep()


async def test_a_token_that_is_listed_twice_is_no_other_message() -> None:
    """Two endpoints that take the same event have a token of the same name each, and consume their own."""
    harness = Tokens()
    send = ONE_EFFECT[0]
    event = Record(about().identity, (type(send)(message=message("out")),))
    subscribers = {message().type: (ENDPOINT, OTHER)}
    issued = issue(event, subscribers, Counter())
    (effect,) = issued.effects
    assert issued.issued == (Token(effect.message.token, ENDPOINT), Token(effect.message.token, OTHER))
    tokens = harness.tokens()
    await tokens.prepare(dict.fromkeys(issued.issued, Owner("till", "", about().identity)))
    await tokens.activate(issued.issued)
    mine, others = (TokenAdmission(name, tokens, {}, Counter()) for name in (ENDPOINT, OTHER))
    await mine.retire([Record(effect.message.identity, token=effect.message.token)])
    assert (await mine.admits([effect.message])).messages == frozenset()
    assert (await others.admits([effect.message])).messages == {effect.message.identity}


def test_a_message_carries_its_own_token_only() -> None:
    """Attributes handed on from the message that came hold its token: read first, it would have the new one dropped."""
    send = ONE_EFFECT[0]
    handed_on = type(send)(message=about(extensions=((TOKEN, "old"), ("traceparent", "00"))), to=OTHER)
    issued = issue(Record(about().identity, (handed_on,)), {}, Counter())
    assert [Token(effect.message.token, OTHER) for effect in issued.effects] == list(issued.issued)
    assert issued.effects[0].message.extension("traceparent") == "00"
