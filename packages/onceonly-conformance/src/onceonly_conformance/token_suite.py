"""The contract of the TokenStore port, rule by rule. Every check runs in another process than the write."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.admission import TokenStore
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.store_subject import LATER, cancel
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite, cut_off, raises, returns

MANY = 150
OWNER = Owner(OTHER, "order/17", Identity("till", "m1"))
RICH_OWNER = Owner(OTHER, "köln/№ 7 δ\n\0", Identity('quote " back\\slash 🛫', "x" * 5_000))


class TokenSubject(Protocol):
    """A token store under test, empty at first."""

    async def tokens(self) -> TokenStore:
        """Open the store. Each call opens it as a separate process would."""

    async def cut(self, moment: Moment) -> TokenStore:
        """Open the store with a client whose next write is cut off once.

        The write is cut off before or after the service applies it. All other requests succeed.
        """

    def now(self) -> int:
        """Return the store's time, in milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the store's time pass. A store that uses the real time moves its own clock instead."""


def token(name: str = "t1", endpoint: str = ENDPOINT) -> Token:
    """Return a token."""
    return Token(name, endpoint)


class TokenSuite(Suite):
    """The rules of a token store. Override `open_tokens`."""

    def open_tokens(self) -> AbstractAsyncContextManager[TokenSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    # Prepared

    async def test_a_token_nobody_prepared_is_not_live(self) -> None:
        """`live` does not return a token that was not prepared, even if it returns others."""
        async with self.open_tokens() as subject:
            assert await _live(subject, token()) == set()
            await _make_live(subject, token("t2"))
            assert await _live(subject, token(), token("t2")) == {token("t2")}

    async def test_a_prepared_token_is_invisible_to_receivers(self) -> None:
        """A prepared token is not live. The unit that prepared it may still be rolled back."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token())
            assert await _live(subject, token()) == set()

    async def test_a_prepared_token_is_listed_with_its_owner_and_its_instant(self) -> None:
        """`prepared` returns the exact owner and the time of the preparation. The sweeper uses both."""
        async with self.open_tokens() as subject:
            before = subject.now()
            await (await subject.tokens()).prepare(dict.fromkeys([token()], RICH_OWNER))
            after = subject.now()
            await self._listed(subject, token())
            (found,) = await (await subject.tokens()).prepared(LATER, 10)
            assert found == PreparedToken(token(), RICH_OWNER, found.at)
            assert before <= found.at <= after

    async def test_an_owner_may_have_no_entity(self) -> None:
        """The owner of a token may have an empty unit, as in SQL stores."""
        owner = Owner(ENDPOINT, "", Identity("", "m1"))
        async with self.open_tokens() as subject:
            await (await subject.tokens()).prepare(dict.fromkeys([token("t1"), token("t2")], owner))
            await self._listed(subject, token("t1"), token("t2"), owner=owner)

    async def test_tokens_of_several_owners_are_prepared_at_once(self) -> None:
        """One call may prepare tokens of several owners. Each token keeps its own owner."""
        owners = {token("t1"): OWNER, token("t2"): RICH_OWNER, token("t3"): OWNER._replace(unit="")}
        async with self.open_tokens() as subject:
            await (await subject.tokens()).prepare(owners)
            await self._listed(subject, *owners)
            found = await (await subject.tokens()).prepared(LATER, 10)
            assert {each.token: each.owner for each in found} == owners

    async def test_an_id_that_is_prepared_cannot_be_prepared_again(self) -> None:
        """A second `prepare` of an id raises ConflictError. The token keeps its first owner."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token())
            async with raises(ConflictError):
                await (await subject.tokens()).prepare(dict.fromkeys([token()], RICH_OWNER))
            await self._listed(subject, token(), owner=OWNER)

    async def test_an_id_that_is_live_cannot_be_prepared_again(self) -> None:
        """`prepare` of a live token raises ConflictError. The token stays live."""
        async with self.open_tokens() as subject:
            await _make_live(subject, token())
            async with raises(ConflictError):
                await (await subject.tokens()).prepare(dict.fromkeys([token("t2"), token()], OWNER))
            assert await _live(subject, token()) == {token()}

    # Live

    async def test_an_activated_token_is_live_everywhere(self) -> None:
        """An activated token is live for every process, including those that checked before, and is not prepared any more."""
        async with self.open_tokens() as subject:
            reader = await subject.tokens()
            await _prepare(subject, token())
            assert await reader.live([token()]) == frozenset()
            await (await subject.tokens()).activate([token()])
            assert await reader.live([token()]) == {token()}
            assert await _live(subject, token()) == {token()}
            await self._listed(subject)

    async def test_who_prepared_a_token_may_activate_it(self) -> None:
        """The client that prepared a token can activate it, as a worker does."""
        async with self.open_tokens() as subject:
            store = await subject.tokens()
            await store.prepare(dict.fromkeys([token("t1"), token("t2")], OWNER))
            await store.activate([token("t1"), token("t2")])
            assert await _live(subject, token("t1"), token("t2")) == {token("t1"), token("t2")}

    async def test_activating_twice_is_fine(self) -> None:
        """`activate` accepts live tokens, from any process and together with prepared ones."""
        async with self.open_tokens() as subject:
            store = await subject.tokens()
            await store.prepare(dict.fromkeys([token("t1"), token("t2")], OWNER))
            await store.activate([token("t1")])
            await store.activate([token("t1")])
            await (await subject.tokens()).activate([token("t1"), token("t2")])
            assert await _live(subject, token("t1"), token("t2")) == {token("t1"), token("t2")}

    async def test_activating_leaves_others(self) -> None:
        """`activate` affects only the tokens passed to it."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token("t1"), token("t2"))
            await (await subject.tokens()).activate([token("t1")])
            assert await _live(subject, token("t1"), token("t2")) == {token("t1")}
            await self._listed(subject, token("t2"))

    async def test_activating_a_missing_token_makes_none(self) -> None:
        """`activate` does not create a token that was not prepared."""
        async with self.open_tokens() as subject:
            await (await subject.tokens()).activate([token()])
            assert await _live(subject, token()) == set()
            await self._listed(subject)

    async def test_a_consumed_token_never_comes_back(self) -> None:
        """A late `activate` does not restore a removed token, whether or not the client knew the token before."""
        async with self.open_tokens() as subject:
            owner, receiver = await subject.tokens(), await subject.tokens()
            await owner.prepare(dict.fromkeys([token()], OWNER))
            await (await subject.tokens()).activate([token()])
            assert await receiver.live([token()]) == {token()}
            await (await subject.tokens()).remove([token()])
            for late in (owner, receiver, await subject.tokens()):
                await late.activate([token()])
                assert await _live(subject, token()) == set()
            await self._listed(subject)

    async def test_tokens_of_two_endpoints_are_two(self) -> None:
        """The same id for two endpoints is two tokens. An event has one token for each subscriber."""
        here, there = token(endpoint=ENDPOINT), token(endpoint=OTHER)
        async with self.open_tokens() as subject:
            await _prepare(subject, here, there)
            await (await subject.tokens()).activate([here, there])
            await (await subject.tokens()).remove([here])
            assert await _live(subject, here, there) == {there}

    async def test_ids_are_exact(self) -> None:
        """Token ids are case-sensitive, and separators count."""
        names = [Token(name, ENDPOINT) for name in ("t", "T", "t/u", "t.u", "t_u", "t-u", "0", "00", "f" * 32)]
        async with self.open_tokens() as subject:
            await _prepare(subject, *names)
            await (await subject.tokens()).activate(names[::2])
            assert await _live(subject, *names) == set(names[::2])
            await self._listed(subject, *names[1::2])

    async def test_many_tokens_at_once(self) -> None:
        """Every call accepts more tokens than one request of the service does."""
        names = [token(f"t{number}") for number in range(MANY)]
        async with self.open_tokens() as subject:
            store = await subject.tokens()
            await store.prepare(dict.fromkeys(names, OWNER))
            await store.activate(names)
            await store.remove(names[::2])
            assert await _live(subject, *names) == set(names[1::2])

    async def test_nothing_is_a_fine_number_of_tokens(self) -> None:
        """Every call accepts an empty list."""
        async with self.open_tokens() as subject:
            await _make_live(subject, token())
            store = await subject.tokens()
            await store.prepare({})
            for call in (store.activate, store.remove, store.discard):
                await call([])
            assert (await store.live([]), await _live(subject, token())) == (frozenset(), {token()})

    # Gone

    async def test_a_removed_token_is_gone_everywhere(self) -> None:
        """`remove` deletes live and prepared tokens for every process, including those that read them before."""
        async with self.open_tokens() as subject:
            reader = await subject.tokens()
            await _make_live(subject, token("t1"))
            await _prepare(subject, token("t2"))
            assert await reader.live([token("t1"), token("t2")]) == {token("t1")}
            await (await subject.tokens()).remove([token("t1"), token("t2")])
            assert await reader.live([token("t1"), token("t2")]) == frozenset()
            await self._listed(subject)

    async def test_who_knows_a_token_may_remove_it(self) -> None:
        """`remove` works for a client that found the token live, and for one that prepared it and missed the activation."""
        async with self.open_tokens() as subject:
            owner, receiver = await subject.tokens(), await subject.tokens()
            await owner.prepare(dict.fromkeys([token("t1"), token("t2")], OWNER))
            await (await subject.tokens()).activate([token("t1"), token("t2")])
            assert await receiver.live([token("t1")]) == {token("t1")}
            await receiver.remove([token("t1")])
            await owner.remove([token("t2")])
            assert await _live(subject, token("t1"), token("t2")) == set()

    async def test_removing_leaves_others(self) -> None:
        """`remove` deletes only the tokens passed to it, live or prepared."""
        async with self.open_tokens() as subject:
            await _make_live(subject, token("t1"), token("t2"))
            await _prepare(subject, token("t3"), token("t4"))
            await (await subject.tokens()).remove([token("t1"), token("t3")])
            assert await _live(subject, token("t1"), token("t2")) == {token("t2")}
            await self._listed(subject, token("t4"))

    async def test_removing_what_is_gone_is_harmless(self) -> None:
        """`remove` accepts missing tokens, from any process."""
        async with self.open_tokens() as subject:
            store = await subject.tokens()
            await store.remove([token()])
            await _make_live(subject, token())
            await store.remove([token(), token("t2")])
            await store.remove([token()])
            await (await subject.tokens()).remove([token()])
            assert await _live(subject, token(), token("t2")) == set()

    async def test_a_discarded_token_is_gone(self) -> None:
        """A discarded token cannot become live."""
        async with self.open_tokens() as subject:
            owner = await subject.tokens()
            await owner.prepare(dict.fromkeys([token("t1"), token("t2")], OWNER))
            await owner.discard([token("t1")])
            await (await subject.tokens()).discard([token("t2")])
            await self._listed(subject)
            await owner.activate([token("t1"), token("t2")])
            assert await _live(subject, token("t1"), token("t2")) == set()

    async def test_discarding_leaves_a_live_token(self) -> None:
        """`discard` keeps a live token, even if the client that prepared it did not see its activation."""
        async with self.open_tokens() as subject:
            owner = await subject.tokens()
            await owner.prepare(dict.fromkeys([token("t1"), token("t2")], OWNER))
            await (await subject.tokens()).activate([token("t1")])
            await owner.discard([token("t1"), token("t2")])
            await (await subject.tokens()).discard([token("t1")])
            assert await _live(subject, token("t1")) == {token("t1")}
            await self._listed(subject)

    async def test_discarding_leaves_other_prepared_tokens(self) -> None:
        """`discard` deletes only the tokens passed to it, and accepts missing ones."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token("t1"), token("t2"))
            await (await subject.tokens()).discard([token("t1"), token("t3")])
            await (await subject.tokens()).discard([token("t1")])
            await self._listed(subject, token("t2"))

    # The list for the sweeper

    async def test_only_tokens_prepared_before_are_listed(self) -> None:
        """`prepared` returns only tokens older than `older_than`. Younger ones may belong to a running unit."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token("t1"))
            await subject.pass_time(60_000)
            between = subject.now() - 30_000
            await _prepare(subject, token("t2"))
            await self._listed(subject, token("t1"), older_than=between)

    async def test_at_most_the_limit_is_listed(self) -> None:
        """`prepared` returns at most `limit` tokens. Live tokens do not count."""
        async with self.open_tokens() as subject:
            await _make_live(subject, *(token(f"t{number}") for number in range(5)))
            await _prepare(subject, *(token(f"u{number}") for number in range(5)))
            store = await subject.tokens()
            assert [len(await store.prepared(LATER, limit)) for limit in (1, 3, 5, 9)] == [1, 3, 5, 5]

    # Several at once

    async def test_of_activating_and_discarding_at_once_one_wins(self) -> None:
        """After a concurrent `activate` and `discard`, the token is live or gone, and not prepared."""
        async with self.open_tokens() as subject:
            names = [token(f"t{number}") for number in range(10)]
            await _prepare(subject, *names)
            one, two = await subject.tokens(), await subject.tokens()
            calls = [call([each]) for each in names for call in (one.activate, two.discard)]
            await asyncio.gather(*calls)
            await self._listed(subject)

    async def test_of_activating_and_removing_at_once_removing_wins(self) -> None:
        """After a concurrent `activate` and `remove`, the token is gone."""
        async with self.open_tokens() as subject:
            names = [token(f"t{number}") for number in range(10)]
            await _prepare(subject, *names)
            stores = [await subject.tokens() for _ in range(3)]
            await asyncio.gather(stores[0].activate(names), stores[1].remove(names), stores[2].remove(names))
            assert await _live(subject, *names) == set()
            await self._listed(subject)

    async def test_many_may_activate_a_token_at_once(self) -> None:
        """Concurrent calls of `activate` with the same token all succeed."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token())
            stores = [await subject.tokens() for _ in range(5)]
            await asyncio.gather(*(store.activate([token()]) for store in stores))
            assert await _live(subject, token()) == {token()}

    # What goes wrong on the way

    async def test_a_preparation_that_is_cut_off_is_never_said_to_have_failed(self) -> None:
        """When the response is lost, `prepare` returns or raises OutcomeUnknown.

        It must not raise ConflictError: the tokens would be discarded although a commit may name them.
        """
        async with self.open_tokens() as subject:
            await cut_off((await subject.cut("after")).prepare(dict.fromkeys([token()], OWNER)))
            await self._listed(subject, token())

    async def test_a_preparation_that_got_nowhere_is_no_success(self) -> None:
        """When the request is lost, `prepare` does not return unless the token is stored.

        Otherwise the receiver would drop the message.
        """
        async with self.open_tokens() as subject:
            returned = await returns((await subject.cut("before")).prepare(dict.fromkeys([token()], OWNER)))
            await (await subject.tokens()).activate([token()])
            assert returned <= (await _live(subject, token()) == {token()})

    async def test_an_activation_that_is_cut_off_is_never_said_to_have_failed(self) -> None:
        """When the response is lost, `activate` returns or raises OutcomeUnknown, and the token is live.

        The call may be repeated.
        """
        async with self.open_tokens() as subject:
            await _prepare(subject, token())
            cut = await subject.cut("after")
            await cut_off(cut.activate([token()]))
            assert await _live(subject, token()) == {token()}
            await cut.activate([token()])
            assert await _live(subject, token()) == {token()}

    async def test_an_activation_that_got_nowhere_is_no_success(self) -> None:
        """When the request is lost, `activate` does not return unless the token is live. The same client may retry it."""
        async with self.open_tokens() as subject:
            await _prepare(subject, token())
            cut = await subject.cut("before")
            assert await returns(cut.activate([token()])) <= (await _live(subject, token()) == {token()})
            await cut.activate([token()])
            assert await _live(subject, token()) == {token()}

    async def test_a_removal_that_is_cut_off_is_never_said_to_have_failed(self) -> None:
        """When the response is lost, `remove` returns or raises OutcomeUnknown, and the token is gone.

        The call may be repeated.
        """
        async with self.open_tokens() as subject:
            await _make_live(subject, token())
            cut = await subject.cut("after")
            await cut_off(cut.remove([token()]))
            assert await _live(subject, token()) == set()
            await cut.remove([token()])

    async def test_a_removal_that_got_nowhere_is_no_success(self) -> None:
        """When the request is lost, `remove` does not return unless the token is gone.

        A token that stays live lets its message be handled twice.
        """
        async with self.open_tokens() as subject:
            await _make_live(subject, token())
            cut = await subject.cut("before")
            assert await returns(cut.remove([token()])) <= (await _live(subject, token()) == set())
            await cut.remove([token()])
            assert await _live(subject, token()) == set()

    async def test_cancelled_calls_may_be_made_again(self) -> None:
        """`activate` and `remove` may be cancelled at any point and called again."""
        async with self.open_tokens() as subject:
            for turns in range(6):
                store, mine = await subject.tokens(), token(f"t{turns}")
                await store.prepare(dict.fromkeys([mine], OWNER))
                await cancel(store.activate([mine]), turns)
                await store.activate([mine])
                assert await _live(subject, mine) == {mine}
                await cancel(store.remove([mine]), turns)
                await store.remove([mine])
                assert await _live(subject, mine) == set()

    async def _listed(
        self, subject: TokenSubject, *expected: Token, owner: Owner | None = None, older_than: int = LATER
    ) -> None:
        """Wait until exactly these tokens are listed, each once. A list may be some seconds old."""
        found: tuple[PreparedToken, ...] = ()
        try:
            async with asyncio.timeout(self.patience):
                found = await _prepared(subject, older_than)
                while sorted(each.token for each in found) != sorted(expected):
                    await asyncio.sleep(0)
                    found = await _prepared(subject, older_than)
        except TimeoutError as error:
            raise AssertionError(f"`prepared` returned {found}; expected {expected}") from error
        assert owner is None or {each.owner for each in found} == {owner}


async def _prepare(subject: TokenSubject, *tokens: Token) -> None:
    await (await subject.tokens()).prepare(dict.fromkeys(tokens, OWNER))


async def _make_live(subject: TokenSubject, *tokens: Token) -> None:
    store = await subject.tokens()
    await store.prepare(dict.fromkeys(tokens, OWNER))
    await store.activate(tokens)


async def _live(subject: TokenSubject, *tokens: Token) -> set[Token]:
    return set(await (await subject.tokens()).live(tokens))


async def _prepared(subject: TokenSubject, older_than: int) -> tuple[PreparedToken, ...]:
    return await (await subject.tokens()).prepared(older_than, 1000)
